"""The adjustments: what makes a prefill/decode pair usable on a few cores. Each says on stderr what it really did.

``gate-plugin pid=<pid> applied <name> <detail>`` or ``gate-plugin pid=<pid> not-applicable <name> <why>``; no line at
all when the module it is about was never imported in that process. None changes what an engine computes, and none may
ever cure an engine's fault: the gate judges the engine as it is.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

import gate_hooks

# NIXL's Python API asks its UCX progress thread to wait 0 us in poll(), so the thread spins and starves the engine.
NIXL_PROGRESS_DELAY_US = 5000
# A wake-up lost by a shared-memory queue costs its reader a whole recheck interval: 5 s in stock vLLM.
SHM_RECHECK_MS = 5
# Stock readers spin for 1 s after every read, on the core that the writer needs.
SHM_BUSY_S = 0.001

# The packages that hold NIXL's real API; `nixl` itself is an alias for one of them.
NIXL_MODULES = ("nixl_cu12._api", "nixl_cu13._api", "nixl_rocm._api")
SHM_MODULE = "vllm.distributed.device_communicators.shm_broadcast"
TORCHVISION_STANDINS = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)

_MARK = "_gate_adjusted"


class NotApplicable(Exception):
    """What an adjustment wanted to change is not there."""


def apply(names: Sequence[str]) -> None:
    """Apply each named adjustment, or say why not; an unknown name is said too, never ignored."""
    for name in names:
        start = ADJUSTMENTS.get(name)
        if start is None:
            _say("not-applicable", name, f"unknown adjustment; known: {' '.join(ADJUSTMENTS)}")
        else:
            start(name)


def _say(outcome: str, name: str, detail: str) -> None:
    # One write to the descriptor: sys.stderr is decorated by vLLM and may be mid-line in another thread.
    os.write(2, f"gate-plugin pid={os.getpid()} {outcome} {name} {detail}\n".encode())


def _on_import(name: str, module: str, change: Callable[[ModuleType], str]) -> None:
    def act(loaded: ModuleType) -> None:
        try:
            _say("applied", name, change(loaded))
        except NotApplicable as reason:
            _say("not-applicable", name, f"{module}: {reason}")

    gate_hooks.when_imported(module, act)


def _nixl_progress_delay(name: str) -> None:
    for module in NIXL_MODULES:
        _on_import(name, module, slow_progress_thread)


def slow_progress_thread(api: ModuleType) -> str:
    """Make the agents of NIXL's ``api`` use `NIXL_PROGRESS_DELAY_US`, whatever it writes into their config."""
    detail = f"pthrDelay={NIXL_PROGRESS_DELAY_US}us"
    bind = getattr(api, "nixlBind", None)
    config = getattr(bind, "nixlAgentConfig", None)
    if not isinstance(config, type) or not hasattr(config, "pthrDelay"):
        raise NotApplicable("no nixlAgentConfig.pthrDelay")
    if getattr(config, _MARK, False):
        return detail

    class DelayedConfig(config):  # type: ignore[misc, valid-type]
        def __setattr__(self, attribute: str, value: object) -> None:
            super().__setattr__(attribute, NIXL_PROGRESS_DELAY_US if attribute == "pthrDelay" else value)

    setattr(DelayedConfig, _MARK, True)
    bind.nixlAgentConfig = DelayedConfig  # type: ignore[union-attr]
    return detail


def _shm_wakeup(name: str) -> None:
    _on_import(name, SHM_MODULE, shorten_shm_wakeup)


def shorten_shm_wakeup(queue: ModuleType) -> str:
    """Shorten both waits of the shared-memory queue readers of ``queue``; an engine without one of them keeps it."""
    done = []
    if hasattr(queue, "SHM_READER_RECHECK_INTERVAL_MS"):
        queue.SHM_READER_RECHECK_INTERVAL_MS = SHM_RECHECK_MS  # type: ignore[attr-defined]
        done.append(f"recheck={SHM_RECHECK_MS}ms")
    condition = getattr(queue, "SpinCondition", None)
    if condition is not None:
        _limit_spinning(condition)
        done.append(f"busy={SHM_BUSY_S * 1000:g}ms")
    if not done:
        raise NotApplicable("neither SHM_READER_RECHECK_INTERVAL_MS nor SpinCondition")
    return " ".join(done)


def _limit_spinning(condition: type) -> None:
    create = condition.__init__  # type: ignore[misc]
    if getattr(create, _MARK, False):
        return

    def __init__(self, *args, **kwargs):
        create(self, *args, **kwargs)
        if getattr(self, "busy_loop_s", 0):  # writers have 0 and never wait
            self.busy_loop_s = SHM_BUSY_S

    setattr(__init__, _MARK, True)
    condition.__init__ = __init__  # type: ignore[misc]


class _Absent(ModuleType):
    """A module that lets ``import`` succeed and any use fail with the reason."""

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise ImportError(f"torchvision is not installed: {self.__name__}.{attribute} is needed for image input only")


def _torchvision_absent(name: str) -> None:
    if not isinstance(sys.modules.get("torchvision"), _Absent):
        if importlib.util.find_spec("torchvision") is not None:
            _say("not-applicable", name, "torchvision is installed")
            return
        stand_in_for_torchvision()
    _say("applied", name, "stand-in, text only")


def stand_in_for_torchvision() -> None:
    """Modules that image processors import at load time and text-only checkpoints never use."""
    for dotted in TORCHVISION_STANDINS:
        module = _Absent(dotted)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(dotted, None, is_package=True)
        sys.modules[dotted] = module
        parent, _, child = dotted.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


ADJUSTMENTS: dict[str, Callable[[str], None]] = {
    "nixl-progress-delay": _nixl_progress_delay,
    "shm-wakeup": _shm_wakeup,
    "torchvision-absent": _torchvision_absent,
}
