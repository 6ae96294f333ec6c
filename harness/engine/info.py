"""What an engine says of itself; everything a plan may adapt to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

EnginePlatform = Literal["cpu", "cuda", "rocm", "xpu"]


@dataclass(frozen=True)
class EngineInfo:
    """One engine environment, as `harness.engine_side.probe` described it under that environment's own interpreter.

    ``flags`` are the server's long options (``--kv-cache-memory-bytes``), ``environment`` the VLLM_* variables that the
    engine defines: plans ask for capabilities, never for a version. ``fingerprint`` changes when any installed
    distribution does. ``pads_loaded_requests``: see `harness.measure.acceptance.Counts.without_padding`.
    """

    python: Path
    origin: Literal["found", "built"]
    fingerprint: str
    python_version: str
    vllm_version: str
    vllm_distribution: str
    platform: EnginePlatform
    torch_version: str
    cuda_version: str | None
    nixl_version: str | None
    transformers_version: str
    flags: frozenset[str]
    environment: frozenset[str]
    architectures: frozenset[str]
    has_torchvision: bool
    has_flashinfer: bool
    pads_loaded_requests: bool
    lock: str | None = None

    def knows(self, flag: str) -> bool:
        """Whether the API server takes the long option ``flag``, with its dashes."""
        return flag in self.flags
