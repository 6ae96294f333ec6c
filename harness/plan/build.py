"""From a deployment to an exact plan. Pure: equal inputs give equal plans, so plans are snapshot-tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.deployments import Deployment, KvBuffer, ModelSetName, Role
from harness.engine.info import EngineInfo
from harness.errors import Misconfigured
from harness.plan.arguments import gdn_without_flashinfer, server_argv
from harness.plan.assign import usable
from harness.plan.environment import LOOPBACK, engine_environment, router_environment
from harness.plan.memory import check_shared
from harness.plan.reference import placement, roles_of
from harness.plan.types import (
    Allocation,
    LaunchMode,
    Machine,
    ModelPaths,
    Needs,
    Options,
    Plan,
    PortRun,
    RouterPlan,
    ServerPlan,
    Stage,
    StageName,
)

# Speed-only changes made inside the engine on CPU, where spinning threads starve the servers of two cores.
_CPU_ADJUSTMENTS = ("nixl-progress-delay", "shm-wakeup")

# One HTTP port, then one handshake port per engine of a data-parallel server.
_ROUTER = "router-0"


@dataclass(frozen=True)
class Inputs:
    """Everything a plan depends on, gathered once at the edge."""

    deployment: Deployment
    engine: EngineInfo
    machine: Machine
    options: Options
    models: ModelPaths
    dtype: str | None
    inherited: Mapping[str, str]
    plugin_path: Path
    router_python: Path | None
    passed: frozenset[str] = frozenset()
    extra_environment: Mapping[str, Mapping[str, str]] | None = None


def model_set_of(options: Options, machine: Machine) -> ModelSetName:
    """``auto`` is hub where an accelerator is visible and tiny elsewhere."""
    if options.models != "auto":
        return options.models
    return "tiny" if machine.platform == "cpu" else "hub"


def launch_of(options: Options, machine: Machine) -> LaunchMode:
    """``auto``: fork warm servers on CPU; spawn, as production does, where a device context cannot be forked."""
    if options.launch == "auto":
        return "warm" if machine.platform == "cpu" else "spawn"
    if options.launch == "warm" and machine.platform != "cpu":
        raise Misconfigured(
            f"--launch warm forks servers after importing the engine, which {machine.platform} contexts "
            "do not survive; use --launch spawn."
        )
    return options.launch


def kv_buffers(deployment: Deployment, options: Options, machine: Machine) -> tuple[KvBuffer | None, ...]:
    """The KV buffer devices to run, one run each. On CPU device memory is host memory, so there is one."""
    if deployment.transfer is None:
        return (None,)
    if options.kv_buffer is not None:
        return (options.kv_buffer,)
    return deployment.transfer.buffers if machine.platform != "cpu" else deployment.transfer.buffers[:1]


def requirements(deployment: Deployment, options: Options, model_set: ModelSetName) -> Needs:
    """What to lease."""
    roles = roles_of(deployment, options, model_set)
    ports = [run for role in roles if role.name != "reference" for run in _ports(role)]
    if deployment.transfer is not None and options.router == "vllm-router":
        ports += [PortRun(f"{_ROUTER}/http", 1), PortRun(f"{_ROUTER}/metrics", 1)]
    ports += [run for role in roles if role.name == "reference" for run in _ports(role)]
    return Needs({server_name(role): role.parallel.world_size for role in roles}, tuple(ports))


def _ports(role: Role) -> list[PortRun]:
    name = server_name(role)
    ports = [PortRun(f"{name}/http", 1)]
    if role.name in ("prefill", "decode"):
        ports.append(PortRun(f"{name}/nixl", role.parallel.world_size))
    if role.parallel.dp > 1:
        ports.append(PortRun(f"{name}/rpc", 1))
    return ports


def server_name(role: Role) -> str:
    return f"{role.name}-0"


def build_plan(inputs: Inputs, allocation: Allocation, kv_buffer: KvBuffer | None) -> Plan:
    """The plan of one run. Raises Misconfigured or Unsupported."""
    deployment, options, machine = inputs.deployment, inputs.options, inputs.machine
    model_set = model_set_of(options, machine)
    stages = tuple(
        _stage(inputs, name, roles, allocation, model_set, kv_buffer)
        for name, roles in _roles_by_stage(inputs, model_set)
    )
    return Plan(
        deployment=deployment.name,
        model_set=model_set,
        models=inputs.models,
        launch=launch_of(options, machine),
        kv_buffer=kv_buffer,
        stages=stages,
        adjustments=_adjustments(inputs),
        notes=_notes(inputs, stages),
    )


def _roles_by_stage(inputs: Inputs, model_set: ModelSetName) -> list[tuple[StageName, tuple[Role, ...]]]:
    options, machine = inputs.options, inputs.machine
    roles = roles_of(inputs.deployment, options, model_set)
    needs = requirements(inputs.deployment, options, model_set)
    if placement(needs, machine, options, usable(machine, options), model_set) == "after":
        return [("main", roles[:-1]), ("reference", roles[-1:])]
    return [("main", roles)]


def _stage(
    inputs: Inputs,
    name: StageName,
    roles: tuple[Role, ...],
    allocation: Allocation,
    model_set: ModelSetName,
    kv_buffer: KvBuffer | None,
) -> Stage:
    sharing = 1
    if inputs.options.share_devices and inputs.machine.platform != "cpu":
        check_shared({server_name(role): allocation.devices[server_name(role)] for role in roles}, model_set)
        sharing = len(roles)
    servers = tuple(_server(inputs, role, allocation, model_set, kv_buffer, sharing) for role in roles)
    return Stage(name, servers, _router(inputs, allocation, servers) if name == "main" else None)


def _adjustments(inputs: Inputs) -> tuple[str, ...]:
    names = _CPU_ADJUSTMENTS if inputs.options.adjust and inputs.machine.platform == "cpu" else ()
    # Not an adjustment of speed: without it text-only checkpoints of multimodal families cannot be imported at all.
    return names if inputs.engine.has_torchvision else (*names, "torchvision-absent")


def _notes(inputs: Inputs, stages: tuple[Stage, ...]) -> tuple[str, ...]:
    notes = []
    ranks = max(sum(server.ranks for server in stage.servers) for stage in stages)
    if inputs.machine.platform == "cpu" and ranks > len(inputs.machine.devices):
        notes.append(f"{ranks} ranks share {len(inputs.machine.devices)} cores: slow, not wrong")
    if inputs.deployment.settings.batch_invariant:
        on = "VLLM_BATCH_INVARIANT" in stages[0].servers[0].environment
        notes.append(f"batch-invariant kernels: {'on' if on else 'off (hub models on CUDA only)'}")
    if gdn_without_flashinfer(inputs.deployment, inputs.engine):
        notes.append("gated delta net prefill: Triton (the engine's own choice is FlashInfer, which it does not have)")
    if inputs.options.share_devices:
        notes.append("servers share devices (--share-devices)")
    if inputs.passed:
        notes.append("inherited on purpose (--pass-env): " + ", ".join(sorted(inputs.passed)))
    return tuple(notes)


def _server(
    inputs: Inputs,
    role: Role,
    allocation: Allocation,
    model_set: ModelSetName,
    kv_buffer: KvBuffer | None,
    sharing: int,
) -> ServerPlan:
    name = server_name(role)
    port = allocation.ports[f"{name}/http"]
    devices = allocation.devices[name]
    first_side_channel = allocation.ports.get(f"{name}/nixl") if kv_buffer is not None else None
    environment = engine_environment(
        inputs.deployment,
        role,
        inputs.engine,
        inputs.inherited,
        model_set=model_set,
        devices=devices,
        side_channel_port=first_side_channel,
        plugin_path=inputs.plugin_path,
        adjustments=_adjustments(inputs),
        passed=inputs.passed,
        extra=(inputs.extra_environment or {}).get(name, {}),
    )
    argv = server_argv(
        inputs.deployment,
        role,
        inputs.engine,
        inputs.models,
        model_set,
        dtype=inputs.dtype,
        host=LOOPBACK,
        port=port,
        served_model=inputs.deployment.name,
        buffer=kv_buffer if first_side_channel is not None else None,
        rpc_port=allocation.ports.get(f"{name}/rpc"),
        servers_per_device=sharing,
    )
    side_channels = (
        # One handshake listener per engine, in its scheduler; the ranks of one engine answer through it.
        tuple(first_side_channel + engine for engine in range(role.parallel.dp))
        if first_side_channel is not None
        else ()
    )
    return ServerPlan(
        name=name,
        role=role.name,
        host=LOOPBACK,
        port=port,
        argv=argv,
        environment=environment.values,
        removed=environment.removed,
        devices=devices,
        served_model=inputs.deployment.name,
        engines=role.parallel.dp,
        ranks=role.parallel.world_size,
        side_channel_ports=side_channels,
        metrics_url=f"http://{LOOPBACK}:{port}/metrics",
        log_name=f"{name}.log",
    )


def _router(inputs: Inputs, allocation: Allocation, servers: tuple[ServerPlan, ...]) -> RouterPlan | None:
    if inputs.deployment.transfer is None or inputs.options.router == "direct":
        return None
    if inputs.router_python is None:
        raise Misconfigured(
            "vllm-router is not installed beside the harness; install the extra (pip install -e '.[router]') "
            "or use --router direct."
        )
    environment = router_environment(inputs.inherited)
    port, metrics_port = allocation.ports[f"{_ROUTER}/http"], allocation.ports[f"{_ROUTER}/metrics"]
    argv = [str(inputs.router_python), "-m", "vllm_router.launch_router"]
    argv += ["--host", LOOPBACK, "--port", str(port), "--vllm-pd-disaggregation"]
    for server in servers:
        if server.role in ("prefill", "decode"):
            argv += [f"--{server.role}", server.url]
    # A retry would serve a request twice and hide a failure; the gate wants to see the first answer.
    argv += ["--policy", "round_robin", "--disable-retries", "--disable-circuit-breaker"]
    # It starts beside the servers; by default it would look for them again after 30 s.
    argv += ["--worker-startup-check-interval", "1"]
    argv += ["--prometheus-host", LOOPBACK, "--prometheus-port", str(metrics_port)]
    return RouterPlan(
        name=_ROUTER,
        argv=tuple(argv),
        environment=environment.values,
        removed=environment.removed,
        host=LOOPBACK,
        port=port,
        metrics_port=metrics_port,
        log_name=f"{_ROUTER}.log",
    )


def plugin_folder() -> Path:
    """The folder that goes on the engine's PYTHONPATH."""
    return Path(__file__).resolve().parents[1] / "engine_plugin"
