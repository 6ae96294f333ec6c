"""Run by the engine's own Python: says what this engine is, as one JSON object on the last line of stdout.

Standard library and vLLM only. Never starts an engine, never touches a device beyond vLLM's own platform detection.
On failure: exit code 1, the reason as the last line of stderr.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import sys

# Where the argument parser of vLLM's API server has been, newest first (0.33, 0.32, 0.24). A new place is an error,
# not a shorter list of flags: plans would leave out what they believe unknown.
PARSER_MODULES = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
ARGPARSE_MODULES = ("vllm.utils.argparse_utils", "vllm.utils")


def first_attribute(modules: tuple[str, ...], attribute: str):
    """``attribute`` of the first of ``modules`` that has it; ImportError names them all."""
    for name in modules:
        try:
            return getattr(importlib.import_module(name), attribute)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise ImportError(f"no {attribute} in any of {', '.join(modules)}")


def server_flags() -> list[str]:
    """The long options of the API server, from the parser that the server itself uses."""
    parser = first_attribute(ARGPARSE_MODULES, "FlexibleArgumentParser")(add_help=False)
    parser = first_attribute(PARSER_MODULES, "make_arg_parser")(parser)
    return sorted(option for action in parser._actions for option in action.option_strings if option.startswith("--"))


def platform_name() -> str:
    from vllm.platforms import current_platform

    for name in ("cpu", "cuda", "rocm", "xpu"):
        if getattr(current_platform, f"is_{name}", lambda: False)():
            return name
    raise RuntimeError(f"vLLM sees no device it can run on ({type(current_platform).__name__})")


def distribution_version(*names: str) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def nixl_version() -> str | None:
    """None also when NIXL is installed but cannot be imported, as with the wrong CUDA variant."""
    package = "nixl_rocm" if importlib.util.find_spec("nixl") is None else "nixl"
    try:
        importlib.import_module(f"{package}._api")
    except ImportError:
        return None
    return distribution_version("nixl", "nixl-cu13", "nixl-cu12", "nixl-rocm", "nixl_rocm") or "unknown"


def vllm_distribution() -> str:
    """The name under which vLLM was installed; "" for a bare source tree."""
    names = importlib.metadata.packages_distributions().get("vllm", [])
    return next(iter(names), "")


def has_torchvision() -> bool:
    """Imported, not looked up: a CUDA torchvision beside a CPU torch is found and then fails."""
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        return False
    return True


def has_flashinfer() -> bool:
    """Looked up, not imported: its import alone takes seconds and may compile."""
    return importlib.util.find_spec("flashinfer") is not None


def pads_loaded_requests() -> bool:
    """Whether the scheduler pads the one-token step of a KV-loaded request with rejected drafts (0.32; not 0.24)."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return "pad_spec_decode" in Scheduler.schedule.__code__.co_varnames


def describe() -> dict[str, object]:
    import torch
    import transformers
    import vllm
    import vllm.envs
    from vllm.model_executor.models.registry import ModelRegistry

    return {
        "python_version": ".".join(str(part) for part in sys.version_info[:3]),
        "vllm_version": vllm.__version__,
        "vllm_distribution": vllm_distribution(),
        "platform": platform_name(),
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "nixl_version": nixl_version(),
        "transformers_version": transformers.__version__,
        "flags": server_flags(),
        "environment": sorted(vllm.envs.environment_variables),
        "architectures": sorted(ModelRegistry.get_supported_archs()),
        "has_torchvision": has_torchvision(),
        "has_flashinfer": has_flashinfer(),
        "pads_loaded_requests": pads_loaded_requests(),
    }


if __name__ == "__main__":
    answer = json.dumps(describe())
    print("\n" + answer, flush=True)
