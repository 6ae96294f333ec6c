"""What a run observed: the one value that every check judges. Written to facts.json, so a run can be judged again.

Nothing here is an opinion: no thresholds, no verdicts. A fact that could not be had is None, never 0.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from harness.deployments import Method, RoleName
from harness.engine.info import EnginePlatform

# Who got a request: what is judged, the reference, or the reference once more to see whether it agrees with itself.
RequestStage = Literal["main", "reference", "control"]


class Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sample(Fact):
    """One line of a /metrics page."""

    name: str
    labels: dict[str, str]
    value: float


class Snapshot(Fact):
    """One /metrics page. ``taken_at_s`` is time.monotonic() of the harness."""

    url: str
    taken_at_s: float
    samples: tuple[Sample, ...]


class EffectiveConfig(Fact):
    """What the engine itself says it runs, read from its own start-up log; None where the engine did not say."""

    model: str | None
    method: str | None
    k: int | None
    drafter: str | None
    tensor_parallel: int | None
    data_parallel: int | None
    pipeline_parallel: int | None
    expert_parallel: bool | None
    connector: str | None
    kv_buffer_device: str | None
    kv_role: str | None
    load_failure_policy: str | None
    block_size: int | None
    max_model_len: int | None
    source: str
    model_runner_v2: bool | None = None
    # The engine said that it enlarged the block so that it holds one recurrent state (hybrid models).
    block_enlarged: bool = False


class RequestedConfig(Fact):
    """What the plan asked for, in the same terms. ``model_runner_v2`` None: whichever the engine prefers."""

    model: str
    method: Method | None
    k: int | None
    drafter: str | None
    tensor_parallel: int
    data_parallel: int
    pipeline_parallel: int
    expert_parallel: bool
    connector: str | None
    kv_buffer_device: str | None
    kv_role: str | None
    load_failure_policy: str | None
    block_size: int | None
    max_model_len: int
    model_runner_v2: bool | None = None


class ServerFacts(Fact):
    """One server over the run. ``windows`` are snapshots in time order: after the smoke request, ..., after the run.

    ``windows`` holds at least the two outer snapshots. ``answered_after_run``: a completion sent after the last
    request came back with the token count asked for; ``after_error`` quotes what happened otherwise.
    """

    name: str
    role: RoleName
    stage: Literal["main", "reference"]
    url: str
    log: str
    engines: int
    ranks: int
    requested: RequestedConfig
    effective: EffectiveConfig
    windows: tuple[Snapshot, ...]
    answered_after_run: bool
    after_error: str | None
    # How often the experts had been rearranged when each of ``windows`` was taken; None without load balancing.
    rearranged: tuple[int, ...] | None = None


class RequestFacts(Fact):
    """One request of the workload. Times in seconds. ``status`` None: no HTTP answer (``error`` says why).

    ``prompt_token_ids`` are those that the engine reports for the prompt (chat template applied), None if it did not.
    ``body_error``: the text of an error found inside a 2xx answer.
    """

    index: int
    prompt_id: str
    stage: RequestStage
    max_tokens: int
    status: int | None
    error: str | None
    body_error: str | None
    text: str | None
    token_ids: tuple[int, ...] | None
    prompt_token_ids: tuple[int, ...] | None
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    started_at_s: float
    duration_s: float
    first_hop_s: float | None
    accepted_per_step: tuple[int, ...] | None
    open_ended: bool = True
    mode: str = ""
    # At each position the likeliest tokens and their log probabilities; None unless asked for (--logprobs).
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None


class RouterFacts(Fact):
    """What the router says it served; ``per_worker`` by backend URL. ``mode`` direct: the harness's own hops."""

    mode: Literal["vllm-router", "direct"]
    served: int | None
    failed: int | None
    per_worker: dict[str, int]
    # The same by the hop that the backend was asked for; empty in facts of runs before this was kept.
    prefill_hops: dict[str, int] = {}
    decode_hops: dict[str, int] = {}


class ExpectedCounts(Fact):
    """Computed by the simulator for the whole workload, as the decode side counts (PD padding included)."""

    drafts: int
    draft_tokens: int
    accepted: int
    per_position: tuple[int, ...]


class ExpectedText(Fact):
    """The right output of one request. ``source``: ``computed`` (simulator) or ``reference`` (a server's output)."""

    prompt_id: str
    token_ids: tuple[int, ...]
    source: Literal["computed", "reference"]


class BaselineFacts(Fact):
    """The baseline entry that was selected for this run; see `harness.baselines` for the certificate."""

    key: str
    acceptance_length: float | None
    per_position: tuple[float, ...] | None
    rtol: float | None
    sided: Literal["two", "lower"]
    exact: bool
    estimator: str
    certificate: dict[str, str]


class LimitFacts(Fact):
    """How far the run may stray from its reference; see `harness.deployments.Limits`. None: not judged."""

    token_match: float | None = None
    identical: float | None = None
    compared_tokens: int | None = None
    gsm8k: float | None = None
    synthetic_length: float | None = None
    synthetic_within: float | None = None


class EvaluationFacts(Fact):
    """One evaluation by lm-eval, after the workload: how many of the questions asked were answered right.

    ``exact_match`` by its flexible filter, ``exact_match_strict`` by its strict one; ``output``: the file it wrote.
    """

    stage: Literal["main", "reference"]
    task: str
    right: int
    asked: int
    exact_match: float
    exact_match_strict: float
    lm_eval_version: str
    output: str


class RunFacts(Fact):
    """Everything one run observed. ``expected_answers``: right answers by prompt id, where prompts have one."""

    deployment: str
    model_set: Literal["hub", "tiny"]
    platform: EnginePlatform
    disaggregated: bool
    pads_loaded_requests: bool = True
    method: Method | None
    k: int | None
    bos_token_id: int | None
    add_bos_expected: bool
    prompts: int
    servers: tuple[ServerFacts, ...]
    requests: tuple[RequestFacts, ...]
    router: RouterFacts | None
    expected_counts: ExpectedCounts | None
    expected_text: tuple[ExpectedText, ...]
    reference_mode: Literal["computed", "server", "none"]
    baseline: BaselineFacts | None
    baseline_error: str | None
    checks: tuple[str, ...]
    limits: LimitFacts = LimitFacts()
    expected_answers: dict[str, str] = {}
    reference_declined: bool = False
    # The run whose reference server gave the reference part of these facts; None: this one.
    reference_from: str | None = None
    gsm8k_through: Literal["jsonl", "lm-eval"] = "jsonl"
    evaluations: tuple[EvaluationFacts, ...] = ()


class CheckResult(Fact):
    """What one check found. ``verdict`` is what a failure means; a pass carries the figures that show it."""

    name: str
    ok: bool
    verdict: Literal["pass", "regression", "infra", "misconfigured", "unsupported"]
    summary: str
    figures: dict[str, float | int | str | None] = {}
    evidence: tuple[str, ...] = ()
