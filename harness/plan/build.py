"""From a deployment to an exact plan. Pure: equal inputs give equal plans, so plans are snapshot-tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.deployments import Deployment, KvBuffer, ModelSetName, Role
from harness.engine.info import EngineInfo
from harness.errors import Misconfigured
from harness.plan.arguments import server_argv
from harness.plan.environment import LOOPBACK, engine_environment, router_environment
from harness.plan.memory import check_shared
from harness.plan.types import (
    Allocation,
    Device,
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
)

# First port of the proposals of a dry run; a real run takes free ones from the registry.
_PROPOSED_FIRST_PORT = 21000

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
    """What to lease. The reference server of a later stage reuses the devices and has ports of its own."""
    devices: dict[str, int] = {}
    ports: list[PortRun] = []
    for role in deployment.roles:
        name = server_name(role)
        devices[name] = role.parallel.world_size
        ports.append(PortRun(f"{name}/http", 1))
        if role.name in ("prefill", "decode"):
            ports.append(PortRun(f"{name}/nixl", role.parallel.world_size))
        if role.parallel.dp > 1:
            ports.append(PortRun(f"{name}/rpc", 1))
    if deployment.transfer is not None and options.router == "vllm-router":
        ports += [PortRun(f"{_ROUTER}/http", 1), PortRun(f"{_ROUTER}/metrics", 1)]
    if wants_server_reference(deployment, options, model_set):
        ports.append(PortRun("reference-0/http", 1))
        devices["reference-0"] = 1
    return Needs(devices_per_server=devices, ports=tuple(ports))


def wants_server_reference(deployment: Deployment, options: Options, model_set: ModelSetName) -> bool:
    """Whether a prefill/decode run is compared with a standalone server (hub models; tiny output is computed)."""
    return deployment.transfer is not None and model_set == "hub" and options.reference == "auto"


def server_name(role: Role) -> str:
    return f"{role.name}-0"


def assign_devices(needs: Needs, machine: Machine, options: Options) -> dict[str, tuple[Device, ...]]:
    """Devices by server, in role order. Raises Misconfigured, naming what there is, when they do not suffice."""
    pool = list(machine.devices)
    if options.devices is not None:
        known = {device.index: device for device in machine.devices}
        for index in options.devices:
            if index not in known:
                raise Misconfigured(
                    f"Device {index} was asked for, but this machine has {len(known)} ({_range(known)}); "
                    "pass --devices with indices from that list."
                )
        if len(set(options.devices)) != len(options.devices):
            raise Misconfigured(f"--devices {','.join(map(str, options.devices))} names a device twice.")
        pool = [known[index] for index in options.devices]
    main = {name: count for name, count in needs.devices_per_server.items() if not name.startswith("reference")}
    wanted = max(main.values()) if options.share_devices else sum(main.values())
    if machine.platform == "cpu":
        # Cores are shared: a server is one busy thread, and two servers on one core are slow but right.
        wanted = min(wanted, len(pool)) or 1
    if wanted > len(pool) or not pool:
        raise Misconfigured(
            f"{wanted} devices are needed ({', '.join(f'{name} {count}' for name, count in main.items())}) and "
            f"{len(pool)} may be used; pass more with --devices, or let servers share them with --share-devices."
        )
    assigned: dict[str, tuple[Device, ...]] = {}
    taken = 0
    for name, count in main.items():
        first = 0 if options.share_devices else taken
        assigned[name] = tuple(pool[(first + offset) % len(pool)] for offset in range(count))
        taken += count
    for name, count in needs.devices_per_server.items():
        if name not in assigned:
            assigned[name] = tuple(pool[:count])
    return assigned


def _range(known: Mapping[int, Device]) -> str:
    return ", ".join(str(index) for index in sorted(known)) or "none"


def propose(needs: Needs, machine: Machine, options: Options) -> Allocation:
    """What a lease would give on an idle machine; for ``--dry-run``."""
    ports: dict[str, int] = {}
    port = _PROPOSED_FIRST_PORT
    for run in needs.ports:
        ports[run.purpose] = port
        port += run.length
    return Allocation(devices=assign_devices(needs, machine, options), ports=ports)


def build_plan(inputs: Inputs, allocation: Allocation, kv_buffer: KvBuffer | None) -> Plan:
    """The plan of one run. Raises Misconfigured or Unsupported."""
    deployment, options, machine = inputs.deployment, inputs.options, inputs.machine
    model_set = model_set_of(options, machine)
    if options.share_devices and machine.platform != "cpu":
        devices = {device.key: device for group in allocation.devices.values() for device in group}
        check_shared(tuple(devices.values()), len(deployment.roles), model_set)
    main = tuple(
        _server(inputs, role, allocation, model_set, kv_buffer) for role in deployment.roles if role.name != "reference"
    )
    router = _router(inputs, allocation, main)
    stages = [Stage(name="main", servers=main, router=router)]
    if wants_server_reference(deployment, options, model_set):
        reference = Role("reference", speculation=deployment.role("decode").speculation)
        stages.append(Stage("reference", (_server(inputs, reference, allocation, model_set, None),), None))
    return Plan(
        deployment=deployment.name,
        model_set=model_set,
        models=inputs.models,
        launch=launch_of(options, machine),
        kv_buffer=kv_buffer,
        stages=tuple(stages),
        adjustments=_adjustments(inputs),
        notes=_notes(inputs),
    )


def _adjustments(inputs: Inputs) -> tuple[str, ...]:
    names = _CPU_ADJUSTMENTS if inputs.options.adjust and inputs.machine.platform == "cpu" else ()
    # Not an adjustment of speed: without it text-only checkpoints of multimodal families cannot be imported at all.
    return names if inputs.engine.has_torchvision else (*names, "torchvision-absent")


def _notes(inputs: Inputs) -> tuple[str, ...]:
    notes = []
    if inputs.machine.platform == "cpu" and inputs.deployment.devices > len(inputs.machine.devices):
        notes.append(f"{inputs.deployment.devices} ranks share {len(inputs.machine.devices)} cores: slow, not wrong")
    if inputs.options.share_devices:
        notes.append("servers share devices (--share-devices)")
    if inputs.passed:
        notes.append("inherited on purpose (--pass-env): " + ", ".join(sorted(inputs.passed)))
    return tuple(notes)


def _server(
    inputs: Inputs, role: Role, allocation: Allocation, model_set: ModelSetName, kv_buffer: KvBuffer | None
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
        buffer=kv_buffer,
        rpc_port=allocation.ports.get(f"{name}/rpc"),
        servers_per_device=len(inputs.deployment.roles) if inputs.options.share_devices else 1,
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
