"""Whether the drafter ran at all, and whether its counters add up."""

from __future__ import annotations

from harness.checks.finding import Figures, failed, passed
from harness.checks.select import drafting_servers, main_requests, main_servers, padded_drafts_by_engine, run_of
from harness.facts import CheckResult, RunFacts
from harness.measure.acceptance import Counts, acceptance, pool

# Every step after the first token of an answer drafts; a few of hub runs may not, next to the longest sequence.
SPECULATED_SHARE = 0.95


def drafts_on_every_engine(facts: RunFacts) -> CheckResult:
    """Every engine drafted, and all the time. Padded drafts of KV-loaded requests come without any drafter."""
    name = "drafts_on_every_engine"
    figures: Figures = {}
    problems: list[str] = []
    explained = 0
    for server in drafting_servers(facts):
        run = run_of(server)
        measured = acceptance(run)
        padded = padded_drafts_by_engine(facts, run)
        if len(measured.engines) != server.engines:
            problems.append(f"{server.name} shows {len(measured.engines)} engines, {server.engines} were asked for")
        for engine, counts in measured.engines.items():
            real = counts.drafts - padded.get(engine, 0)
            figures[f"{server.name}_engine_{engine}_drafts"] = real
            explained += real + counts.accepted
            if real <= 0:
                problems.append(
                    f"drafter never fired on {server.name} engine {engine}: {counts.drafts} drafts counted, "
                    f"{padded.get(engine, 0)} of them padding; acceptance is undefined ({server.url})"
                )
    engines = len(figures)
    # A draft yields one token and the accepted ones; the first token of an answer comes from its prefill.
    tokens = sum(max(0, (request.completion_tokens or 0) - 1) for request in main_requests(facts))
    if not problems and explained < SPECULATED_SHARE * tokens:
        problems.append(
            f"the drafter did not fire all the time: drafts and accepted tokens explain {explained} of {tokens} tokens"
        )
    figures["tokens_after_the_first"] = tokens
    if problems:
        return failed(name, problems[0], figures, problems)
    return passed(name, f"the drafter fired on every engine ({engines}), all the time", figures)


def acceptance_identity(facts: RunFacts) -> CheckResult:
    """``AL == 1 + sum(per position)`` and the order that counts of one drafter must keep, engine by engine."""
    name = "acceptance_identity"
    problems: list[str] = []
    all_counts: list[Counts] = []
    for server in drafting_servers(facts):
        for engine, counts in acceptance(run_of(server)).engines.items():
            all_counts.append(counts)
            problems += [f"{server.name} engine {engine}: {p}" for p in _inconsistencies(counts, server.requested.k)]
    pooled = pool(tuple(all_counts))
    if problems:
        return failed(name, problems[0], None, problems)
    return passed(
        name,
        f"acceptance length {pooled.length:.4f} = 1 + sum of {len(pooled.per_position)} draft positions",
        {"acceptance_length_raw": pooled.length},
    )


def _inconsistencies(counts: Counts, k: int | None) -> list[str]:
    if counts.drafts <= 0:
        return ["no drafts, acceptance is undefined"]
    problems = []
    if not counts.consistent:
        problems.append(
            f"acceptance length - 1 is {counts.accepted}/{counts.drafts}, the draft positions add up to "
            f"{sum(counts.per_position)}/{counts.drafts}"
        )
    if k is not None and len(counts.per_position) != k:
        problems.append(f"{len(counts.per_position)} draft positions for k = {k}")
    if list(counts.per_position) != sorted(counts.per_position, reverse=True):
        problems.append(f"a later draft position was accepted more often than an earlier one: {counts.per_position}")
    if not counts.accepted <= counts.draft_tokens <= counts.drafts * len(counts.per_position):
        problems.append(f"{counts.accepted} accepted of {counts.draft_tokens} draft tokens in {counts.drafts} drafts")
    return problems


def exact_counts(facts: RunFacts) -> CheckResult:
    """Tiny checkpoints: the engine's raw counts equal the computed ones, to the last one; prefill drafts nothing."""
    name = "exact_counts"
    expected = facts.expected_counts
    if expected is None:
        if facts.model_set == "tiny" or (facts.baseline is not None and facts.baseline.exact):
            return failed(name, "no computed counts for this tiny checkpoint", word="misconfigured")
        return passed(name, "not applicable: counts are computed for tiny checkpoints only", {"judged": "no"})
    want = Counts(expected.drafts, expected.draft_tokens, expected.accepted, expected.per_position)
    have = pool(tuple(acceptance(run_of(server)).pooled for server in drafting_servers(facts)))
    figures: Figures = {
        "drafts": have.drafts,
        "draft_tokens": have.draft_tokens,
        "accepted": have.accepted,
        "per_position": str(list(have.per_position)),
    }
    if have != want:
        return failed(name, f"counted {_show(have)}, computed {_show(want)}", figures)
    for server in main_servers(facts):
        if server.role == "prefill" and server.requested.method is not None:
            early = acceptance(run_of(server)).pooled
            if early.drafts or early.accepted:
                return failed(name, f"{server.name} counted {_show(early)}, computed 0 drafts ({server.url})", figures)
    return passed(name, f"counted as computed: {_show(have)}", figures)


def _show(counts: Counts) -> str:
    return (
        f"{counts.drafts} drafts, {counts.draft_tokens} draft tokens, {counts.accepted} accepted, "
        f"per position {list(counts.per_position)}"
    )
