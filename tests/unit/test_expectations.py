"""Known refusals: which line makes a run `unsupported`, and that nothing is silently green."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from harness.errors import EngineFailed, Misconfigured
from harness.expectations import Context, Expectation, apply, expired, load, refused_on
from harness.report.terminal import Progress
from harness.run.concluded import concluded
from harness.run.execute import Run
from harness.run.interrupts import Interrupts
from harness.run.journal import Journal
from harness.run.request import Request
from harness.run.session import blank_result
from harness.verdict import Verdict

PROJECT = Path(__file__).resolve().parents[2]
LINE = "ValueError: EPLB is only supported on CUDA devices."
ENTRY = """
[[expect]]
deployments = ["eplb"]
platforms = ["cpu"]
vllm = ">=0.32,<0.34"
signature = "EPLB is only supported on"
reason = "EPLB is refused off the accelerators"
link = "vllm/config/parallel.py:10"
added = 2026-11-01
expires = 2026-12-31
"""
TODAY = date(2026, 11, 30)
CONTEXT = Context("eplb", "cpu", "0.32.0+cpu", "tiny")


def entries(tmp_path: Path, text: str = ENTRY) -> tuple[Expectation, ...]:
    path = tmp_path / "expectations.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, known={"eplb"})


@pytest.mark.parametrize("verdict", [Verdict.REGRESSION, Verdict.UNSUPPORTED])
def test_a_refusal_in_the_entrys_words_reads_unsupported(tmp_path: Path, verdict: Verdict) -> None:
    outcome = apply(verdict, LINE, CONTEXT, TODAY, entries(tmp_path))
    assert outcome.verdict is Verdict.UNSUPPORTED
    assert outcome.reason is not None
    assert "refused off the accelerators" in outcome.reason
    assert outcome.finding is None


@pytest.mark.parametrize("verdict", [Verdict.REGRESSION, Verdict.UNSUPPORTED])
def test_another_line_stays_what_it_was(tmp_path: Path, verdict: Verdict) -> None:
    outcome = apply(verdict, "RuntimeError: out of memory", CONTEXT, TODAY, entries(tmp_path))
    assert (outcome.verdict, outcome.reason, outcome.finding) == (verdict, None, None)


def test_a_failure_without_a_line_stays_what_it_was(tmp_path: Path) -> None:
    assert apply(Verdict.REGRESSION, None, CONTEXT, TODAY, entries(tmp_path)).verdict is Verdict.REGRESSION


def test_a_pass_where_a_refusal_is_expected_is_never_green(tmp_path: Path) -> None:
    outcome = apply(Verdict.PASS, None, CONTEXT, TODAY, entries(tmp_path))
    assert outcome.verdict is Verdict.MISCONFIGURED
    assert outcome.finding is not None
    assert "no longer holds" in outcome.finding


def test_a_pass_is_a_finding_after_the_entry_expired_too(tmp_path: Path) -> None:
    assert apply(Verdict.PASS, None, CONTEXT, date(2027, 6, 1), entries(tmp_path)).finding is not None


def test_an_expired_entry_is_not_believed_and_says_so(tmp_path: Path) -> None:
    known = entries(tmp_path)
    assert apply(Verdict.REGRESSION, LINE, CONTEXT, date(2026, 12, 31), known).verdict is Verdict.UNSUPPORTED
    outcome = apply(Verdict.REGRESSION, LINE, CONTEXT, date(2027, 1, 1), known)
    assert outcome.verdict is Verdict.REGRESSION
    assert outcome.finding is not None
    assert "expired on 2026-12-31" in outcome.finding
    assert expired(known, TODAY) == []
    assert len(expired(known, date(2027, 1, 1))) == 1


@pytest.mark.parametrize("verdict", [Verdict.INFRA, Verdict.INTERRUPTED, Verdict.MISCONFIGURED])
def test_what_is_not_the_engines_answer_is_never_renamed(tmp_path: Path, verdict: Verdict) -> None:
    assert apply(verdict, LINE, CONTEXT, TODAY, entries(tmp_path)).verdict is verdict


@pytest.mark.parametrize(
    "context",
    [
        Context("dp2", "cpu", "0.32.0+cpu", "tiny"),
        Context("eplb", "cuda", "0.32.0", "tiny"),
        Context("eplb", "cpu", "0.34.0", "tiny"),
        Context("eplb", "cpu", "0.31.2", "tiny"),
        Context("eplb", "cpu", "a build of mine", "tiny"),
    ],
)
def test_an_entry_speaks_only_of_its_own_deployment_platform_and_versions(tmp_path: Path, context: Context) -> None:
    assert apply(Verdict.REGRESSION, LINE, context, TODAY, entries(tmp_path)).verdict is Verdict.REGRESSION
    assert apply(Verdict.PASS, None, context, TODAY, entries(tmp_path)).verdict is Verdict.PASS


def test_an_entry_for_one_model_set_leaves_the_other_alone(tmp_path: Path) -> None:
    known = entries(tmp_path, ENTRY + 'models = ["hub"]\n')
    assert apply(Verdict.REGRESSION, LINE, CONTEXT, TODAY, known).verdict is Verdict.REGRESSION


def test_a_development_build_lies_in_its_range(tmp_path: Path) -> None:
    context = Context("eplb", "cpu", "0.33.1.dev7+gabc123", "tiny")
    assert apply(Verdict.REGRESSION, LINE, context, TODAY, entries(tmp_path)).verdict is Verdict.UNSUPPORTED


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('signature = "EPLB is only supported on"', 'signature = "(unclosed EPLB"', "regular expression"),
        ('signature = "EPLB is only supported on"', 'signature = "(EPLB is )*"', "every failure"),
        ('vllm = ">=0.32,<0.34"', 'vllm = "0.32 or so"', "version range"),
        ('link = "vllm/config/parallel.py:10"', 'link = "see chat"', "link"),
        ("expires = 2026-12-31", "expires = 2030-12-31", "180 days"),
        ("expires = 2026-12-31", "expires = 2026-10-31", "180 days"),
        ('reason = "EPLB is refused off the accelerators"\n', "", "reason"),
        ('deployments = ["eplb"]', 'deployments = ["eplp"]', "no deployment 'eplp'"),
        ('platforms = ["cpu"]', 'platfroms = ["cpu"]', "platfroms"),
        ("[[expect]]", "[[except]]", "[[expect]]"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path, old: str, new: str, says: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        entries(tmp_path, ENTRY.replace(old, new))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")


class Notes:
    """The one thing of a journal that the conclusion of a run uses."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def conclude(tmp_path: Path, known: tuple[Expectation, ...], body: Callable[[], None], **engine: str) -> Run:
    result = blank_result("eplb", "an-id", tmp_path)
    result.engine = dict(engine)
    request, notes = SimpleNamespace(expectations=known), Notes()
    run = Run(
        cast(Request, request), result, tmp_path, cast(Journal, notes), cast(Progress, None), cast(Interrupts, None)
    )

    def judged() -> None:
        result.verdict = Verdict.PASS
        body()

    concluded(run, judged)
    return run


