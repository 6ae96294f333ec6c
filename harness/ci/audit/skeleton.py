"""A test file without the bodies of its functions: a quarter of the text, the same marks, the same line numbers.

Parsing every body of vLLM's tests takes longer than the whole audit may. Where the cut goes wrong (a string with text
in the first column), the result is no Python and the caller parses the file whole.
"""

from __future__ import annotations

import re

_DEF = re.compile(r"^(?P<indent> *)(?:async +)?def +(?P<name>\w+)")
# Deeper than a method of a class there are only functions inside bodies.
MAX_INDENT = 8
KEPT_IN_BODY = "pytest.skip("


def skeleton(text: str) -> str:
    """``text`` with ``...`` for each function body, except a test's body that calls ``pytest.skip``."""
    lines = text.split("\n")
    index = 0
    while index < len(lines):
        found = _DEF.match(lines[index])
        if found is None or len(found["indent"]) > MAX_INDENT:
            index += 1
            continue
        body = _signature_end(lines, index) + 1
        stop = _body_end(lines, body, len(found["indent"]))
        keep = found["name"].startswith("test") and any(KEPT_IN_BODY in line for line in lines[body:stop])
        if not keep and stop > body:
            lines[body] = " " * (len(found["indent"]) + 1) + "..."
            lines[body + 1 : stop] = [""] * (stop - body - 1)
        index = stop
    return "\n".join(lines)


def _signature_end(lines: list[str], index: int) -> int:
    """The line on which the ``def`` that starts at ``index`` ends with its colon."""
    depth = 0
    for at in range(index, len(lines)):
        line = lines[at].partition("  #")[0].rstrip()
        depth += line.count("(") + line.count("[") + line.count("{")
        depth -= line.count(")") + line.count("]") + line.count("}")
        if depth <= 0 and line.endswith(":"):
            return at
        if depth <= 0:
            return at  # a body on the same line: nothing to cut
    return len(lines) - 1


def _body_end(lines: list[str], start: int, indent: int) -> int:
    """The first line after the body: one that is not blank and not deeper than the ``def``."""
    deeper = " " * (indent + 1)
    at = start
    while at < len(lines) and (not lines[at].strip() or lines[at].startswith(deeper)):
        at += 1
    return at
