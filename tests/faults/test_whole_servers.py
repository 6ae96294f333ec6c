"""A server that goes wrong while it starts, answers or ends: the word of the run, its time, and what is left.

Every fault is a whole run against the fake engine. The fixture asserts afterwards that no process, segment, record,
port or lease of the run is left and that no stranger was touched; `Whole.run` that it kept its time.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.verdict import Verdict
from tests.faults.whole_run import Whole

pytestmark = pytest.mark.whole_run

PASS, REGRESSION, INFRA = Verdict.PASS, Verdict.REGRESSION, Verdict.INFRA


@dataclass(frozen=True)
class Fault:
    """``settings`` of one role of the fake engine; the run must end with ``verdict`` and a reason like ``reason``.

    ``name`` is the line of the catalogue in docs/faults.md.
    """

    name: str
    settings: dict[str, Any]
    verdict: Verdict
    reason: str = ""
    role: str = "decode"
    launch: str = "spawn"
    budgets: dict[str, float] = field(default_factory=dict)


LINE = "ValueError: MTP speculative decoding layer 78 weights missing from checkpoint"
# For servers that never get ready: the fake one needs a tenth of a second when it is well.
SHORT = {"ready_s": 3.0}
# The first request to each server is the smoke request; the workload has 16 and one more comes after it.
MIDDLE = 9
LAST = 18

STARTING = (
    Fault(
        "exits at once with an error line", {"say": LINE, "exit": 1}, REGRESSION, "decode-0 exited with code 1: .*78"
    ),
    Fault("exits at once, silently, with code 0", {"exit": 0}, REGRESSION, "decode-0 exited with code 0"),
    Fault("segfaults while it starts", {"signal": 11}, REGRESSION, "decode-0 was killed by SIGSEGV"),
    Fault("is killed while it starts, as by the OOM killer", {"signal": 9}, INFRA, "decode-0 was killed by SIGKILL"),
    Fault("aborts in the importer's fork", {"signal": 6}, REGRESSION, "killed by SIGABRT", launch="warm"),
    Fault(
        "never listens and says nothing", {"silent": True}, REGRESSION, "not ready after .*ConnectError", budgets=SHORT
    ),
    Fault("takes a second to listen", {"delay_s": 1.0}, PASS),
    Fault("is slower than its budget", {"delay_s": 60}, REGRESSION, "not ready after 1 s", budgets={"ready_s": 1}),
    Fault("the importer cannot import the engine", {"exit": 1}, REGRESSION, "vllm._C", role="importer", launch="warm"),
    Fault(
        "the importer hangs",
        {"hang": True},
        INFRA,
        "did not start prefill-0 in time",
        role="importer",
        launch="warm",
    ),
    Fault("503 on /health for ever", {"health": "503"}, REGRESSION, "HTTP 503", budgets=SHORT),
    Fault("404 on /health", {"health": "404"}, REGRESSION, "HTTP 404", budgets=SHORT),
    Fault(
        "resets every connection",
        {"health": "reset"},
        REGRESSION,
        "last seen: .*(Read|RemoteProtocol)Error",
        budgets=SHORT,
    ),
    Fault(
        "accepts and never answers",
        {"health": "hang"},
        REGRESSION,
        "last seen: .*(Timeout|nothing yet)",
        budgets={"ready_s": 3.0},
    ),
    Fault("answers half of /health", {"health": "half"}, REGRESSION, "last seen: .*RemoteProtocolError", budgets=SHORT),
    Fault("answers /health without end", {"health": "endless"}, REGRESSION, "sent more than", budgets=SHORT),
    Fault("answers /health a byte at a time", {"health": "trickle"}, REGRESSION, "not ready after", budgets=SHORT),
    Fault("sends /health to another host", {"health": "redirect"}, REGRESSION, "HTTP 307", budgets=SHORT),
    Fault("serves another model", {"models": "other-model"}, REGRESSION, "models another model", budgets=SHORT),
    Fault("20 MiB of model list", {"models": "20-mib"}, REGRESSION, "more than", budgets=SHORT),
    Fault("a model list that is HTML", {"models": "not-json"}, REGRESSION, "not a model list", budgets=SHORT),
    Fault("no side channel", {"side_channel": "absent"}, REGRESSION, "side channel", budgets=SHORT),
    Fault("a side channel that says nothing", {"side_channel": "silent"}, REGRESSION, "side channel", budgets=SHORT),
    Fault(
        "a side channel that speaks HTTP", {"side_channel": "http"}, REGRESSION, "is no ZeroMQ socket", budgets=SHORT
    ),
)

ANSWERING = (
    Fault("500 on the smoke request", {"completions": "500"}, REGRESSION, "smoke .*answered 500.*asked to fail"),
    Fault(
        "its engine process dies of the smoke request and the connection stays open",
        {"engine_process": True, "slow_s": 1.0, "dies_at": 1, "dies": "engine", "completions": "hang"},
        REGRESSION,
        "engine process .* of decode-0 died",
        # Longer than a run may take in these tests.
        budgets={"request_s": 300.0},
    ),
    Fault("200 with an error body", {"completions": "error-body"}, REGRESSION, "smoke .*the engine is dead"),
    Fault("prefill fails, decode is well", {"completions": "500"}, REGRESSION, "prefill hop", role="prefill"),
    Fault("error body in mid-run", {"completions": "error-body", "from": MIDDLE}, REGRESSION, "requests_succeeded"),
    Fault("reset in mid-run", {"completions": "reset", "from": MIDDLE}, REGRESSION, "requests_succeeded"),
    Fault("half answers in mid-run", {"completions": "half", "from": MIDDLE}, REGRESSION, "requests_succeeded"),
    Fault("answers in HTML", {"completions": "not-json"}, REGRESSION, "smoke .*not JSON"),
    Fault("answers nothing with 200", {"completions": "empty"}, REGRESSION, "smoke .*not JSON"),
    Fault("answers without choices", {"completions": "no-choices"}, REGRESSION, "smoke .*no choices"),
    Fault(
        "an endless answer",
        {"completions": "endless", "from": 17},
        REGRESSION,
        "requests_succeeded",
        budgets={"request_s": 1},
    ),
    Fault("20 MiB answers that are right", {"completions": "20-mib", "from": 16}, PASS),
    Fault("slow answers that are right", {"slow_s": 0.1}, PASS),
    Fault(
        "hangs in mid-run",
        {"completions": "hang", "from": 17},
        REGRESSION,
        "requests_succeeded",
        budgets={"request_s": 1},
    ),
    Fault(
        "trickles in mid-run",
        {"completions": "trickle", "from": 17},
        REGRESSION,
        "requests_succeeded",
        budgets={"request_s": 1},
    ),
    Fault(
        "is too slow for the drive budget",
        {"slow_s": 0.5},
        REGRESSION,
        r"of 16 requests were answered within the 1 s",
        budgets={"drive_s": 1},
    ),
    Fault("wrong text", {"completions": "wrong-text", "from": 17}, REGRESSION, "output_matches_reference"),
    Fault(
        "hangs after the last request",
        {"completions": "hang", "from": LAST},
        REGRESSION,
        "answers_after_run",
        budgets={"request_s": 2},
    ),
    Fault("exits in mid-run", {"dies_at": MIDDLE, "dies": "exit"}, REGRESSION, "code 1: .*the engine gave up"),
    Fault("is killed in mid-run", {"dies_at": MIDDLE, "dies": "kill"}, INFRA, "decode-0 was killed by SIGKILL"),
    Fault(
        "its engine process dies in mid-run",
        {"engine_process": True, "slow_s": 0.2, "dies_at": MIDDLE, "dies": "engine"},
        REGRESSION,
        "engine process .* of decode-0 died",
    ),
    Fault("is killed by the last request", {"dies_at": LAST, "dies": "kill"}, INFRA, "killed by SIGKILL"),
    Fault("no /metrics", {"metrics": "404"}, REGRESSION, "/metrics answered 404"),
    Fault("half of /metrics", {"metrics": "half"}, REGRESSION, "/metrics did not answer"),
    Fault("/metrics is HTML", {"metrics": "not-json"}, REGRESSION, "not a metrics page"),
    Fault("/metrics without end", {"metrics": "endless"}, REGRESSION, "sent more than"),
    Fault("/metrics a byte at a time", {"metrics": "trickle"}, REGRESSION, "did not send its whole page"),
    Fault("/metrics is empty", {"metrics": "empty", "from": MIDDLE}, REGRESSION, "no longer shows|does not show"),
    Fault("counters start again in mid-run", {"metrics_reset": MIDDLE}, REGRESSION, "restarted in the middle"),
    Fault("says nothing in its log", {"mute": True}, REGRESSION, "effective_config"),
)

ENDING = (
    Fault("ignores SIGTERM", {"ignore_sigterm": True, "engine_process": True}, PASS),
    Fault("ignores SIGTERM, forked from the importer", {"ignore_sigterm": True}, PASS, launch="warm"),
    Fault("leaves an orphan that ignores SIGTERM", {"double_fork": True}, PASS),
    Fault("leaves an orphan without environment", {"double_fork": True, "clear_environment": True}, PASS),
    Fault(
        "leaves an orphan without environment from a fork",
        {"double_fork": True, "clear_environment": True},
        PASS,
        launch="warm",
    ),
    Fault("sets its title", {"title": "VLLM::Engine", "engine_process": True}, PASS),
    Fault(
        "writes over its environment, as setproctitle does",
        {"overwrite_environment": True, "engine_process": True, "ignore_sigterm": True},
        PASS,
    ),
    Fault("has a child that starts another for each that ends", {"respawn": True, "ignore_sigterm": True}, PASS),
    Fault("starts a daemon when it is told to end", {"daemon_on_sigterm": True}, PASS),
    Fault("leaves segments", {"shared_memory": ["psm_$"], "ignore_sigterm": True}, PASS),
    Fault("leaves a semaphore", {"semaphore": "mp-$", "ignore_sigterm": True}, PASS),
    Fault("fails and ignores SIGTERM", {"completions": "500", "ignore_sigterm": True}, REGRESSION, "smoke"),
    Fault("fails and leaves an orphan", {"health": "503", "double_fork": True}, REGRESSION, "HTTP 503", budgets=SHORT),
)


def inject(whole: Whole, fault: Fault) -> None:
    def named(value: object) -> object:
        if isinstance(value, list):
            return [named(one) for one in value]
        return value.replace("$", whole.token) if isinstance(value, str) else value

    whole.faults(**{fault.role: {key: named(value) for key, value in fault.settings.items()}})
    whole.budgets = dataclasses.replace(whole.budgets, **fault.budgets)
    if fault.settings.get("metrics") == "trickle":
        whole.page_s = 2.0


@pytest.mark.parametrize("fault", [*STARTING, *ANSWERING, *ENDING], ids=lambda fault: fault.name)
def test_a_server_that(whole: Whole, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault.role == "importer":
        monkeypatch.setattr("harness.run.execute._IMPORT_S", 3)
    inject(whole, fault)
    outcome = whole.run(launch=fault.launch)
    assert outcome.result is not None
    assert outcome.result.verdict is fault.verdict, outcome.result.reason
    assert re.search(fault.reason, outcome.result.reason), outcome.result.reason
    assert outcome.shown.verdict is fault.verdict
    assert Path(outcome.result.run_dir, "report.html").stat().st_size < 4 << 20
