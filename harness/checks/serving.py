"""Who served the requests, and whether they still answer."""

from __future__ import annotations

from harness.checks.finding import Figures, failed, passed
from harness.checks.select import ANSWERED, REQUEST_SUCCESS, main_requests, main_servers, run_of
from harness.facts import CheckResult, RouterFacts, RunFacts
from harness.measure.metrics import by_label


def roles_served_all(facts: RunFacts) -> CheckResult:
    """Each server of the deployment, and the router, answered every request: no role was left out or helped out."""
    name = "roles_served_all"
    figures: Figures = {}
    problems: list[str] = []
    for server in main_servers(facts):
        reasons = by_label(run_of(server), REQUEST_SUCCESS, "finished_reason")
        served = round(sum(reasons.get(reason, 0) for reason in ANSWERED))
        figures[f"{server.name}_served"] = served
        if served != facts.prompts:
            problems.append(f"{server.name} served {served} of {facts.prompts} requests ({server.url})")
        other = {reason: round(count) for reason, count in reasons.items() if reason not in ANSWERED and count}
        if other:
            problems.append(f"{server.name} ended requests without an answer: {other}")
    if not figures:
        problems.append("no server was observed")
    if facts.disaggregated:
        problems += _router_problems(facts, facts.router, figures)
    if problems:
        return failed(name, "; ".join(problems[:2]), figures, problems)
    return passed(name, f"every role served {facts.prompts} of {facts.prompts} requests", figures)


def _router_problems(facts: RunFacts, router: RouterFacts | None, figures: Figures) -> list[str]:
    sent = main_requests(facts)
    if (router is None or router.mode == "direct") and sent and all(r.first_hop_s is not None for r in sent):
        # The harness made both hops of every request itself; the servers' own counters above are the proof.
        return []
    if router is None or router.mode == "direct":
        return ["what the router served is not known"]
    figures["router_served"] = router.served
    problems: list[str] = []
    if router.served != facts.prompts:
        problems.append(f"the router served {router.served} of {facts.prompts} requests")
    if router.failed:
        problems.append(f"the router counts {router.failed} failed hops")
    for server in main_servers(facts):
        # By the hop, not by the backend alone: a router that takes prefill for decode serves everybody.
        hops = router.prefill_hops if server.role == "prefill" else router.decode_hops
        routed = (hops if router.prefill_hops or router.decode_hops else router.per_worker).get(server.url)
        if routed != facts.prompts:
            problems.append(
                f"the router sent {routed or 0} of {facts.prompts} requests to {server.name} as its "
                f"{server.role} server ({server.url})"
            )
    return problems


def answers_after_run(facts: RunFacts) -> CheckResult:
    """A completion sent to each server after the workload came back: readiness pages outlive a dead engine."""
    name = "answers_after_run"
    servers = main_servers(facts)
    silent = [f"{s.name} ({s.url}): {s.after_error or 'no answer'}" for s in servers if not s.answered_after_run]
    if silent or not servers:
        return failed(
            name, f"{len(silent)} of {len(servers)} servers no longer answer: {'; '.join(silent[:2])}", None, silent
        )
    return passed(name, f"{len(servers)} of {len(servers)} servers still answer", {"servers": len(servers)})
