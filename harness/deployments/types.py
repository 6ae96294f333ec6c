"""What a deployment is made of. Standard library only; nothing here looks at the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RoleName = Literal["prefill", "decode", "server", "reference"]
Method = Literal["eagle3", "mtp"]
ModelSetName = Literal["hub", "tiny"]
KvBuffer = Literal["device", "host"]
WorkloadName = Literal["tiny", "mt-bench", "paired", "gsm8k"]
ZooName = Literal["llama-eagle3", "qwen35-mtp", "deepseek-mtp", "gemma4-mtp", "mimo-mtp", "jamba"]


@dataclass(frozen=True)
class HubModel:
    """A checkpoint on the hub. ``revision`` None: the commit that the cache's ``main`` names; the result records it.

    ``random_weights``: it was never trained, so no prompt forces its next token.
    """

    repo: str
    revision: str | None = None
    random_weights: bool = False


@dataclass(frozen=True)
class ModelSet:
    """Which checkpoints a deployment runs. ``drafter`` None: the drafter is part of the target (MTP layers).

    ``tiny`` None: no analytic checkpoint of this family can be built, so the deployment runs on hub models only.
    """

    target: HubModel
    drafter: HubModel | None
    tiny: ZooName | None


@dataclass(frozen=True)
class Eplb:
    """Expert-parallel load balancing, in engine steps (``window_size``, ``step_interval``) and experts."""

    window_size: int
    step_interval: int
    num_redundant_experts: int


@dataclass(frozen=True)
class Parallel:
    """Ranks of one server: ``tp * dp * pp`` devices."""

    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: bool = False
    eplb: Eplb | None = None

    @property
    def world_size(self) -> int:
        return self.tp * self.dp * self.pp


@dataclass(frozen=True)
class Speculation:
    """``k`` draft tokens per step. ``synthetic_length``: ask the synthetic rejection sampler for this mean length."""

    method: Method
    k: int
    synthetic_length: float | None = None


@dataclass(frozen=True)
class Transfer:
    """How KV moves from prefill to decode. ``buffers``: the KV buffer devices, one run each on an accelerator."""

    connector: str = "NixlConnector"
    buffers: tuple[KvBuffer, ...] = ("device",)


@dataclass(frozen=True)
class Role:
    """One server of the deployment. ``speculation`` None: it runs without a drafter.

    ``reference``: gets the same prompts, for comparison only; it is never part of what is being judged.
    """

    name: RoleName
    parallel: Parallel = Parallel()
    speculation: Speculation | None = None


@dataclass(frozen=True)
class EngineSettings:
    """Engine arguments that belong to the deployment itself, the same on every machine.

    ``batch_invariant``: on CUDA, kernels whose result does not depend on the batch; only with hub models, whose text
    would otherwise depend on rounding. ``text_only``: no profiling of images, video or audio. ``gated_delta_net``: the
    model has such layers, whose prefill kernels CUDA engines take from FlashInfer. ``remote_code``: the hub model's
    configuration is code of its repository, which the engine does not run unasked.
    """

    max_model_len: int = 4096
    block_size: int | None = None
    ssm_conv_state_layout: str | None = None
    hybrid_kv_cache: bool = False
    prefix_caching: bool = True
    model_runner_v2: bool = False
    batch_invariant: bool = False
    text_only: bool = False
    gated_delta_net: bool = False
    remote_code: bool = False


@dataclass(frozen=True)
class Limits:
    """How far a hub run may stray from its reference; tiny runs must be exact. None: not judged.

    ``token_match``: least share of positions with the same token, over all answers. ``identical``: least share of
    answers that are identical in their first ``compared_tokens`` tokens. ``gsm8k``: least accuracy; 0 for random
    weights, which cannot solve anything. ``synthetic_within``: largest distance from the length asked for.
    """

    token_match: float | None = None
    identical: float | None = None
    compared_tokens: int | None = None
    gsm8k: float | None = None
    synthetic_within: float | None = None


@dataclass(frozen=True)
class Gate:
    """Where a deployment cannot run whatever the engine does, and why. Fields that are None do not matter.

    ``transformers``: oldest version that knows the model. ``not_capability``: CUDA compute capability, major number.
    ``models``: the model set that this concerns.
    """

    reason: str
    transformers: str | None = None
    not_capability: int | None = None
    models: ModelSetName | None = None


@dataclass(frozen=True)
class Timeouts:
    """One budget per phase, seconds: room for a cold start of a large checkpoint; a dead child ends a wait at once."""

    lease_s: float = 600
    ready_s: float = 900
    drive_s: float = 1800
    request_s: float = 300
    # The engine adds a request's counts to its metrics after the answer is on its way. Generous: an idle engine needs
    # milliseconds, and a count that never comes is judged as missing.
    settle_s: float = 10
    stop_s: float = 30


@dataclass(frozen=True)
class Deployment:
    """One nox session. ``checks`` are names registered in `harness.checks`; every one of them must be judged."""

    name: str
    summary: str
    models: ModelSet
    roles: tuple[Role, ...]
    workload: WorkloadName
    checks: tuple[str, ...]
    transfer: Transfer | None = None
    settings: EngineSettings = EngineSettings()
    limits: Limits = Limits()
    gates: tuple[Gate, ...] = ()
    timeouts: Timeouts = Timeouts()
    tags: tuple[str, ...] = ()
    needs: str = ""

    @property
    def devices(self) -> int:
        """Accelerators of what is judged; a reference server has others if there are any, else the same ones later."""
        return sum(role.parallel.world_size for role in self.roles if role.name != "reference")

    @property
    def usage(self) -> str:
        """What `nox --list` (first line) and `nox --usage` (all of it) show."""
        drafter = f" + {self.models.drafter.repo}" if self.models.drafter else ""
        moved = (
            f"KV over {self.transfer.connector}, buffers: {', '.join(self.transfer.buffers)}" if self.transfer else ""
        )
        tiny = (
            f"tiny:  {self.models.tiny}, computed exactly; default where no accelerator is visible"
            if self.models.tiny
            else "tiny:  none, this family has no analytic checkpoint"
        )
        lines = (
            f"{self.summary}. Needs {self.needs}.",
            "",
            f"hub:   {self.models.target.repo}{drafter}",
            tiny,
            *((moved,) if moved else ()),
            f"judged by: {', '.join(self.checks)}",
            *(f"not everywhere: {gate.reason}" for gate in self.gates),
            "",
            "options after `--`: --models hub|tiny  --devices 0,1  --engine auto|cpu|cuda|PYTHON  --dry-run  --help",
        )
        return "\n".join(lines)

    def role(self, name: RoleName) -> Role:
        """The role called ``name``; ``KeyError`` when the deployment has none."""
        for role in self.roles:
            if role.name == name:
                return role
        raise KeyError(f"{self.name} has no {name} role")

    @property
    def judged_role(self) -> Role:
        """The role whose answers and drafts are judged: decode of a prefill/decode pair, else the server."""
        return self.role("decode" if self.transfer is not None else "server")
