"""The argv of one vLLM API server, from the deployment and from what the engine says it knows."""

from __future__ import annotations

import json

from harness.deployments import Deployment, KvBuffer, ModelSetName, Role, Transfer
from harness.engine.info import EngineInfo, EnginePlatform
from harness.errors import Unsupported
from harness.plan.memory import kv_cache_bytes
from harness.plan.types import ModelPaths

# The tiny checkpoints are written for this many positions.
TINY_MAX_MODEL_LEN = 4096

# The CPU attention kernels refuse anything else ("No common block size", CPU_ATTN: MultipleOf(32)).
_CPU_BLOCK_MULTIPLE = 32

_KV_ROLE = {"prefill": "kv_producer", "decode": "kv_consumer"}


def kv_role(role: Role) -> str | None:
    """The connector's word for this role; None for a server without a transfer."""
    return _KV_ROLE.get(role.name)


def kv_buffer_device(buffer: KvBuffer, platform: EnginePlatform) -> str:
    """The engine's word for where KV buffers lie: its own device type, or ``cpu`` for host memory."""
    if buffer == "host" or platform == "cpu":
        return "cpu"
    return "xpu" if platform == "xpu" else "cuda"


def max_model_len(deployment: Deployment, model_set: ModelSetName) -> int:
    """Tokens of the longest sequence a server accepts."""
    wanted = deployment.settings.max_model_len
    return min(wanted, TINY_MAX_MODEL_LEN) if model_set == "tiny" else wanted


def block_size(deployment: Deployment, platform: EnginePlatform) -> int | None:
    """Tokens of one KV block; None leaves it to the engine."""
    wanted = deployment.settings.block_size
    if wanted is None or platform != "cpu":
        return wanted
    return -(-wanted // _CPU_BLOCK_MULTIPLE) * _CPU_BLOCK_MULTIPLE


def transfer_config(transfer: Transfer, role: Role, buffer: KvBuffer, platform: EnginePlatform) -> dict[str, str]:
    """The --kv-transfer-config of one role.

    ``fail``: by default the engine would recompute lost KV by itself and hide that the transfer broke.
    """
    name = kv_role(role)
    if name is None:
        raise ValueError(f"role {role.name} takes no part in a transfer")
    return {
        "kv_connector": transfer.connector,
        "kv_role": name,
        "kv_buffer_device": kv_buffer_device(buffer, platform),
        "kv_load_failure_policy": "fail",
    }


def speculative_config(
    deployment: Deployment, role: Role, models: ModelPaths, model_set: ModelSetName
) -> dict[str, str | int | float] | None:
    """The --speculative-config of one role, or None when it runs without a drafter."""
    speculation = role.speculation
    if speculation is None:
        return None
    config: dict[str, str | int | float] = {
        "method": speculation.method,
        "num_speculative_tokens": speculation.k,
        "max_model_len": max_model_len(deployment, model_set),
    }
    if models.drafter is not None:
        config["model"] = str(models.drafter)
    if speculation.synthetic_length is not None:
        config["rejection_sample_method"] = "synthetic"
        config["synthetic_acceptance_length"] = speculation.synthetic_length
    return config


def server_argv(
    deployment: Deployment,
    role: Role,
    engine: EngineInfo,
    models: ModelPaths,
    model_set: ModelSetName,
    *,
    dtype: str | None,
    host: str,
    port: int,
    served_model: str,
    buffer: KvBuffer | None,
    rpc_port: int | None,
    servers_per_device: int,
) -> tuple[str, ...]:
    """Everything after ``python -m vllm.entrypoints.openai.api_server``.

    Raises Unsupported when the engine lacks an option without which the deployment would be another one.
    """
    settings = deployment.settings
    argv = ["--host", host, "--port", str(port), "--model", str(models.target), "--served-model-name", served_model]
    argv += ["--max-model-len", str(max_model_len(deployment, model_set)), "--enforce-eager"]
    if dtype is not None:
        argv += ["--dtype", dtype]
    if settings.remote_code and model_set == "hub":
        argv.append("--trust-remote-code")
    size = block_size(deployment, engine.platform)
    if size is not None:
        argv += ["--block-size", str(size)]
    if not settings.prefix_caching:
        argv.append("--no-enable-prefix-caching")
    if settings.hybrid_kv_cache:
        # Without it a connector makes the engine fall back to one KV group, which is another deployment.
        argv.append(_required(engine, "--no-disable-hybrid-kv-cache-manager"))
    argv += _memory(engine, model_set, servers_per_device)
    argv += _parallel(role, engine, rpc_port)
    if deployment.transfer is not None and buffer is not None and kv_role(role) is not None:
        config = transfer_config(deployment.transfer, role, buffer, engine.platform)
        argv += ["--kv-transfer-config", json.dumps(config)]
    speculative = speculative_config(deployment, role, models, model_set)
    if speculative is not None:
        argv += ["--speculative-config", json.dumps(speculative)]
        if engine.knows("--per-request-spec-decode-metrics"):
            argv += ["--per-request-spec-decode-metrics", "detailed"]
    if (model_set == "tiny" or settings.text_only) and engine.knows("--language-model-only"):
        argv.append("--language-model-only")
    if gdn_without_flashinfer(deployment, engine):
        argv += ["--gdn-prefill-backend", "triton"]
    return tuple(argv)


def gdn_without_flashinfer(deployment: Deployment, engine: EngineInfo) -> bool:
    """Whether the engine would take its gated delta net kernels from a package that it does not have, and stop."""
    if engine.platform != "cuda" or engine.has_flashinfer:
        return False
    return deployment.settings.gated_delta_net and engine.knows("--gdn-prefill-backend")


def _memory(engine: EngineInfo, model_set: ModelSetName, servers_per_device: int) -> list[str]:
    argv = []
    if engine.knows("--kv-cache-memory-bytes"):
        argv += ["--kv-cache-memory-bytes", str(kv_cache_bytes(model_set, engine.platform))]
    if servers_per_device > 1 or not argv:
        # An engine that finds less than its share of a device free does not start, whatever its cache needs; an old
        # one also sizes its cache by it.
        argv += ["--gpu-memory-utilization", f"{0.8 / servers_per_device:.2f}"]
    return argv


def _parallel(role: Role, engine: EngineInfo, rpc_port: int | None) -> list[str]:
    parallel = role.parallel
    argv: list[str] = []
    for flag, size in (
        ("--tensor-parallel-size", parallel.tp),
        ("--pipeline-parallel-size", parallel.pp),
        ("--data-parallel-size", parallel.dp),
    ):
        if size > 1:
            argv += [flag, str(size)]
    if parallel.dp > 1 and rpc_port is not None:
        # The default is one fixed port for every server on the machine.
        argv += ["--data-parallel-rpc-port", str(rpc_port)]
    if parallel.ep:
        argv.append(_required(engine, "--enable-expert-parallel"))
    if parallel.eplb is not None:
        argv += [
            _required(engine, "--enable-eplb"),
            "--eplb-config",
            json.dumps(
                {
                    "window_size": parallel.eplb.window_size,
                    "step_interval": parallel.eplb.step_interval,
                    "num_redundant_experts": parallel.eplb.num_redundant_experts,
                }
            ),
        ]
    return argv


def _required(engine: EngineInfo, flag: str) -> str:
    if not engine.knows(flag):
        raise Unsupported(
            f"vLLM {engine.vllm_version} ({engine.platform}) has no option {flag}, which this deployment needs; "
            "use another engine with --engine PYTHON."
        )
    return flag
