"""Whether the engine runs what was asked for."""

from __future__ import annotations

from harness.checks.finding import failed, passed
from harness.facts import CheckResult, RunFacts, ServerFacts

# Without these nothing is shown: an engine that says nothing of its drafter may well run none.
_MUST_BE_SAID = ("method", "k", "tensor_parallel", "connector")
_COMPARED = (
    "model",
    "method",
    "k",
    "drafter",
    "tensor_parallel",
    "data_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "connector",
    "kv_buffer_device",
    "kv_role",
    "load_failure_policy",
    "block_size",
    "max_model_len",
    "model_runner_v2",
)
# What the engine fills in by itself when nothing is asked: the MTP layers of the target are their own drafter.
_FREE_WHEN_UNASKED = (
    "drafter",
    "kv_buffer_device",
    "kv_role",
    "load_failure_policy",
    "block_size",
    "model_runner_v2",
)


def effective_config(facts: RunFacts) -> CheckResult:
    """Each server's own start-up log says what the plan asked for: method, k, ranks, connector, lengths.

    The reference too: one that drafts, or has another layout, is none.
    """
    name = "effective_config"
    servers = facts.servers
    problems: list[str] = []
    unsaid: list[str] = []
    compared = 0
    for server in servers:
        for field in _COMPARED:
            asked = getattr(server.requested, field)
            says = getattr(server.effective, field)
            if asked is None and field in _FREE_WHEN_UNASKED:
                continue
            if asked is not None and says is None:
                if field in _MUST_BE_SAID:
                    problems.append(f"{server.name} was asked for {field} = {asked!r} and its log does not say it")
                else:
                    unsaid.append(f"{server.name}.{field}")
                continue
            compared += 1
            if not _agrees(field, asked, says, enlarged=server.effective.block_enlarged):
                problems.append(f"{server.name} was asked for {field} = {asked!r} and runs {says!r}")
    problems += [f"{server.name}: {server.effective.source}" for server in servers if _silent(server)]
    figures: dict[str, float | int | str | None] = {"compared": compared, "not_said": ", ".join(unsaid) or None}
    if problems or not servers:
        return failed(name, "; ".join(problems[:2]) or "no server was observed", figures, problems)
    note = f"; not said: {', '.join(unsaid)}" if unsaid else ""
    return passed(name, f"{compared} settings of {len(servers)} servers as requested{note}", figures)


def _silent(server: ServerFacts) -> bool:
    return server.effective.tensor_parallel is None


def _agrees(field: str, asked: object, says: object, *, enlarged: bool) -> bool:
    if enlarged and field == "block_size" and isinstance(asked, int) and isinstance(says, int):
        # A hybrid model's attention blocks are enlarged to a multiple that holds one recurrent state.
        return says % asked == 0
    return asked == says
