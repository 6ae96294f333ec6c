"""The environment of an engine process: what is set, what is taken away, and why. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.deployments import Deployment, ModelSetName, Role
from harness.engine.info import EngineInfo
from harness.plan.types import Device

LOOPBACK = "127.0.0.1"

# Written at launch: the value is a secret of the run, so a plan on disk only says that it will be there.
RUN_MARKER = "GATE_RUN"

# Inherited VLLM_* that name places or verbosity and so cannot bend the run.
_HARMLESS = frozenset(
    {"VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_LOGGING_LEVEL", "VLLM_NCCL_SO_PATH", "VLLM_ASSETS_CACHE"}
)

_REMOVED = (
    (re.compile(r"VLLM_PORT"), "moves every internal port of the engine, and Kubernetes sets it to a URI"),
    (re.compile(r"VLLM_PLUGINS"), "would keep the harness's own plugin from loading"),
    (re.compile(r"VLLM_.*"), "an inherited engine switch would make this another deployment; --pass-env keeps it"),
    (re.compile(r"(?i)(https?|all|ftp)_proxy"), "loopback traffic must not go through a proxy"),
    (re.compile(r"LD_PRELOAD"), "a preloaded OpenMP stalls the first NIXL read for 30 s in forked servers"),
    (re.compile(r"PYTHON(HOME|STARTUP|INSPECT|BREAKPOINT|WARNINGS)"), "belongs to the harness's interpreter"),
    (re.compile(r"VIRTUAL_ENV|__PYVENV_LAUNCHER__"), "belongs to the harness's interpreter"),
    (
        re.compile(r"(MASTER_(ADDR|PORT)|RANK|LOCAL_RANK|WORLD_SIZE)"),
        "a distributed launcher's rank is not this engine's",
    ),
    (re.compile(r"(CUDA|HIP|ROCR)_VISIBLE_DEVICES|ZE_AFFINITY_MASK"), "devices come from the lease"),
    (re.compile(r"COVERAGE_PROCESS_START|COV_CORE_.*|PYTEST_.*|NOX_.*"), "belongs to the test runner"),
    (re.compile(r"GATE_.*"), "belongs to another run of this harness"),
)


@dataclass(frozen=True)
class Environment:
    """``values`` are set by the harness, ``removed`` maps an inherited name to the reason it is taken away."""

    values: dict[str, str]
    removed: dict[str, str]


def engine_environment(
    deployment: Deployment,
    role: Role,
    engine: EngineInfo,
    inherited: Mapping[str, str],
    *,
    model_set: ModelSetName,
    devices: tuple[Device, ...],
    side_channel_port: int | None,
    plugin_path: Path,
    adjustments: tuple[str, ...],
    passed: frozenset[str],
    extra: Mapping[str, str],
) -> Environment:
    """The environment of one server. ``inherited`` is the harness's own; it is read here and nowhere deeper.

    ``passed``: inherited names the user keeps on purpose. ``extra``: values of a mutation or a trace, added last.
    """
    inherited_path = inherited.get("PYTHONPATH", "") if engine.origin == "found" else ""
    values = {
        # setproctitle overwrites the memory behind /proc/PID/environ, and with it the mark that a process is ours.
        "SPT_NOENV": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": ":".join(part for part in (str(plugin_path), inherited_path) if part),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": LOOPBACK,
        "NO_PROXY": "127.0.0.1,localhost",
        "GATE_ADJUST": ",".join(adjustments),
    }
    if side_channel_port is not None:
        values["VLLM_NIXL_SIDE_CHANNEL_HOST"] = LOOPBACK
        values["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(side_channel_port)
    if deployment.settings.ssm_conv_state_layout is not None:
        values["VLLM_SSM_CONV_STATE_LAYOUT"] = deployment.settings.ssm_conv_state_layout
    if deployment.settings.model_runner_v2:
        values["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    if deployment.settings.batch_invariant and model_set == "hub" and engine.platform == "cuda":
        # Without it the text of random weights depends on what else is in the batch.
        values["VLLM_BATCH_INVARIANT"] = "1"
    values |= _platform_values(role, engine, devices)
    values |= extra
    removed = {
        name: reason
        for name in inherited
        if name not in values and name not in passed and (reason := _reason_to_remove(name)) is not None
    }
    return Environment(values=values, removed=removed)


def _platform_values(role: Role, engine: EngineInfo, devices: tuple[Device, ...]) -> dict[str, str]:
    match engine.platform:
        case "cpu":
            values = {
                # One thread per server: with more, two servers on two cores wait for each other's spinning threads.
                "OMP_NUM_THREADS": "1",
                "KMP_BLOCKTIME": "0",
                # pyarrow, which an evaluation extra brings along, starts a thread as it loads; a process with two
                # threads cannot be forked after the import.
                "JE_ARROW_MALLOC_CONF": "background_thread:false",
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            }
            if role.parallel.world_size == 1:
                # Keeps the in-process executor; the CPU platform otherwise turns it into a worker process.
                values["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            return values
        case "cuda":
            return {"CUDA_VISIBLE_DEVICES": _keys(devices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        case "rocm":
            return {"HIP_VISIBLE_DEVICES": ",".join(str(device.index) for device in devices)}
        case "xpu":
            return {"ZE_AFFINITY_MASK": ",".join(str(device.index) for device in devices)}


def _keys(devices: tuple[Device, ...]) -> str:
    return ",".join(device.key for device in devices)


def _reason_to_remove(name: str) -> str | None:
    if name in _HARMLESS:
        return None
    for pattern, reason in _REMOVED:
        if pattern.fullmatch(name):
            return reason
    return None


def router_environment(inherited: Mapping[str, str]) -> Environment:
    """The environment of the router: the harness's own interpreter, without what would bend loopback traffic."""
    values = {"SPT_NOENV": "1", "PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1,localhost"}
    removed = {
        name: reason
        for name in inherited
        if name not in values and (reason := _reason_to_remove(name)) is not None and not name.startswith("PYTHONPATH")
    }
    return Environment(values=values, removed=removed)
