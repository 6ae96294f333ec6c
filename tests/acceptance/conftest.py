"""The shared assertions over one run: `pytest tests/acceptance --facts RUN/facts.json --checks-out RUN/checks.json`.

Each check of the run is one test. What a check found is written to ``--checks-out`` whether the tests pass or not.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.checks.finding import failed
from harness.errors import Misconfigured
from harness.facts import CheckResult, RunFacts
from harness.files import LARGEST_DATA_BYTES, read_bounded, write_atomically

_FACTS = pytest.StashKey[RunFacts]()
_FOUND = pytest.StashKey[dict[str, CheckResult]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("acceptance")
    group.addoption("--facts", type=Path, help="facts.json of a run")
    group.addoption("--checks-out", type=Path, help="where the list of check results is written")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--facts")
    if path is None:
        raise pytest.UsageError("tests/acceptance judges a run: give its facts with --facts RUN/facts.json")
    try:
        config.stash[_FACTS] = RunFacts.model_validate_json(read_bounded(path, LARGEST_DATA_BYTES))
    except (OSError, UnicodeDecodeError, Misconfigured) as error:
        raise pytest.UsageError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise pytest.UsageError(f"{path} holds no run facts: {first['msg']} at {first['loc']}") from error
    config.stash[_FOUND] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check_name" in metafunc.fixturenames:
        # Without a check there would be no test, and pytest would call an empty parametrization a skip: no verdict.
        metafunc.parametrize(
            "check_name", metafunc.config.stash[_FACTS].checks or [""], ids=lambda name: name or "none"
        )


@pytest.fixture
def facts(request: pytest.FixtureRequest) -> RunFacts:
    return request.config.stash[_FACTS]


@pytest.fixture
def found(request: pytest.FixtureRequest) -> dict[str, CheckResult]:
    return request.config.stash[_FOUND]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A check that raised instead of answering is the gate's fault, not the engine's: ``infra``, the error quoted."""
    report = yield
    callspec = getattr(item, "callspec", None)
    name = str(callspec.params.get("check_name", "")) if callspec is not None else ""
    results = item.config.stash[_FOUND]
    if name and call.excinfo is not None and name not in results:
        results[name] = failed(name, f"the check itself broke: {call.excinfo.exconly()}", word="infra")
        report.longrepr = f"infra: {results[name].summary}"
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--checks-out")
    results = session.config.stash.get(_FOUND, None)
    if path is None or results is None:
        return
    write_atomically(path, json.dumps([one.model_dump(mode="json") for one in results.values()], indent=1))
