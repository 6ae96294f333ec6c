"""One server over several ranks, with a drafter and without: what the ranks share must not show in the text."""

from __future__ import annotations

from harness.deployments.disaggregated import LLAMA_EAGLE3, PD_CHECKS
from harness.deployments.types import (
    Deployment,
    EngineSettings,
    Eplb,
    HubModel,
    Limits,
    ModelSet,
    Parallel,
    Role,
    Speculation,
    Transfer,
)

PAIRED_CHECKS = (
    "requests_succeeded",
    "token_counts",
    "more_prompts_than_ranks",
    "roles_served_all",
    # Text before counts: a wrong token changes what follows it, and so the counts, but never the other way round.
    "output_as_computed",
    "token_match",
    "deterministic_all_match",
    "drafts_on_every_engine",
    "acceptance_identity",
    "exact_counts",
    "effective_config",
    "answers_after_run",
)

DEEPSEEK_RANDOM = ModelSet(
    target=HubModel("luccafong/deepseek_mtp_main_random", random_weights=True),
    drafter=HubModel("luccafong/deepseek_mtp_draft_random", random_weights=True),
    tiny="deepseek-mtp",
)

# The first rearrangement comes after a quarter of the interval: in a generation of a few tokens it really happens.
EPLB = Eplb(window_size=2, step_interval=4, num_redundant_experts=2)

_DEEPSEEK = EngineSettings(max_model_len=2048, prefix_caching=False, batch_invariant=True)
_DENSE = EngineSettings(max_model_len=4096)
_TWO = "2 GPUs (hub: 16 GiB each), 4 to run the reference beside it, or 2 CPU cores (tiny)"
_ONE = "1 GPU (hub: 16 GiB), 2 to run the reference beside it, or 1 CPU core (tiny)"


def _paired(parallel: Parallel, speculation: Speculation) -> tuple[Role, Role]:
    """The server, and the same layout without a drafter."""
    return Role("server", parallel, speculation), Role("reference", parallel)


def _deepseek(name: str, layout: str, parallel: Parallel, *tags: str, checks: tuple[str, ...] = ()) -> Deployment:
    return Deployment(
        name=name,
        summary=f"DeepSeek-V3-style MoE + MLA + MTP k=1 under {layout}, against itself without a drafter",
        models=DEEPSEEK_RANDOM,
        roles=_paired(parallel, Speculation("mtp", k=1)),
        workload="paired",
        checks=PAIRED_CHECKS + checks,
        settings=_DEEPSEEK,
        limits=Limits(token_match=0.8),
        tags=("parallel", "mtp", "moe", *tags),
        needs=_TWO if parallel.world_size == 2 else _ONE,
    )


def _dense(name: str, layout: str, parallel: Parallel) -> Deployment:
    return Deployment(
        name=name,
        summary=f"Llama-3.1-8B + EAGLE3 k=3 under {layout}, against itself without a drafter",
        models=LLAMA_EAGLE3,
        roles=_paired(parallel, Speculation("eagle3", k=3)),
        workload="paired",
        checks=PAIRED_CHECKS,
        settings=_DENSE,
        limits=Limits(token_match=0.8),
        tags=("parallel", "eagle3"),
        needs="2 GPUs (hub: 40 GiB each), 4 to run the reference beside it, or 2 CPU cores (tiny)",
    )


DEEPSEEK_TP2 = _deepseek("deepseek-tp2", "TP=2", Parallel(tp=2))
EP2 = _deepseek("ep2", "TP=2 with expert parallelism", Parallel(tp=2, ep=True))
EP2_EPLB = _deepseek(
    "ep2-eplb",
    "TP=2 with expert parallelism and load balancing (EPLB)",
    Parallel(tp=2, ep=True, eplb=EPLB),
    checks=("eplb_rearranged",),
)
DP2 = _deepseek("dp2", "DP=2", Parallel(dp=2))
PP2 = _deepseek("pp2", "PP=2", Parallel(pp=2))
TP1 = _deepseek("tp1", "TP=1, the control of deepseek-tp2", Parallel(), "control")
DP1 = _deepseek("dp1", "DP=1, the control of dp2", Parallel(), "control")
EAGLE3_DP2 = _dense("eagle3-dp2", "DP=2", Parallel(dp=2))
EAGLE3_TP2 = _dense("eagle3-tp2", "TP=2", Parallel(tp=2))


def _deepseek_pd(name: str, layout: str, parallel: Parallel, needs: str, *checks: str) -> Deployment:
    speculation = Speculation("mtp", k=1)
    return Deployment(
        name=name,
        summary=f"DeepSeek-V3-style MoE + MLA + MTP k=1, 1 prefill + 1 decode over NIXL{layout}",
        models=DEEPSEEK_RANDOM,
        roles=(Role("prefill", parallel, speculation), Role("decode", parallel, speculation)),
        transfer=Transfer(buffers=("device",)),
        workload="mt-bench",
        checks=PD_CHECKS + checks,
        settings=_DEEPSEEK,
        tags=("pd", "parallel", "mtp", "moe"),
        needs=needs,
    )


DEEPSEEK_PD = _deepseek_pd("deepseek-pd", "", Parallel(), "2 GPUs (hub: 16 GiB each) or 2 CPU cores (tiny)")
EP2_EPLB_PD = _deepseek_pd(
    "ep2-eplb-pd",
    ", each TP=2 with expert parallelism and EPLB",
    Parallel(tp=2, ep=True, eplb=EPLB),
    "4 GPUs (hub: 16 GiB each) or 2 CPU cores (tiny)",
    "eplb_rearranged",
)

PARALLEL = (
    DEEPSEEK_TP2,
    EP2,
    EP2_EPLB,
    DP2,
    PP2,
    TP1,
    DP1,
    EAGLE3_DP2,
    EAGLE3_TP2,
    DEEPSEEK_PD,
    EP2_EPLB_PD,
)
