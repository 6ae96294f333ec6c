"""How a check says what it found."""

from __future__ import annotations

from typing import Literal

from harness.facts import CheckResult

Figures = dict[str, float | int | str | None]
FailureWord = Literal["regression", "infra", "misconfigured", "unsupported"]
EVIDENCE_LINES = 5


def passed(name: str, summary: str, figures: Figures | None = None) -> CheckResult:
    """A pass shows the figures that prove it."""
    return CheckResult(name=name, ok=True, verdict="pass", summary=summary, figures=figures or {})


def failed(
    name: str,
    summary: str,
    figures: Figures | None = None,
    evidence: list[str] | tuple[str, ...] = (),
    word: FailureWord = "regression",
) -> CheckResult:
    """A failure: one sentence, and the first few lines of evidence."""
    shown = tuple(evidence[:EVIDENCE_LINES])
    if len(evidence) > EVIDENCE_LINES:
        shown += (f"... and {len(evidence) - EVIDENCE_LINES} more",)
    return CheckResult(name=name, ok=False, verdict=word, summary=summary, figures=figures or {}, evidence=shown)
