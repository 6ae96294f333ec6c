"""One stage on live servers: launch, prove ready, drive, read what they counted, ask once more, stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.deployments import Deployment
from harness.drive.client import Encoded, Sending, ask, drive, encode
from harness.drive.handoff import Handoff, Route, Through
from harness.drive.lm_eval import evaluate
from harness.errors import EngineFailed
from harness.facts import EvaluationFacts, RequestFacts, RequestStage, RouterFacts, Snapshot
from harness.measure.agreement import agreement, reaches, within_limits
from harness.measure.router import router_facts
from harness.plan.types import Part, ServerPlan, Stage, StageName
from harness.run.journal import Journal
from harness.run.pages import Pages
from harness.run.requested import limits_of
from harness.run.workload import Workload
from harness.runtime.logs import root_error

# Windows of a run whose acceptance is judged apart, so that a collapse half-way is not averaged away.
_WINDOWS = 4


@dataclass(frozen=True)
class ServerObservation:
    """One server over the stage: its /metrics pages in time order, and whether it still answered at the end.

    ``rearranged``: how often experts had been rearranged when each page was taken; None without load balancing.
    """

    server: ServerPlan
    pages: tuple[Snapshot, ...]
    answered_after_run: bool
    after_error: str | None
    rearranged: tuple[int, ...] | None


@dataclass(frozen=True)
class StageObservation:
    """What one part of a stage observed. ``router_error``: why the router's own counts could not be read.

    ``control``: the answers of the reference to the same prompts once more; empty where nothing called for it.
    ``evaluation``: what lm-eval found afterwards; of the reference only where the judged servers fell short.
    """

    stage: StageName
    servers: tuple[ServerObservation, ...]
    requests: tuple[RequestFacts, ...]
    router: RouterFacts | None
    router_error: str | None
    control: tuple[RequestFacts, ...] = ()
    evaluation: EvaluationFacts | None = None


def route_of(part: Part) -> Route:
    """How requests reach these servers: their router, the harness's own handoff, or the single server."""
    if part.router is not None:
        return Through(part.router.url)
    if {server.role for server in part.servers} >= {"prefill", "decode"}:
        return Handoff(part.server("prefill").url, part.server("decode").url)
    return Through(part.servers[0].url)


def encode_workload(workload: Workload, part: Part, model: str) -> tuple[Encoded, ...]:
    """Token ids from the engine's own chat template, the same ids for every server; text prompts stay text."""
    return encode(workload.prompts, part.servers[0].url, model)


def smoke(
    workload: Workload,
    stage: Stage,
    deployment: Deployment,
    logs: Path,
    alive: Callable[[], None],
    secrets: frozenset[str] = frozenset(),
) -> None:
    """One completion through each route before anything is counted. Raises EngineFailed quoting the answer.

    ``logs``: the folder of the servers' logs, to point at the one that says why. ``alive``: see `observe`. ``secrets``:
    see `Sending`.
    """
    for part in stage.parts:
        answer = _ask_smoke(workload, route_of(part), part, deployment, secrets, alive)
        if problem := problem_of(answer):
            log = _log_with_cause(part, logs)
            raise EngineFailed(
                f"The smoke request to {part.servers[-1].name} did not come back right: {problem}; "
                f"see {log if log is not None else 'their logs'}.",
                log=log,
            )


def _log_with_cause(part: Part, logs: Path) -> Path | None:
    """The log of the first server that says what went wrong."""
    for server in part.servers:
        path = logs / server.log_name
        if root_error(path) is not None:
            return path
    return None


def problem_of(answer: RequestFacts) -> str | None:
    """Why an answer is not a completion of the asked length, in the server's own words where it has some."""
    if answer.error or answer.body_error:
        return answer.error or f"HTTP {answer.status} with an error inside: {answer.body_error}"
    if not answer.completion_tokens:
        return f"HTTP {answer.status} without tokens"
    return None


def _ask_smoke(
    workload: Workload,
    route: Route,
    part: Part,
    deployment: Deployment,
    secrets: frozenset[str],
    alive: Callable[[], None],
) -> RequestFacts:
    encoded = Encoded(workload.smoke, workload.smoke.text or "")
    return ask(encoded, route, _sending(workload, part, part.name, deployment, 1, secrets), alive)


def _sending(
    workload: Workload,
    part: Part,
    stage: RequestStage,
    deployment: Deployment,
    concurrency: int,
    secrets: frozenset[str],
) -> Sending:
    return Sending(
        model=part.servers[0].served_model,
        stage=stage,
        ignore_eos=workload.ignore_eos,
        request_timeout_s=deployment.timeouts.request_s,
        concurrency=concurrency,
        secrets=secrets,
        top_logprobs=workload.top_logprobs,
    )


