"""Everything that can be known, or refused, before a device is leased."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.baselines import Query, load, select
from harness.engine.resolve import resolve
from harness.models import hub_checkpoints, tiny_checkpoints
from harness.plan.assign import assign_devices
from harness.plan.build import (
    Inputs,
    kv_buffers,
    launch_of,
    model_set_of,
    plugin_folder,
    requirements,
)
from harness.plan.gates import check_gates
from harness.run.journal import Journal
from harness.run.request import Prepared, Request
from harness.run.workload import evaluation_of, load_workload
from harness.runtime.devices import discover
from harness.runtime.occupancy import gpu_visible


def prepare(request: Request, journal: Journal, note: Callable[[str], None]) -> Prepared:
    """Engine, machine, checkpoints, prompts, baselines, in the order in which a mistake is cheapest to report."""
    deployment = request.deployment
    # First, because it needs nothing: a baseline without its certificate would cost a whole engine build to find.
    entries = load(request.baselines)
    evaluation = evaluation_of(deployment, request.options, request.inherited, offline=request.offline)
    with journal.phase("engine"):
        engine = resolve(
            request.engine_choice,
            request.locations.cache,
            note,
            host_python=request.host_python,
            gpu_visible=gpu_visible(),
            environ=request.inherited,
        )
    with journal.phase("prepare"):
        machine = discover(engine.platform, request.inherited)
        model_set = model_set_of(request.options, machine)
        check_gates(deployment, engine, machine, model_set)
        needs = requirements(deployment, request.options, model_set)
        assign_devices(needs, machine, request.options, model_set)
        launch_of(request.options, machine)
        if model_set == "tiny":
            checkpoints = tiny_checkpoints(deployment.models, request.locations.cache, engine.architectures)
        else:
            checkpoints = hub_checkpoints(deployment.models, offline=request.offline)
        workload = load_workload(
            deployment, model_set, request.options, checkpoints.zoo, padded=engine.pads_loaded_requests
        )
        workload = replace(workload, evaluation=evaluation)
        buffers = kv_buffers(deployment, request.options, machine)
        baselines = tuple(
            select(
                entries,
                Query(
                    deployment=deployment.name,
                    models=model_set,
                    platform=engine.platform,
                    kv_buffer=buffer,
                    prompts=len(workload.prompts),
                    max_tokens=max(prompt.max_tokens for prompt in workload.prompts),
                    workload_hash=workload.hash,
                ),
            )
            # Without this check nothing is compared with a recorded value: the reference runs beside.
            if request.baseline_required and "acceptance_length" in deployment.checks
            else None
            for buffer in buffers
        )
    return Prepared(
        engine=engine,
        machine=machine,
        model_set=model_set,
        checkpoints=checkpoints,
        workload=workload,
        inputs=Inputs(
            deployment=deployment,
            engine=engine,
            machine=machine,
            options=request.options,
            models=checkpoints.paths,
            # The tiny tables are exact in 16 bits; GPU attention kernels know no 32-bit floats.
            dtype="bfloat16" if model_set == "tiny" and engine.platform != "cpu" else checkpoints.dtype,
            inherited=request.inherited,
            plugin_path=plugin_folder(),
            router_python=request.router_python,
            passed=request.passed,
            extra_environment=request.extra_environment,
        ),
        needs=needs,
        buffers=buffers,
        baselines=baselines,
    )
