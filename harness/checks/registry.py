"""Every check by the name that deployments list."""

from __future__ import annotations

from collections.abc import Callable

from harness.checks.accuracy import gsm8k_threshold
from harness.checks.against_baseline import acceptance_length, acceptance_per_position
from harness.checks.configuration import effective_config
from harness.checks.drafting import acceptance_identity, drafts_on_every_engine, exact_counts
from harness.checks.experts import eplb_rearranged
from harness.checks.finding import failed
from harness.checks.output import output_matches_reference
from harness.checks.parity import (
    deterministic_all_match,
    identical_outputs,
    more_prompts_than_ranks,
    output_as_computed,
    token_match,
)
from harness.checks.requests import one_bos, requests_succeeded, token_counts
from harness.checks.serving import answers_after_run, roles_served_all
from harness.checks.stability import acceptance_windows
from harness.checks.synthetic import synthetic_acceptance
from harness.checks.transfer import kv_moved
from harness.errors import GateError
from harness.facts import CheckResult, RunFacts
from harness.verdict import Verdict

Check = Callable[[RunFacts], CheckResult]

CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        requests_succeeded,
        token_counts,
        one_bos,
        roles_served_all,
        drafts_on_every_engine,
        acceptance_identity,
        acceptance_length,
        acceptance_per_position,
        acceptance_windows,
        exact_counts,
        kv_moved,
        output_matches_reference,
        more_prompts_than_ranks,
        output_as_computed,
        token_match,
        identical_outputs,
        deterministic_all_match,
        eplb_rearranged,
        gsm8k_threshold,
        synthetic_acceptance,
        effective_config,
        answers_after_run,
    )
}


def judge(name: str, facts: RunFacts) -> CheckResult:
    """The result of one check. An unknown name fails; a missing metric or a counter reset is the check's failure."""
    check = CHECKS.get(name)
    if check is None:
        return failed(name, f"no check is called {name}; known are {', '.join(CHECKS)}", word="misconfigured")
    try:
        return check(facts)
    except GateError as error:
        return failed(
            name, str(error), word="misconfigured" if error.verdict is Verdict.MISCONFIGURED else "regression"
        )
