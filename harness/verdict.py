"""The words a run can end with, and the exit code of each."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """One word per run. ``INFRA`` is the only one that may be retried (once, and recorded)."""

    PASS = "pass"
    REGRESSION = "regression"
    MISCONFIGURED = "misconfigured"
    INFRA = "infra"
    UNSUPPORTED = "unsupported"
    INTERRUPTED = "interrupted"

    @property
    def exit_code(self) -> int:
        """Exit code of ``python -m harness``; nox flattens every non-zero one to 1.

        2 is also what the option parser uses for an unknown option, which is the same kind of mistake.
        """
        return _EXIT_CODE[self]


_EXIT_CODE = {
    Verdict.PASS: 0,
    Verdict.REGRESSION: 1,
    Verdict.MISCONFIGURED: 2,
    Verdict.INFRA: 3,
    Verdict.UNSUPPORTED: 4,
    Verdict.INTERRUPTED: 130,
}

# Worst first: what a session of several runs (one per KV buffer device) ends with.
_SEVERITY = (
    Verdict.INTERRUPTED,
    Verdict.REGRESSION,
    Verdict.MISCONFIGURED,
    Verdict.INFRA,
    Verdict.UNSUPPORTED,
    Verdict.PASS,
)


def worst(verdicts: list[Verdict]) -> Verdict:
    """The verdict of several runs together; nothing run is ``MISCONFIGURED``, never ``PASS``."""
    return min(verdicts, key=_SEVERITY.index, default=Verdict.MISCONFIGURED)