def observe(
    deployment: Deployment,
    stage: Stage,
    workload: Workload,
    run_dir: Path,
    journal: Journal,
    alive: Callable[[], None],
    progress: Callable[[int, int], None],
    earlier: tuple[StageObservation, ...] = (),
    secrets: frozenset[str] = frozenset(),
) -> tuple[StageObservation, ...]:
    """Drive the workload through each part of the stage and read its servers before, during and after.

    The servers must be ready and smoke-tested. ``alive`` raises when a server died or the user interrupted.
    ``earlier``: what earlier stages observed; a reference is asked a second time when it disagrees with them.
    """
    found: list[StageObservation] = []
    for part in stage.parts:
        found.append(
            _observe_part(deployment, part, workload, run_dir, journal, alive, progress, (*earlier, *found), secrets)
        )
    return tuple(found)


def _observe_part(
    deployment: Deployment,
    part: Part,
    workload: Workload,
    run_dir: Path,
    journal: Journal,
    alive: Callable[[], None],
    progress: Callable[[int, int], None],
    earlier: tuple[StageObservation, ...],
    secrets: frozenset[str],
) -> StageObservation:
    pages = Pages(part, run_dir)
    encoded = encode_workload(workload, part, part.servers[0].served_model)
    pages.take()
    router_before = pages.router()
    marks = _window_marks(len(encoded))

    def on_progress(done: int, of: int) -> None:
        progress(done, of)
        if done in marks:
            pages.take()

    def send(to: RequestStage, on_progress: Callable[[int, int], None]) -> tuple[RequestFacts, ...]:
        return drive(
            encoded,
            route_of(part),
            _sending(workload, part, to, deployment, workload.concurrency, secrets),
            records=run_dir / "requests.jsonl",
            budget_s=deployment.timeouts.drive_s,
            alive=alive,
            on_progress=on_progress,
        )

    requests = send(part.name, on_progress)
    answered = sum(1 for request in requests if request.status is not None)
    pages.settle(answered, deployment.timeouts.settle_s, alive)
    router, router_error = _router(pages, router_before)
    control: tuple[RequestFacts, ...] = ()
    if part.name == "reference" and _disagrees(deployment, workload, earlier, requests):
        journal.note("answers differ from the reference's: asking the reference a second time, as a control")
        control = send("control", progress)
    evaluation = None
    if workload.evaluation is not None and (part.name == "main" or _falls_short(deployment, earlier)):
        # Only now: what it asks is in no page of the workload.
        journal.detail(f"lm-eval asks {part.servers[0].name} {workload.evaluation.questions} questions")
        evaluation = evaluate(
            workload.evaluation,
            part.servers[0].url,
            part.servers[0].served_model,
            part.name,
            run_dir / "lm-eval" / part.name,
            concurrency=workload.concurrency,
            budget_s=deployment.timeouts.drive_s,
            alive=alive,
        )
    journal.detail("asking every server once more")
    return StageObservation(
        stage=part.name,
        servers=tuple(_after(server, pages, workload, part, deployment, secrets, alive) for server in part.servers),
        requests=requests,
        router=router,
        router_error=router_error,
        control=control,
        evaluation=evaluation,
    )


def _falls_short(deployment: Deployment, observed: tuple[StageObservation, ...]) -> bool:
    """Whether lm-eval found the judged servers below the limit: then the reference is evaluated, as a control."""
    found = [one.evaluation for one in observed if one.evaluation is not None]
    return any(not reaches(one.right, one.asked, deployment.limits.gsm8k or 0.0) for one in found)


def _disagrees(
    deployment: Deployment,
    workload: Workload,
    observed: tuple[StageObservation, ...],
    reference: tuple[RequestFacts, ...],
) -> bool:
    """Whether the judged answers stray from the reference's further than the deployment allows."""
    main = tuple(request for one in observed if one.stage == "main" for request in one.requests)
    limits = limits_of(deployment)
    found = agreement(reference, main, limits.compared_tokens)
    forced = {request.prompt_id for request in main if not request.open_ended}
    if any(not one.identical for prompt, one in found.matches.items() if prompt in forced):
        return True
    return not within_limits(found, limits, exact=bool(workload.texts))


def _after(
    server: ServerPlan,
    pages: Pages,
    workload: Workload,
    part: Part,
    deployment: Deployment,
    secrets: frozenset[str],
    alive: Callable[[], None],
) -> ServerObservation:
    # Straight to the server: a router would hide which of the two no longer answers.
    problem = problem_of(_ask_smoke(workload, Through(server.url), part, deployment, secrets, alive))
    return ServerObservation(
        server,
        pages.of(server),
        answered_after_run=problem is None,
        after_error=problem,
        rearranged=pages.rearranged(server),
    )


def _router(pages: Pages, before: Snapshot | None) -> tuple[RouterFacts | None, str | None]:
    if before is None:
        return None, None
    try:
        after = pages.router()
        return (router_facts(before, after) if after is not None else None), None
    except EngineFailed as error:
        return None, str(error)


def _window_marks(prompts: int) -> frozenset[int]:
    """After how many answers a page is taken: the inner borders of `_WINDOWS` equal parts."""
    return frozenset(prompts * part // _WINDOWS for part in range(1, _WINDOWS)) - {0, prompts}
