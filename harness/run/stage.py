"""One stage on live servers: launch, prove ready, drive, read what they counted, ask once more, stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.deployments import Deployment
from harness.drive.client import Encoded, Sending, ask, drive, encode
from harness.drive.handoff import Handoff, Route, Through
from harness.errors import EngineFailed
from harness.facts import RequestFacts, RouterFacts, Sample, Snapshot
from harness.measure.metrics import fetch, has, total
from harness.measure.router import router_facts
from harness.plan.types import ServerPlan, Stage
from harness.run.journal import Journal
from harness.run.workload import Workload

# Windows of a run whose acceptance is judged apart, so that a collapse half-way is not averaged away.
_WINDOWS = 4

# The engine adds a request's counts to its metrics after the answer is on its way. Generous: an idle engine needs
# milliseconds, and a count that never comes is judged as missing.
_SETTLE_S = 10.0
_SETTLE_POLL_S = 0.1

_FINISHED = "vllm:request_success_total"


@dataclass(frozen=True)
class ServerObservation:
    """One server over the stage: its /metrics pages in time order, and whether it still answered at the end."""

    server: ServerPlan
    pages: tuple[Snapshot, ...]
    answered_after_run: bool
    after_error: str | None


@dataclass(frozen=True)
class StageObservation:
    """What one stage observed. ``router_error``: why the router's own counts could not be read."""

    stage: Literal["main", "reference"]
    servers: tuple[ServerObservation, ...]
    requests: tuple[RequestFacts, ...]
    router: RouterFacts | None
    router_error: str | None


def route_of(stage: Stage) -> Route:
    """How requests reach this stage: its router, the harness's own handoff, or its single server."""
    if stage.router is not None:
        return Through(stage.router.url)
    if {server.role for server in stage.servers} >= {"prefill", "decode"}:
        return Handoff(stage.server("prefill").url, stage.server("decode").url)
    return Through(stage.servers[0].url)


def encode_workload(workload: Workload, stage: Stage, model: str) -> tuple[Encoded, ...]:
    """Token ids from the engine's own chat template, the same ids for every server; text prompts stay text."""
    return encode(workload.prompts, stage.servers[0].url, model)


def smoke(workload: Workload, stage: Stage, deployment: Deployment) -> None:
    """One completion through the whole route before anything is counted. Raises EngineFailed quoting the answer."""
    answer = _ask_smoke(workload, route_of(stage), stage, deployment)
    if problem := problem_of(answer):
        raise EngineFailed(f"The smoke request did not come back right: {problem}; see the servers' logs.")


def problem_of(answer: RequestFacts) -> str | None:
    """Why an answer is not a completion of the asked length, in the server's own words where it has some."""
    if answer.error or answer.body_error:
        return answer.error or f"HTTP {answer.status} with an error inside: {answer.body_error}"
    if not answer.completion_tokens:
        return f"HTTP {answer.status} without tokens"
    return None


def _ask_smoke(workload: Workload, route: Route, stage: Stage, deployment: Deployment) -> RequestFacts:
    encoded = Encoded(workload.smoke, workload.smoke.text or "")
    return ask(encoded, route, _sending(workload, stage, deployment, concurrency=1))


def _sending(workload: Workload, stage: Stage, deployment: Deployment, concurrency: int) -> Sending:
    return Sending(
        model=stage.servers[0].served_model,
        stage=stage.name,
        ignore_eos=workload.ignore_eos,
        request_timeout_s=deployment.timeouts.request_s,
        concurrency=concurrency,
    )


def observe(
    deployment: Deployment,
    stage: Stage,
    workload: Workload,
    run_dir: Path,
    journal: Journal,
    alive: Callable[[], None],
    progress: Callable[[int, int], None],
) -> StageObservation:
    """Drive the workload and read the servers before, during and after. The servers must be ready and smoke-tested.

    ``alive`` raises when a server died or the user interrupted.
    """
    pages = _Pages(stage, run_dir)
    encoded = encode_workload(workload, stage, stage.servers[0].served_model)
    pages.take()
    router_before = pages.router()
    marks = _window_marks(len(encoded))

    def on_progress(done: int, of: int) -> None:
        progress(done, of)
        if done in marks:
            pages.take()

    requests = drive(
        encoded,
        route_of(stage),
        _sending(workload, stage, deployment, workload.concurrency),
        records=run_dir / "requests.jsonl",
        budget_s=deployment.timeouts.drive_s,
        alive=alive,
        on_progress=on_progress,
    )
    answered = sum(1 for request in requests if request.status is not None)
    pages.settle(answered, alive)
    router, router_error = _router(pages, router_before)
    journal.detail("asking every server once more")
    return StageObservation(
        stage=stage.name,
        servers=tuple(_after(server, pages, workload, stage, deployment) for server in stage.servers),
        requests=requests,
        router=router,
        router_error=router_error,
    )


def _after(
    server: ServerPlan, pages: _Pages, workload: Workload, stage: Stage, deployment: Deployment
) -> ServerObservation:
    # Straight to the server: a router would hide which of the two no longer answers.
    problem = problem_of(_ask_smoke(workload, Through(server.url), stage, deployment))
    return ServerObservation(server, pages.of(server), answered_after_run=problem is None, after_error=problem)


def _router(pages: _Pages, before: Snapshot | None) -> tuple[RouterFacts | None, str | None]:
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


class _Pages:
    """The /metrics pages of a stage's servers, kept in order and written to metrics/."""

    def __init__(self, stage: Stage, run_dir: Path) -> None:
        self._stage = stage
        self._folder = run_dir / "metrics"
        self._folder.mkdir(exist_ok=True)
        self._taken: dict[str, list[Snapshot]] = {server.name: [] for server in stage.servers}

    def take(self) -> None:
        for server in self._stage.servers:
            self._keep(server, fetch(server.metrics_url))

    def of(self, server: ServerPlan) -> tuple[Snapshot, ...]:
        return tuple(self._taken[server.name])

    def router(self) -> Snapshot | None:
        """The router's own page; None without a router."""
        router = self._stage.router
        return None if router is None else fetch(f"http://{router.host}:{router.metrics_port}/metrics")

    def settle(self, answered: int, alive: Callable[[], None]) -> None:
        """Take the closing page of each server once it counts every answer, or after `_SETTLE_S` as it then is."""
        for server in self._stage.servers:
            first = self._taken[server.name][0]
            deadline_s = time.monotonic() + _SETTLE_S
            page = fetch(server.metrics_url)
            while _finished(page) - _finished(first) < answered and time.monotonic() < deadline_s:
                alive()
                time.sleep(_SETTLE_POLL_S)
                page = fetch(server.metrics_url)
            self._keep(server, page)

    def _keep(self, server: ServerPlan, page: Snapshot) -> None:
        taken = self._taken[server.name]
        text = "".join(f"{_line(sample)}\n" for sample in page.samples)
        (self._folder / f"{server.name}-{len(taken)}.prom").write_text(text, "utf-8")
        taken.append(page.model_copy(update={"samples": tuple(s for s in page.samples if _worth_keeping(s))}))


def _finished(page: Snapshot) -> float:
    return total(page, _FINISHED) if has(page, _FINISHED) else 0.0


def _worth_keeping(sample: Sample) -> bool:
    # Histogram buckets are nine tenths of a page and no check reads them; the whole page is in metrics/.
    return sample.name.startswith("vllm:") and not sample.name.endswith("_bucket")


def _line(sample: Sample) -> str:
    labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
    return f"{sample.name}{{{labels}}} {sample.value!r}"
