"""The workload of a deployment on this model set, with the outputs and counts that are known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harness.deployments import Deployment, ModelSetName
from harness.drive.lm_eval import Evaluation, prepare_evaluation
from harness.drive.paired import (
    COPY_MAX_TOKENS,
    COPY_PROMPTS,
    GSM8K_MAX_TOKENS,
    GSM8K_QUESTIONS,
    PAIRED_PROMPTS,
    load_gsm8k,
    paired_prompts,
)
from harness.drive.workloads import MT_BENCH_MAX_TOKENS, MT_BENCH_PROMPTS, Prompt, load_mt_bench, workload_hash
from harness.errors import Misconfigured
from harness.facts import ExpectedCounts, ExpectedText
from harness.plan.types import Options
from harness.runtime.identity import KEEP_ENVIRONMENT_VARIABLE, MARKER_VARIABLE
from harness.zoo import ZooModel, simulate, tiny_prompts, tokenize

# Enough to keep both servers busy; exact counts do not depend on it.
_TINY_CONCURRENCY = 2
_HUB_CONCURRENCY = 8
# Rounding drives two runs of random weights apart within a few tokens; a trained model holds its course longer.
_PAIRED_TOKENS = 32
_PAIRED_TOKENS_RANDOM = 8

# Two runs part where a few tokens are nearly as likely; a token below these is not there by rounding.
_TOP_LOGPROBS = 5

# Short, and no prefix of a workload prompt: a warm prefix cache would take the place of a transfer.
_SMOKE_TEXT = "9876543210 smoke"
_SMOKE_TOKENS = 8


@dataclass(frozen=True)
class Workload:
    """``counts`` and ``texts`` are computed (tiny models) or absent. ``answers``: right ones by prompt id, if any.

    ``ignore_eos``: every answer has the length asked for. ``top_logprobs``: how many tokens each position lists.
    ``evaluation``: what lm-eval asks afterwards.
    """

    name: str
    prompts: tuple[Prompt, ...]
    smoke: Prompt
    concurrency: int
    ignore_eos: bool
    counts: ExpectedCounts | None
    texts: tuple[ExpectedText, ...]
    answers: dict[str, str] = field(default_factory=dict)
    top_logprobs: int | None = None
    evaluation: Evaluation | None = None

    def marked(self, marker: str) -> Workload:
        """The same, and what lm-eval starts carries the mark of the run: left behind, it would else be nobody's."""
        if self.evaluation is None:
            return self
        environment = {**self.evaluation.environment, MARKER_VARIABLE: marker, KEEP_ENVIRONMENT_VARIABLE: "1"}
        return replace(self, evaluation=replace(self.evaluation, environment=environment))

    @property
    def hash(self) -> str:
        return workload_hash(self.prompts)


def load_workload(
    deployment: Deployment, model_set: ModelSetName, options: Options, zoo: ZooModel | None, *, padded: bool = True
) -> Workload:
    """Raises Misconfigured when the prompts cannot be had, naming the file and line."""
    smoke = Prompt(prompt_id="smoke", text=_SMOKE_TEXT, max_tokens=_SMOKE_TOKENS)
    if model_set == "tiny":
        if zoo is None:
            raise ValueError("tiny models come from the zoo")
        return _tiny(deployment, options, zoo, smoke, padded)
    answers: dict[str, str] = {}
    match deployment.workload:
        case "paired":
            prompts = _paired(deployment, options)
        case "gsm8k":
            prompts, answers = _gsm8k(deployment, options)
        case _:
            prompts = load_mt_bench(
                options.dataset,
                prompts=options.prompts or MT_BENCH_PROMPTS,
                max_tokens=options.max_tokens or MT_BENCH_MAX_TOKENS,
            )
    return Workload(
        name=deployment.workload,
        prompts=prompts,
        smoke=smoke,
        concurrency=options.concurrency or _HUB_CONCURRENCY,
        ignore_eos=deployment.workload == "paired",
        counts=None,
        texts=(),
        answers=answers,
        top_logprobs=_TOP_LOGPROBS if options.logprobs else None,
    )


