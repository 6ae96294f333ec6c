"""Prefill and decode on servers of their own, KV moved between them."""

from __future__ import annotations

from harness.deployments.types import (
    Deployment,
    EngineSettings,
    HubModel,
    ModelSet,
    Role,
    Speculation,
    Transfer,
)

PD_CHECKS = (
    "requests_succeeded",
    "token_counts",
    "one_bos",
    "roles_served_all",
    "drafts_on_every_engine",
    "acceptance_identity",
    "acceptance_length",
    "acceptance_per_position",
    "acceptance_windows",
    "exact_counts",
    "kv_moved",
    "output_matches_reference",
    "effective_config",
    "answers_after_run",
)

LLAMA_EAGLE3 = ModelSet(
    target=HubModel("meta-llama/Llama-3.1-8B-Instruct"),
    drafter=HubModel("RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"),
    tiny="llama-eagle3",
)

EAGLE3_PD = Deployment(
    name="eagle3-pd",
    summary="Llama-3.1-8B + EAGLE3 k=3, 1 prefill + 1 decode over NIXL",
    models=LLAMA_EAGLE3,
    roles=(
        Role("prefill", speculation=Speculation("eagle3", k=1)),
        Role("decode", speculation=Speculation("eagle3", k=3)),
    ),
    transfer=Transfer(buffers=("device", "host")),
    workload="mt-bench",
    checks=PD_CHECKS,
    settings=EngineSettings(max_model_len=16384, block_size=16),
    tags=("pd", "eagle3"),
    needs="2 GPUs (hub: 40 GiB each) or 2 CPU cores (tiny)",
)

MTP_PD = Deployment(
    name="mtp-pd",
    summary="Qwen3.5-0.8B hybrid (GDN) + MTP k=1, 1 prefill + 1 decode over NIXL",
    models=ModelSet(target=HubModel("Qwen/Qwen3.5-0.8B-Base"), drafter=None, tiny="qwen35-mtp"),
    roles=(
        Role("prefill", speculation=Speculation("mtp", k=1)),
        Role("decode", speculation=Speculation("mtp", k=1)),
    ),
    transfer=Transfer(buffers=("device",)),
    workload="mt-bench",
    checks=PD_CHECKS,
    settings=EngineSettings(
        max_model_len=4096,
        block_size=32,
        ssm_conv_state_layout="DS",
        hybrid_kv_cache=True,
        prefix_caching=False,
        gated_delta_net=True,
    ),
    tags=("pd", "mtp", "hybrid"),
    needs="2 GPUs (hub: 8 GiB each) or 2 CPU cores (tiny)",
)
