"""Which engine a choice means. Found engines are stand-in scripts that answer as an interpreter would."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.engine.build import BasePython
from harness.engine.info import EngineInfo
from harness.engine.resolve import resolve
from harness.errors import GateError, Misconfigured

from .test_engine_probing import ANSWER


def python(folder: Path, *, has_vllm: bool) -> Path:
    """A program that answers both questions asked of an interpreter: what it sees, and what its vLLM is."""
    path = folder / ("with-vllm" if has_vllm else "without-vllm")
    look = json.dumps([[3, 11, 7], [], str(folder / "vllm" / "__init__.py") if has_vllm else None])
    path.write_text(f"#!/bin/sh\nif [ \"$1\" = -c ]; then echo '{look}'; else echo '{json.dumps(ANSWER)}'; fi\n")
    path.chmod(0o755)
    return path


def chosen(choice: str, folder: Path, *, host: Path | None = None, gpu: bool = False) -> EngineInfo:
    return resolve(
        choice,
        folder / "cache",
        lambda _line: None,
        host_python=host,
        gpu_visible=gpu,
        environ={"PATH": os.defpath},
        base=BasePython(folder / "no-base-python", (3, 11, 7)),
    )


def test_auto_uses_the_host_interpreter_when_it_has_vllm(tmp_path: Path) -> None:
    host = python(tmp_path, has_vllm=True)
    info = chosen("auto", tmp_path, host=host)
    assert (info.python, info.origin, info.lock) == (host, "found", None)


@pytest.mark.parametrize(("gpu", "lock"), [(False, "cpu-"), (True, "cuda-")])
def test_auto_builds_for_what_is_visible_when_the_host_has_no_vllm(tmp_path: Path, gpu: bool, lock: str) -> None:
    with pytest.raises(GateError) as failure:
        chosen("auto", tmp_path, host=python(tmp_path, has_vllm=False), gpu=gpu)
    assert f"/engines/{lock}" in str(failure.value)


def test_an_explicit_interpreter_wins_over_everything(tmp_path: Path) -> None:
    given = python(tmp_path, has_vllm=True)
    assert chosen(str(given), tmp_path, host=None, gpu=True).python == given


def test_a_link_to_an_interpreter_is_used_as_the_link(tmp_path: Path) -> None:
    link = tmp_path / "venv-python"
    link.symlink_to(python(tmp_path, has_vllm=True))
    assert chosen(str(link), tmp_path).python == link


def test_an_interpreter_that_is_absent_or_without_vllm_is_misconfigured(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot import vllm"):
        chosen(str(python(tmp_path, has_vllm=False)), tmp_path)
    with pytest.raises(Misconfigured, match="no such file"):
        chosen(str(tmp_path / "nowhere" / "python"), tmp_path)
    with pytest.raises(Misconfigured, match="not auto, cpu, cuda"):
        chosen("gpu", tmp_path)
