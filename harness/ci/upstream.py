"""What only the vLLM tree can say of its own CI: which image the jobs of Intel's runner script start. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from harness.errors import Misconfigured

RUNNER = ".buildkite/scripts/hardware_ci/run-intel-test.sh"
# The script starts `REGISTRY/REPO:COMMIT-xpu`. The generator puts these two into NVIDIA's pipeline only.
IMAGE_VARIABLES = ("REGISTRY", "REPO")


def image_variables(files: Mapping[str, Any]) -> dict[str, str]:
    """`IMAGE_VARIABLES` as the steps of ``files`` (path to parsed YAML) that call the runner script set them.

    `Misconfigured` when a variable is set by none of them, or by two differently: a guess would start another image.
    """
    found: dict[str, dict[str, str]] = {name: {} for name in IMAGE_VARIABLES}
    for path in sorted(files):
        for step in _steps(files[path]):
            env = step.get("env")
            # One command may stand alone, or in a list; written out either way, the script's name is in it.
            if PurePosixPath(RUNNER).name in str(step.get("commands")) and isinstance(env, dict):
                for name, seen in found.items():
                    if name in env:
                        seen.setdefault(str(env[name]), path)
    for name, seen in found.items():
        if len(seen) != 1:
            said = " and ".join(f"{path} sets it to {value}" for value, path in seen.items()) or "none sets it"
            raise Misconfigured(
                f"the steps that call {RUNNER} do not agree on one {name} ({said}): "
                "give a vLLM checkout whose .buildkite/intel_jobs name the image"
            )
    return {name: next(iter(seen)) for name, seen in found.items()}


def _steps(document: Any) -> list[dict[str, Any]]:
    steps = document.get("steps") if isinstance(document, dict) else None
    return [step for step in steps or () if isinstance(step, dict)]
