"""Text written by servers, made safe to show: no escape sequences, no control characters, no secrets."""

from __future__ import annotations

import re
from collections.abc import Collection

from harness.report.redact import redact_text

# CSI, OSC (ended by BEL or ST), the other string sequences, then two-character escapes.
_ESCAPE_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
)
# C0 (but tab and newline), DEL, C1, zero-width and bidirectional marks, which reorder what a reader sees;
# U+FFFE and U+FFFF are illegal in XML.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufffe\uffff]")
# A lone surrogate (from surrogateescape) cannot be written as UTF-8: the report itself would be lost.
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def plain(text: str, secrets: Collection[str] = ()) -> str:
    """``text`` as a reader should see it: lines kept, tabs expanded, secrets (and the known ``secrets``) masked."""
    # A carriage return rewinds a progress bar; kept as a line end, so no stretch of the text is hidden by the next.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub("", _ESCAPE_SEQUENCE.sub("", text))
    # Redaction comes last: an escape sequence in the middle of a token would hide it.
    return redact_text(_SURROGATE.sub("\ufffd", text).expandtabs(4), secrets)


def one_line(text: str, limit: int | None = None) -> str:
    """`plain` text on one line, cut to ``limit`` characters."""
    line = " ".join(plain(text).split())
    if limit is not None and len(line) > limit:
        return f"{line[: limit - 1]}…"
    return line
