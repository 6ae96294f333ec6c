"""Where the harness keeps things. The only module that reads these from the environment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import Misconfigured

CACHE_VARIABLE = "SPEC_GATE_CACHE"
STATE_VARIABLE = "SPEC_GATE_STATE"

MIB = 1 << 20


@dataclass(frozen=True)
class Locations:
    """``cache`` may be deleted at any time (engines, tiny checkpoints, probe answers). ``state`` holds the
    leases and run records of one user, apart from the cache because losing it would orphan running servers. ``runs``
    receives result folders.
    """

    cache: Path
    state: Path
    runs: Path


def locate(environment: Mapping[str, str], runs: Path | None) -> Locations:
    """The user's choice first, then the platform's usual places."""
    home_cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(environment.get(CACHE_VARIABLE) or home_cache / "spec-decode-gate")
    # One folder per user: a run record names processes to end, so nobody else may write one. Another user's lease is
    # seen all the same, through its machine-wide socket name.
    state = Path(environment.get(STATE_VARIABLE) or f"/var/tmp/spec-decode-gate-{os.getuid()}")
    return Locations(cache=cache.absolute(), state=state.absolute(), runs=(runs or Path("runs")).absolute())


def make_usable(folder: Path, purpose: str, remedy: str, *, free_bytes: int = 0, mode: int = 0o755) -> None:
    """Create ``folder``, or raise Misconfigured saying why it cannot be used and what to do (``remedy``)."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
        probe = folder / f".writable-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise Misconfigured(f"The {purpose} folder {folder} cannot be written ({_why(error)}); {remedy}.") from error
    if free < free_bytes:
        raise Misconfigured(
            f"The {purpose} folder {folder} has {free / MIB:.1f} MiB of free space and a run needs "
            f"{free_bytes / MIB:.0f}; free some or {remedy}."
        )


def _why(error: OSError) -> str:
    # mkdir's own words for these two name nothing that the user could repair.
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is in its place"
    return error.strerror or str(error)
