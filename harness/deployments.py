"""The registry: every deployment the gate knows, as plain data. Standard library only, so `nox --list` needs nox alone.

A `Deployment` says what production would run. What that becomes on one machine with one engine (argv, environment,
devices, ports) is decided in `harness.plan`; nothing here looks at the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RoleName = Literal["prefill", "decode", "server", "reference"]
Method = Literal["eagle3", "mtp"]
ModelSetName = Literal["hub", "tiny"]
KvBuffer = Literal["device", "host"]
WorkloadName = Literal["tiny", "mt-bench", "paired", "gsm8k"]
ZooName = Literal["llama-eagle3", "qwen35-mtp", "deepseek-mtp"]


@dataclass(frozen=True)
class HubModel:
    """A checkpoint on the hub. ``revision`` None: the commit that the cache's ``main`` names; the result records it."""

    repo: str
    revision: str | None = None


@dataclass(frozen=True)
class ModelSet:
    """Which checkpoints a deployment runs. ``drafter`` None: the drafter is part of the target (MTP layers)."""

    target: HubModel
    drafter: HubModel | None
    tiny: ZooName


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
    """One server of the deployment. ``speculation`` None: it runs without a drafter."""

    name: RoleName
    parallel: Parallel = Parallel()
    speculation: Speculation | None = None


@dataclass(frozen=True)
class EngineSettings:
    """Engine arguments that belong to the deployment itself, the same on every machine."""

    max_model_len: int = 4096
    block_size: int | None = None
    ssm_conv_state_layout: str | None = None
    hybrid_kv_cache: bool = False
    prefix_caching: bool = True
    model_runner_v2: bool = False


@dataclass(frozen=True)
class Timeouts:
    """One budget per phase, seconds: room for a cold start of a large checkpoint; a dead child ends a wait at once."""

    lease_s: float = 600
    ready_s: float = 900
    drive_s: float = 1800
    request_s: float = 300
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
    timeouts: Timeouts = Timeouts()
    tags: tuple[str, ...] = ()
    # Platforms the registry expects to refuse this deployment: a success there is a finding (issue 5).
    needs: str = ""

    @property
    def devices(self) -> int:
        """Accelerators of the main stage; the reference server runs before or after it on the same ones."""
        return sum(role.parallel.world_size for role in self.roles if role.name != "reference")

    @property
    def usage(self) -> str:
        """What `nox --list` (first line) and `nox --usage` (all of it) show."""
        drafter = f" + {self.models.drafter.repo}" if self.models.drafter else ""
        moved = (
            f"KV over {self.transfer.connector}, buffers: {', '.join(self.transfer.buffers)}" if self.transfer else ""
        )
        lines = (
            f"{self.summary}. Needs {self.needs}.",
            "",
            f"hub:   {self.models.target.repo}{drafter}",
            f"tiny:  {self.models.tiny}, acceptance computed exactly; default where no accelerator is visible",
            *((moved,) if moved else ()),
            f"judged by: {', '.join(self.checks)}",
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

EAGLE3_PD = Deployment(
    name="eagle3-pd",
    summary="Llama-3.1-8B + EAGLE3 k=3, 1 prefill + 1 decode over NIXL",
    models=ModelSet(
        target=HubModel("meta-llama/Llama-3.1-8B-Instruct"),
        drafter=HubModel("RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"),
        tiny="llama-eagle3",
    ),
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
        max_model_len=4096, block_size=32, ssm_conv_state_layout="DS", hybrid_kv_cache=True, prefix_caching=False
    ),
    tags=("pd", "mtp", "hybrid"),
    needs="2 GPUs (hub: 8 GiB each) or 2 CPU cores (tiny)",
)

DEPLOYMENTS: dict[str, Deployment] = {d.name: d for d in (EAGLE3_PD, MTP_PD)}
