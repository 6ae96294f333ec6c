"""Observations of the stages put together as the facts that the checks judge."""

from __future__ import annotations

import re
from pathlib import Path

from harness.facts import BaselineFacts, ExpectedText, RequestFacts, RouterFacts, RunFacts, ServerFacts
from harness.measure.effective import parse_effective
from harness.models import bos_token_id, template_adds_bos
from harness.plan.types import Plan, ServerPlan
from harness.run.request import Prepared, Request
from harness.run.requested import limits_of, requested_config
from harness.run.reuse import KeptReference
from harness.run.stage import ServerObservation, StageObservation
from harness.zoo import BOS_ID

# Start-up lines stand at the beginning; a log of a chatty engine can be gigabytes.
_START_OF_LOG_BYTES = 4 << 20

_WITHOUT_BASELINE = (
    "the run was asked for no baseline; record its value with "
    "`python -m harness baseline record RUN_DIR --reason ...`, then judge it"
)

_ADJUSTED = re.compile(r"^gate-plugin pid=(\d+) (applied|not-applicable) (.+)$", re.MULTILINE)


def start_of_log(path: Path) -> str:
    """The first megabytes of a log as text; empty when there is none."""
    try:
        with path.open("rb") as stream:
            return stream.read(_START_OF_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


def adjustments_made(server: ServerPlan, run_dir: Path) -> list[str]:
    """What the plugin says it changed in the processes of one server, each once."""
    text = start_of_log(run_dir / "logs" / server.log_name)
    return sorted({f"{outcome} {what}" for _, outcome, what in _ADJUSTED.findall(text)})


def facts_of(
    request: Request,
    prepared: Prepared,
    plan: Plan,
    stages: tuple[StageObservation, ...],
    baseline: BaselineFacts | None,
    run_dir: Path,
    kept: KeptReference | None = None,
) -> RunFacts:
    """The facts of a finished run. ``kept``: the reference part, where an earlier run of the invocation observed it."""
    deployment = request.deployment
    main = next(stage for stage in stages if stage.stage == "main")
    speculation = deployment.judged_role.speculation
    tiny = prepared.model_set == "tiny"
    servers = tuple(
        _server(request, plan, prepared, stage, observation, run_dir)
        for stage in stages
        for observation in stage.servers
    )
    requests = tuple(record for stage in stages for record in (*stage.requests, *stage.control))
    if kept is not None:
        servers, requests = (*servers, *kept.servers), (*requests, *kept.requests)
    compared = any(server.stage == "reference" for server in servers)
    return RunFacts(
        deployment=deployment.name,
        model_set=prepared.model_set,
        platform=prepared.engine.platform,
        disaggregated=deployment.transfer is not None,
        pads_loaded_requests=prepared.engine.pads_loaded_requests,
        method=speculation.method if speculation else None,
        k=speculation.k if speculation else None,
        bos_token_id=BOS_ID if tiny else bos_token_id(plan.models.target),
        add_bos_expected=not tiny and template_adds_bos(plan.models.target),
        prompts=len(prepared.workload.prompts),
        servers=servers,
        requests=requests,
        router=main.router or _direct(plan),
        expected_counts=prepared.workload.counts,
        expected_text=prepared.workload.texts or _reference_text(requests),
        reference_mode="computed" if tiny else ("server" if compared else "none"),
        baseline=baseline,
        baseline_error=None if baseline else _WITHOUT_BASELINE,
        checks=deployment.checks,
        limits=limits_of(deployment),
        expected_answers=prepared.workload.answers,
        reference_declined=request.options.reference == "none",
        reference_from=kept.run_id if kept is not None else None,
        gsm8k_through=request.options.gsm8k_through,
        evaluations=tuple(stage.evaluation for stage in stages if stage.evaluation is not None),
    )


def _direct(plan: Plan) -> RouterFacts | None:
    if any(stage.router for stage in plan.stages) or plan.kv_buffer is None:
        return None
    return RouterFacts(mode="direct", served=None, failed=None, per_worker={})


def _reference_text(requests: tuple[RequestFacts, ...]) -> tuple[ExpectedText, ...]:
    return tuple(
        ExpectedText(prompt_id=record.prompt_id, token_ids=record.token_ids, source="reference")
        for record in requests
        if record.stage == "reference" and record.token_ids is not None
    )


def _server(
    request: Request,
    plan: Plan,
    prepared: Prepared,
    stage: StageObservation,
    observation: ServerObservation,
    run_dir: Path,
) -> ServerFacts:
    server = observation.server
    log = run_dir / "logs" / server.log_name
    return ServerFacts(
        name=server.name,
        role=server.role,
        stage=stage.stage,
        url=server.url,
        log=str(log),
        engines=server.engines,
        ranks=server.ranks,
        requested=requested_config(request.deployment, plan, server, prepared.engine.platform),
        effective=parse_effective(start_of_log(log), server.name),
        windows=observation.pages,
        answered_after_run=observation.answered_after_run,
        after_error=observation.after_error,
        rearranged=observation.rearranged,
    )
