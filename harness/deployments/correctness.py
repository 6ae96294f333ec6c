"""MTP families on one device, against themselves without a drafter; and the synthetic rejection sampler."""

from __future__ import annotations

from harness.deployments.disaggregated import LLAMA_EAGLE3
from harness.deployments.parallel import PAIRED_CHECKS
from harness.deployments.types import (
    Deployment,
    EngineSettings,
    Gate,
    HubModel,
    Limits,
    ModelSet,
    Parallel,
    Role,
    Speculation,
)

# The outputs of a family are compared over their first tokens: later ones depend on rounding, in any engine.
_COMPARED_TOKENS = 10
_IDENTICAL = 0.6

# token_match is a share of positions; these sessions count whole answers, and solve problems.
_CHECKS = (*(check for check in PAIRED_CHECKS if check != "token_match"), "identical_outputs", "gsm8k_threshold")


def _family(
    name: str,
    models: ModelSet,
    gsm8k: float,
    *,
    k: int = 1,
    settings: EngineSettings,
    gates: tuple[Gate, ...] = (),
    tags: tuple[str, ...] = (),
    needs: str,
) -> Deployment:
    return Deployment(
        name=name,
        summary=f"{models.target.repo.split('/')[1]} + MTP k={k}: outputs and GSM8K as without a drafter",
        models=models,
        roles=(Role("server", speculation=Speculation("mtp", k=k)), Role("reference")),
        workload="gsm8k",
        checks=_CHECKS,
        settings=settings,
        limits=Limits(identical=_IDENTICAL, compared_tokens=_COMPARED_TOKENS, gsm8k=gsm8k),
        gates=gates,
        tags=("correctness", "mtp", *tags),
        needs=needs,
    )


MIMO_MTP = _family(
    "mimo-mtp",
    ModelSet(HubModel("XiaomiMiMo/MiMo-7B-Base"), None, tiny="mimo-mtp"),
    gsm8k=0.5,
    settings=EngineSettings(max_model_len=2048, remote_code=True),
    needs="1 GPU (hub: 40 GiB) or 1 CPU core (tiny)",
)
DEEPSEEK_MTP = _family(
    "deepseek-mtp",
    ModelSet(HubModel("ZixiQi/DeepSeek-V3-4layers-MTP-FP8", random_weights=True), None, tiny="deepseek-mtp"),
    # Random weights: nothing to solve.
    gsm8k=0.0,
    settings=EngineSettings(max_model_len=2048, prefix_caching=False),
    gates=(
        Gate(
            "the FP8 MoE kernels of compute capability 10.x refuse this checkpoint's top-k",
            not_capability=10,
            models="hub",
        ),
    ),
    needs="1 GPU (hub: 40 GiB) or 1 CPU core (tiny)",
)
QWEN35_HYBRID_MRV2 = _family(
    "qwen35-hybrid-mrv2",
    ModelSet(HubModel("Qwen/Qwen3.5-0.8B-Base"), None, tiny="qwen35-mtp"),
    gsm8k=0.2,
    settings=EngineSettings(
        max_model_len=2048, prefix_caching=False, model_runner_v2=True, text_only=True, gated_delta_net=True
    ),
    tags=("hybrid", "mrv2"),
    needs="1 GPU (hub: 16 GiB); model runner V2 is written in Triton, which the CPU engine does not have",
)
GEMMA4_MTP = _family(
    "gemma4-mtp",
    ModelSet(HubModel("google/gemma-4-E4B-it"), HubModel("google/gemma-4-E4B-it-assistant"), tiny="gemma4-mtp"),
    gsm8k=0.5,
    k=2,
    settings=EngineSettings(max_model_len=2048, text_only=True),
    gates=(Gate("transformers knows Gemma 4 from 5.8.0 on", transformers="5.8.0"),),
    needs="1 GPU (hub: 40 GiB) or 1 CPU core (tiny), and transformers >= 5.8.0",
)

JAMBA_PP2_MRV2 = Deployment(
    name="jamba-pp2-mrv2",
    summary="Jamba (Mamba + attention) under PP=2 with model runner V2, against PP=1; no drafter exists for it",
    models=ModelSet(HubModel("ai21labs/Jamba-tiny-dev"), None, tiny="jamba"),
    roles=(Role("server", Parallel(pp=2)), Role("reference")),
    workload="paired",
    checks=(
        "requests_succeeded",
        "token_counts",
        "more_prompts_than_ranks",
        "roles_served_all",
        "output_as_computed",
        "token_match",
        "deterministic_all_match",
        "effective_config",
        "answers_after_run",
    ),
    settings=EngineSettings(max_model_len=2048, prefix_caching=False, model_runner_v2=True),
    limits=Limits(token_match=0.8),
    tags=("correctness", "parallel", "hybrid", "mrv2"),
    needs="2 GPUs (hub: 8 GiB each), 3 to run the reference beside it; no runner V2 and no Mamba-1 on the CPU engine",
)

SYNTHETIC_ACCEPTANCE = Deployment(
    name="synthetic-acceptance",
    summary="Llama-3.2-1B + EAGLE3 k=3 with the synthetic rejection sampler, asked for a mean length of 1.875",
    models=ModelSet(
        HubModel("meta-llama/Llama-3.2-1B-Instruct"),
        HubModel("nm-testing/Llama3_2_1B_speculator.eagle3"),
        tiny=LLAMA_EAGLE3.tiny,
    ),
    # No reference: the sampler accepts drafts that the target would not, so the text is nobody's.
    roles=(Role("server", speculation=Speculation("eagle3", k=3, synthetic_length=1.875)),),
    workload="paired",
    checks=(
        "requests_succeeded",
        "token_counts",
        "roles_served_all",
        "drafts_on_every_engine",
        "acceptance_identity",
        "synthetic_acceptance",
        "effective_config",
        "answers_after_run",
    ),
    settings=EngineSettings(max_model_len=2048),
    limits=Limits(synthetic_within=0.15),
    tags=("correctness", "eagle3"),
    needs="1 GPU (hub: 16 GiB) or 1 CPU core (tiny)",
)

CORRECTNESS = (MIMO_MTP, DEEPSEEK_MTP, QWEN35_HYBRID_MRV2, GEMMA4_MTP, JAMBA_PP2_MRV2, SYNTHETIC_ACCEPTANCE)
