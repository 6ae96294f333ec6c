"""Looking at an interpreter, and the fingerprint of what it sees."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.engine.interpreter import (
    ENGINE_PLUGIN,
    Interpreter,
    engine_environment,
    engine_python_path,
    fingerprint,
    look,
    parse_look,
)
from harness.errors import Misconfigured


def interpreter(*path: Path, vllm_origin: Path | None = None) -> Interpreter:
    return Interpreter(Path(sys.executable), (3, 11, 7), tuple(str(entry) for entry in path), vllm_origin)


def test_a_vllm_that_arrives_by_pythonpath_is_found_without_importing_it(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    seen = look(Path(sys.executable), engine_environment(environ, found=True))
    assert seen.vllm_origin == package / "__init__.py"
    assert str(tmp_path) in seen.path


def test_a_built_engine_does_not_inherit_pythonpath_and_a_found_one_does() -> None:
    environ = {"PYTHONPATH": "/site", "VIRTUAL_ENV": "/runner", "PATH": "/bin"}
    assert engine_environment(environ, found=True)["PYTHONPATH"] == "/site"
    assert "PYTHONPATH" not in engine_environment(environ, found=False)
    assert "VIRTUAL_ENV" not in engine_environment(environ, found=True)
    assert engine_python_path(environ, found=True) == f"{ENGINE_PLUGIN}{os.pathsep}/site"
    assert engine_python_path(environ, found=False) == str(ENGINE_PLUGIN)


def test_something_that_is_not_a_python_is_refused_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="Cannot run"):
        look(tmp_path / "absent", {})
    with pytest.raises(Misconfigured, match="not a usable Python for an engine: SyntaxError"):
        parse_look(Path("python2"), 1, "", "Traceback\nSyntaxError")
    with pytest.raises(Misconfigured, match="exit code 0"):
        parse_look(Path("true"), 0, "", "")


def test_the_fingerprint_changes_with_any_distribution_on_the_path(tmp_path: Path) -> None:
    site, extra = tmp_path / "site", tmp_path / "extra"
    (site / "vllm-0.32.0.dist-info").mkdir(parents=True)
    extra.mkdir()
    before = fingerprint(interpreter(site, extra, tmp_path / "absent"))
    assert fingerprint(interpreter(site, extra, tmp_path / "absent")) == before
    (extra / "nixl-1.5.0.dist-info").mkdir()
    added = fingerprint(interpreter(site, extra, tmp_path / "absent"))
    (site / "vllm-0.32.0.dist-info").rename(site / "vllm-0.33.0.dist-info")
    updated = fingerprint(interpreter(site, extra, tmp_path / "absent"))
    assert len({before, added, updated, fingerprint(interpreter(site, extra), ("another probe",))}) == 4


def test_the_fingerprint_sees_an_updated_checkout_under_an_editable_install(tmp_path: Path) -> None:
    package = tmp_path / "vllm"
    package.mkdir()
    source = package / "envs.py"
    source.write_text("")
    editable = interpreter(tmp_path, vllm_origin=package / "__init__.py")
    before = fingerprint(editable)
    os.utime(source, ns=(1, 1))
    assert fingerprint(editable) != before