def refuse() -> None:
    raise EngineFailed("decode-0 ended with 1.", root_line=LINE)


def test_a_run_that_the_engine_refuses_as_expected_ends_unsupported(tmp_path: Path) -> None:
    # Not added today: the entry must be believed on the day on which this test runs.
    known = tuple(entry.model_copy(update={"expires": date.max}) for entry in entries(tmp_path))
    run = conclude(tmp_path, known, refuse, platform="cpu", vllm="0.32.0")
    assert run.result.verdict is Verdict.UNSUPPORTED
    assert run.result.root_line == LINE
    assert conclude(tmp_path, (), refuse, platform="cpu", vllm="0.32.0").result.verdict is Verdict.REGRESSION
    assert conclude(tmp_path, known, refuse).result.verdict is Verdict.REGRESSION


def test_a_run_that_passes_against_an_expectation_ends_with_the_finding(tmp_path: Path) -> None:
    run = conclude(tmp_path, entries(tmp_path), lambda: None, platform="cpu", vllm="0.32.0")
    assert run.result.verdict is Verdict.MISCONFIGURED
    assert run.result.finding == run.result.reason
    assert "no longer holds" in run.result.reason


def test_a_refusal_after_the_entry_expired_stays_and_the_finding_is_said(tmp_path: Path) -> None:
    known = tuple(entry.model_copy(update={"expires": date.min}) for entry in entries(tmp_path))
    run = conclude(tmp_path, known, refuse, platform="cpu", vllm="0.32.0")
    assert run.result.verdict is Verdict.REGRESSION
    assert run.result.reason == "decode-0 ended with 1."
    assert "expired" in (run.result.finding or "")
    assert cast(Notes, run.journal).said == [run.result.finding]


def test_the_projects_own_table_can_be_used() -> None:
    load(PROJECT / "expectations.toml")


def test_what_the_cpu_engine_refuses_is_named_for_the_pipeline_and_nothing_else_is() -> None:
    refused = refused_on("cpu", load(PROJECT / "expectations.toml"))
    assert {"ep2", "ep2-eplb", "dp2", "pp2", "qwen35-hybrid-mrv2", "jamba-pp2-mrv2", "synthetic-acceptance"} <= refused
    assert not refused & {"eagle3-pd", "mtp-pd", "deepseek-tp2", "eagle3-dp2", "mimo-mtp"}
    assert refused_on("cuda", load(PROJECT / "expectations.toml")) == frozenset()
