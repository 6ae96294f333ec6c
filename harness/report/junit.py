"""One JUnit file out of many runs. A run that left none is an error in it, never an absence."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from pydantic import ValidationError

from harness.errors import Misconfigured
from harness.files import LARGEST_DATA_BYTES, read_bounded, write_atomically
from harness.report.plaintext import one_line, plain
from harness.result import Result, read_result
from harness.verdict import Verdict

JUNIT_NAME = "junit.xml"
_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def merge_junit(run_dirs: Sequence[Path]) -> str:
    """The junit.xml of every run in one document, a suite per run named after its deployment.

    An error test case named ``verdict`` is added where a run has no usable junit.xml or result.json, ran no test, or
    ended in another verdict than ``pass`` though no test of it failed (a teardown that went wrong, for one).
    """
    root = ElementTree.Element("testsuites", name="spec-decode-gate")
    for run_dir in run_dirs:
        root.extend(_suites(run_dir))
    for suite in root:
        _count(suite, suite.findall("testcase"))
    _count(root, root.findall("testsuite/testcase"))
    ElementTree.indent(root, " ")
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def write_merged(run_dirs: Sequence[Path], path: Path) -> None:
    """Write `merge_junit` of ``run_dirs`` to ``path``. Raises OSError."""
    write_atomically(path, merge_junit(run_dirs))


def _suites(run_dir: Path) -> list[ElementTree.Element]:
    result = _result(run_dir)
    name = _suite_name(result) if isinstance(result, Result) else run_dir.name
    parsed = _parse(run_dir / JUNIT_NAME)
    suites = [_clean(suite, name) for suite in parsed] if not isinstance(parsed, str) else []
    problem = _problem(result, parsed if isinstance(parsed, str) else None, suites)
    if problem is not None:
        if not suites:
            suites.append(ElementTree.Element("testsuite", name=one_line(name)))
        suites[0].append(_error_case(name, problem, result if isinstance(result, Result) else None))
    return suites


def _suite_name(result: Result) -> str:
    return f"{result.deployment} ({result.kv_buffer})" if result.kv_buffer else result.deployment


def _result(run_dir: Path) -> Result | str:
    """The result of the run, or one sentence on why there is none."""
    try:
        return read_result(run_dir)
    except OSError as error:
        return f"{run_dir.name} left no readable result.json ({error.strerror})."
    except (ValidationError, UnicodeDecodeError, Misconfigured) as error:
        return f"The result.json of {run_dir.name} is not one: {one_line(str(error), 200)}"


def _parse(path: Path) -> list[ElementTree.Element] | str:
    """The suites of a junit.xml, or one sentence on why it cannot be read."""
    try:
        content = read_bounded(path, LARGEST_DATA_BYTES)
    except OSError as error:
        return f"There is no readable {path.name} ({error.strerror})."
    except (UnicodeDecodeError, Misconfigured) as error:
        return f"{path.name} cannot be used: {error}"
    # Entities are the one way a small XML file becomes a large one; pytest writes none.
    if "<!DOCTYPE" in content:
        return f"{path.name} declares a document type, which pytest never writes."
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        return f"{path.name} is not XML: {error}."
    return [root] if root.tag == "testsuite" else root.findall("testsuite")


def _problem(result: Result | str, unreadable: str | None, suites: Sequence[ElementTree.Element]) -> str | None:
    """Why the test cases alone would tell the wrong story; None when they tell the right one."""
    if isinstance(result, str):
        return result
    failed = any(suite.find(f"testcase/{tag}") is not None for suite in suites for tag in ("failure", "error"))
    if result.verdict is not Verdict.PASS:
        return None if failed else f"{result.verdict.value}: {result.reason}"
    if unreadable is not None:
        return f"The run says pass, but {unreadable[0].lower()}{unreadable[1:]}"
    if not any(suite.find("testcase") is not None for suite in suites):
        return f"The run says pass, but its {JUNIT_NAME} holds no test."
    return None


def _error_case(name: str, problem: str, result: Result | None) -> ElementTree.Element:
    seconds = result.wall_seconds if result is not None else 0.0
    case = ElementTree.Element("testcase", classname=one_line(name), name="verdict", time=f"{seconds:.3f}")
    error = ElementTree.SubElement(case, "error", message=one_line(problem))
    if result is not None:
        error.text = "\n".join(plain(text) for text in (result.root_line, result.log, result.next_step) if text)
    return case


def _clean(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    """A copy called ``name`` without secrets and control characters in any text or attribute."""
    suite = copy.deepcopy(suite)
    for element in suite.iter():
        element.text = plain(element.text) if element.text else element.text
        element.tail = None
        for key, value in element.attrib.items():
            element.set(key, plain(value))
    suite.set("name", one_line(name))
    return suite


def _count(element: ElementTree.Element, cases: Sequence[ElementTree.Element]) -> None:
    """Count again: totals copied from the parts would miss the cases added here."""
    element.set("tests", str(len(cases)))
    for attribute, tag in _COUNTED.items():
        element.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
    element.set("time", f"{sum(_seconds(case) for case in cases):.3f}")


def _seconds(case: ElementTree.Element) -> float:
    try:
        return float(case.get("time", "0"))
    except ValueError:
        return 0.0
