"""Where CI runs the deployments: one row per vendor, in the words of vLLM 0.33's pipelines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.deployments import ModelSetName

PlatformName = Literal["nvidia", "amd", "intel"]


@dataclass(frozen=True)
class Variant:
    """One way to run a deployment on a platform. ``device``: a pool of one device count carries it in its name.

    ``optional``: nightly only. ``memory_gb``: device memory that an Intel agent must offer.
    """

    models: ModelSetName
    device: str
    label: str
    optional: bool
    memory_gb: int = 16


@dataclass(frozen=True)
class Platform:
    """``extra_dependencies``: paths that concern only this vendor; a change there runs its steps and no others'."""

    name: PlatformName
    emoji: str
    image_step: str
    working_dir: str
    extra_dependencies: tuple[str, ...]
    variants: tuple[Variant, ...]
    # The longest that the vendor's generator lets a step run; None: no limit.
    longest_minutes: int | None = None


WORKSPACE = "/vllm-workspace"
# Where the project is expected in a vLLM checkout, and so in the images. AMD's jobs lay their workspace from an
# artifact that holds few folders of the checkout, .buildkite among them; below tests/ it would pass for vLLM's tests.
PROJECT_FOLDER = ".buildkite/spec_decode_gate"

PLATFORMS: dict[PlatformName, Platform] = {
    "nvidia": Platform(
        "nvidia",
        ":nvidia:",
        "image-build",
        f"{WORKSPACE}/{PROJECT_FOLDER}",
        ("vllm/platforms/cuda.py",),
        (
            # Tiny checkpoints on the smallest pool for every pull request, the real ones every night.
            Variant("tiny", "l4", "L4", optional=False),
            Variant("hub", "h100", "H100", optional=True),
        ),
    ),
    "amd": Platform(
        "amd",
        ":amd:",
        "image-build-amd",
        f"{WORKSPACE}/{PROJECT_FOLDER}",
        ("vllm/platforms/rocm.py",),
        (Variant("tiny", "mi300", "MI300", optional=False), Variant("hub", "mi355", "MI355", optional=True)),
        # The AMD generator cuts every timeout to three hours.
        longest_minutes=180,
    ),
    "intel": Platform(
        "intel",
        ":intel:",
        "image-build-xpu",
        ".",
        ("vllm/platforms/xpu.py",),
        (Variant("tiny", "intel_gpu", "BMG", optional=True, memory_gb=16),),
    ),
}
# AMD's queues by device count; a deployment on three devices takes the next larger one.
AMD_POOLS = (1, 2, 4, 8)


def pool_size(devices: int) -> int:
    """The device count of the smallest AMD pool with room for ``devices``; ``ValueError`` when none is large enough."""
    for count in AMD_POOLS:
        if count >= devices:
            return count
    raise ValueError(f"no AMD pool has {devices} devices")
