"""The workload of a deployment on this model set, with the outputs and counts that are known beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from harness.deployments import Deployment, ModelSetName
from harness.drive.workloads import MT_BENCH_MAX_TOKENS, MT_BENCH_PROMPTS, Prompt, load_mt_bench, workload_hash
from harness.errors import Misconfigured
from harness.facts import ExpectedCounts, ExpectedText
from harness.plan.types import Options
from harness.zoo import ZooModel, simulate, tiny_prompts, tokenize

# Enough to keep both servers busy; exact counts do not depend on it.
_TINY_CONCURRENCY = 2
_HUB_CONCURRENCY = 8

# Short, and no prefix of a workload prompt: a warm prefix cache would take the place of a transfer.
_SMOKE_TEXT = "9876543210 smoke"
_SMOKE_TOKENS = 8


@dataclass(frozen=True)
class Workload:
    """``counts`` and ``texts`` are computed (tiny models) or absent; ``ignore_eos`` holds only with them."""

    name: str
    prompts: tuple[Prompt, ...]
    smoke: Prompt
    concurrency: int
    ignore_eos: bool
    counts: ExpectedCounts | None
    texts: tuple[ExpectedText, ...]

    @property
    def hash(self) -> str:
        return workload_hash(self.prompts)


def load_workload(deployment: Deployment, model_set: ModelSetName, options: Options, zoo: ZooModel | None) -> Workload:
    """Raises Misconfigured when the prompts cannot be had, naming the file and line."""
    smoke = Prompt(prompt_id="smoke", text=_SMOKE_TEXT, max_tokens=_SMOKE_TOKENS)
    if model_set == "tiny":
        if zoo is None:
            raise ValueError("tiny models come from the zoo")
        return _tiny(deployment, options, zoo, smoke)
    prompts = load_mt_bench(
        options.dataset,
        prompts=options.prompts or MT_BENCH_PROMPTS,
        max_tokens=options.max_tokens or MT_BENCH_MAX_TOKENS,
    )
    return Workload(
        name="mt-bench",
        prompts=prompts,
        smoke=smoke,
        concurrency=options.concurrency or _HUB_CONCURRENCY,
        ignore_eos=False,
        counts=None,
        texts=(),
    )


def _tiny(deployment: Deployment, options: Options, zoo: ZooModel, smoke: Prompt) -> Workload:
    if options.dataset is not None:
        raise Misconfigured("--dataset needs hub models; the tiny workload is computed (drop it or use --models hub).")
    given = tiny_prompts(zoo.name) if options.prompts is None else tiny_prompts(zoo.name, options.prompts)
    prompts = tuple(
        Prompt(
            prompt_id=prompt.prompt_id,
            text=prompt.text,
            max_tokens=min(prompt.max_tokens, options.max_tokens or prompt.max_tokens),
            mode=prompt.mode,
            open_ended=False,
        )
        for prompt in given
    )
    disaggregated = deployment.transfer is not None
    role = deployment.role("decode" if disaggregated else "server")
    k = role.speculation.k if role.speculation else 0
    simulated = [
        simulate(zoo.chain, tokenize(prompt.text or ""), prompt.max_tokens, k, disaggregated=disaggregated)
        for prompt in prompts
    ]
    return Workload(
        name="tiny",
        prompts=prompts,
        smoke=smoke,
        concurrency=options.concurrency or _TINY_CONCURRENCY,
        ignore_eos=True,
        counts=ExpectedCounts(
            drafts=sum(one.drafts for one in simulated),
            draft_tokens=sum(one.draft_tokens for one in simulated),
            accepted=sum(one.accepted for one in simulated),
            per_position=tuple(sum(one.per_position[i] for one in simulated) for i in range(k)),
        ),
        texts=tuple(
            ExpectedText(prompt_id=prompt.prompt_id, token_ids=one.token_ids, source="computed")
            for prompt, one in zip(prompts, simulated, strict=True)
        ),
    )