def _paired(deployment: Deployment, options: Options) -> tuple[Prompt, ...]:
    if options.dataset is not None:
        raise Misconfigured(f"{deployment.name} makes its own prompts and takes no --dataset; drop it.")
    random_weights = deployment.models.target.random_weights
    tokens = options.max_tokens or (_PAIRED_TOKENS_RANDOM if random_weights else _PAIRED_TOKENS)
    return paired_prompts(options.prompts or PAIRED_PROMPTS, tokens, random_weights=random_weights)


def _gsm8k(deployment: Deployment, options: Options) -> tuple[tuple[Prompt, ...], dict[str, str]]:
    """Short prompts to compare, then the questions where the model can solve any. ``--prompts``: so many of each."""
    random_weights = deployment.models.target.random_weights
    compared = paired_prompts(options.prompts or COPY_PROMPTS, COPY_MAX_TOKENS, random_weights=random_weights)
    if not deployment.limits.gsm8k or options.gsm8k_through == "lm-eval":
        return compared, {}
    asked = load_gsm8k(
        options.dataset,
        questions=options.prompts or GSM8K_QUESTIONS,
        max_tokens=options.max_tokens or GSM8K_MAX_TOKENS,
    )
    return (*compared, *asked.prompts), asked.answers


def evaluation_of(
    deployment: Deployment, options: Options, inherited: Mapping[str, str], *, offline: bool
) -> Evaluation | None:
    """What lm-eval is to ask; None unless it was chosen. Raises Misconfigured, before anything is started."""
    if options.gsm8k_through != "lm-eval":
        return None
    if "gsm8k_threshold" not in deployment.checks:
        raise Misconfigured(f"{deployment.name} solves no GSM8K problems; drop --gsm8k-through.")
    questions, max_tokens = options.prompts or GSM8K_QUESTIONS, options.max_tokens or GSM8K_MAX_TOKENS
    return prepare_evaluation(options.dataset, questions, max_tokens, inherited, offline=offline)


def _tiny(deployment: Deployment, options: Options, zoo: ZooModel, smoke: Prompt, padded: bool) -> Workload:
    if options.dataset is not None and options.gsm8k_through != "lm-eval":
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
    role = deployment.judged_role
    counts, texts = _computed(deployment, zoo, prompts, padded)
    return Workload(
        name="tiny",
        prompts=prompts,
        smoke=smoke,
        # Enough at once that no engine of a data-parallel server is left out.
        concurrency=options.concurrency or _TINY_CONCURRENCY * role.parallel.dp,
        ignore_eos=True,
        counts=counts,
        texts=texts,
        top_logprobs=_TOP_LOGPROBS if options.logprobs else None,
    )


def _computed(
    deployment: Deployment, zoo: ZooModel, prompts: tuple[Prompt, ...], padded: bool
) -> tuple[ExpectedCounts | None, tuple[ExpectedText, ...]]:
    """What the judged servers must count and answer; no counts without a drafter, nothing under a synthetic sampler."""
    speculation = deployment.judged_role.speculation
    if speculation is not None and speculation.synthetic_length is not None:
        return None, ()
    k = speculation.k if speculation else 0
    simulated = [
        simulate(
            zoo.chain,
            tokenize(prompt.text or ""),
            prompt.max_tokens,
            k,
            disaggregated=deployment.transfer is not None,
            padded=padded,
        )
        for prompt in prompts
    ]
    counts = ExpectedCounts(
        drafts=sum(one.drafts for one in simulated),
        draft_tokens=sum(one.draft_tokens for one in simulated),
        accepted=sum(one.accepted for one in simulated),
        per_position=tuple(sum(one.per_position[i] for one in simulated) for i in range(k)),
    )
    texts = tuple(
        ExpectedText(prompt_id=prompt.prompt_id, token_ids=one.token_ids, source="computed")
        for prompt, one in zip(prompts, simulated, strict=True)
    )
    return counts if k else None, texts
