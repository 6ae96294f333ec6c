"""The values a plan is made from and made of. No behaviour beyond look-ups."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.deployments import KvBuffer, ModelSetName, RoleName
from harness.engine.info import EnginePlatform

LaunchMode = Literal["spawn", "warm"]
RouterMode = Literal["vllm-router", "direct"]
# ``beside`` the judged servers or ``after`` they have stopped; ``auto``: beside them where the devices allow it.
ReferenceMode = Literal["auto", "beside", "after", "none"]
StageName = Literal["main", "reference"]


@dataclass(frozen=True)
class Device:
    """One leasable thing: a GPU (``key`` is its UUID) or, on CPU, a core (``key`` is ``cpu-core-N``).

    ``capability``: a CUDA device's compute capability, major and minor; None where there is no such thing.
    """

    index: int
    key: str
    name: str
    total_bytes: int
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Machine:
    """The host as `harness.runtime.devices` saw it. ``devices`` are the accelerators, or the cores on CPU."""

    platform: EnginePlatform
    devices: tuple[Device, ...]
    memory_bytes: int
    cores: int
    host: str
    driver: str | None = None


@dataclass(frozen=True)
class Options:
    """What the user asked for, after parsing; defaults are the ones a laptop wants."""

    models: ModelSetName | Literal["auto"] = "auto"
    devices: tuple[int, ...] | None = None
    share_devices: bool = False
    launch: LaunchMode | Literal["auto"] = "auto"
    router: RouterMode = "vllm-router"
    reference: ReferenceMode = "auto"
    adjust: bool = True
    kv_buffer: KvBuffer | None = None
    dataset: Path | None = None
    prompts: int | None = None
    max_tokens: int | None = None
    concurrency: int | None = None
    keep_logs: bool = False
    logprobs: bool = False
    gsm8k_through: Literal["jsonl", "lm-eval"] = "jsonl"


@dataclass(frozen=True)
class ModelPaths:
    """Where the checkpoints lie on this machine. ``drafter`` None: the drafter is part of the target.

    ``provenance``: for a hub model ``repo@commit``, for a tiny one ``zoo:<name>@<content hash>``.
    """

    target: Path
    drafter: Path | None
    provenance: tuple[str, ...]


@dataclass(frozen=True)
class PortRun:
    """``length`` ports that follow each other, for one purpose of one server (``prefill-0/nixl``)."""

    purpose: str
    length: int


@dataclass(frozen=True)
class Needs:
    """What must be leased before a plan can be exact."""

    devices_per_server: dict[str, int]
    ports: tuple[PortRun, ...]

    @property
    def judged(self) -> dict[str, int]:
        """Devices of each server that is judged."""
        return {name: count for name, count in self.devices_per_server.items() if not _is_reference(name)}

    @property
    def reference(self) -> dict[str, int]:
        """Devices of the reference server; empty without one."""
        return {name: count for name, count in self.devices_per_server.items() if _is_reference(name)}


def _is_reference(server: str) -> bool:
    return server.startswith("reference-")


@dataclass(frozen=True)
class Allocation:
    """What was leased: devices by server name (``prefill-0``), first port by `PortRun.purpose`."""

    devices: dict[str, tuple[Device, ...]]
    ports: dict[str, int]


@dataclass(frozen=True)
class ServerPlan:
    """One vLLM API server. ``argv`` follows the interpreter: ``python -m vllm.entrypoints.openai.api_server ARGV``.

    ``environment`` holds only what the harness sets; ``removed`` the inherited variables that are taken away, with why.
    ``side_channel_ports``: one NIXL handshake port per rank; empty without a transfer.
    """

    name: str
    role: RoleName
    host: str
    port: int
    argv: tuple[str, ...]
    environment: dict[str, str]
    removed: dict[str, str]
    devices: tuple[Device, ...]
    served_model: str
    engines: int
    ranks: int
    side_channel_ports: tuple[int, ...]
    metrics_url: str
    log_name: str

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class RouterPlan:
    """The router in front of a prefill/decode pair. ``argv`` is complete, interpreter first. None for ``direct``."""

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    removed: dict[str, str]
    host: str
    port: int
    metrics_port: int
    log_name: str

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True)
class Part:
    """The servers of a stage that get the workload together: the judged ones, or the reference."""

    name: StageName
    servers: tuple[ServerPlan, ...]
    router: RouterPlan | None

    def server(self, role: RoleName) -> ServerPlan:
        return next(server for server in self.servers if server.role == role)


@dataclass(frozen=True)
class Stage:
    """Servers that live at the same time. A run is one or more stages, one after the other (main, then reference).

    The main stage may hold the reference server too, where it has devices of its own.
    """

    name: StageName
    servers: tuple[ServerPlan, ...]
    router: RouterPlan | None

    def server(self, role: RoleName) -> ServerPlan:
        return next(server for server in self.servers if server.role == role)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The judged servers first, then the reference; only those that there are."""
        judged = tuple(server for server in self.servers if server.role != "reference")
        reference = tuple(server for server in self.servers if server.role == "reference")
        parts = (Part("main", judged, self.router), Part("reference", reference, None))
        return tuple(part for part in parts if part.servers)


@dataclass(frozen=True)
class Plan:
    """Everything a run will do, before it does it; written to plan.json and printed by ``--dry-run``."""

    deployment: str
    model_set: ModelSetName
    models: ModelPaths
    launch: LaunchMode
    kv_buffer: KvBuffer | None
    stages: tuple[Stage, ...]
    # Names of the speed-only adjustments that the engine plugin is asked to make; never one that heals the engine.
    adjustments: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())
