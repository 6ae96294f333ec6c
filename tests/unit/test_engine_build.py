"""Building an environment: stamps, half environments, pip's words. The base Python is a stand-in script."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.engine.build import BasePython, build, pip_environment, root_line, site_of, torch_cuda
from harness.engine.lock import EngineLock, parse_lock
from harness.errors import Infra, Misconfigured

LOCK = parse_lock("cpu", "[torch]\ntorch==2.13.0\n[vllm]\nvllm-cpu==0.32.0\n")

# Plays both `python -m venv FOLDER` and, copied to FOLDER/bin/python, `python -m pip install ... -r STAGE.txt`.
BASE = """#!/bin/sh
echo "$@" >> {calls}
if [ "$2" = venv ]; then
  mkdir -p "$3/bin" "$3/lib/python3.11/site-packages/torch"
  echo 'cuda: Optional[str] = {cuda}' > "$3/lib/python3.11/site-packages/torch/version.py"
  cp "$0" "$3/bin/python"
elif [ "{broken}" = yes ]; then
  echo "ERROR: Could not find a version that satisfies the requirement"
  echo "ERROR: No matching distribution found"
  exit 1
fi
"""


def base_python(folder: Path, *, cuda: str = "None", broken: bool = False) -> BasePython:
    path = folder / "base-python"
    path.write_text(BASE.format(calls=folder / "calls", cuda=cuda, broken="yes" if broken else "no"))
    path.chmod(0o755)
    return BasePython(path, (3, 11, 7))


def run(base: BasePython, cache: Path, verified: list[Path], lock: EngineLock = LOCK) -> list[str]:
    said: list[str] = []
    build(lock, base, cache, said.append, environ={"PATH": "/usr/bin:/bin"}, verify=verified.append)
    return said


def test_a_build_runs_each_stage_verifies_and_is_used_the_next_time(tmp_path: Path) -> None:
    base, verified = base_python(tmp_path), list[Path]()
    said = run(base, tmp_path / "cache", verified)
    site = site_of(LOCK, base, tmp_path / "cache")
    assert [line for line in said if line in ("engine: torch", "engine: vllm", "engine: verify")] == [
        "engine: torch",
        "engine: vllm",
        "engine: verify",
    ]
    assert verified == [site.python]
    assert site.stamp.exists()
    calls = (tmp_path / "calls").read_text()
    assert calls.count("--no-deps") == 2
    assert run(base, tmp_path / "cache", verified) == []
    assert (tmp_path / "calls").read_text() == calls


def test_a_folder_without_a_stamp_is_wiped_and_built_again(tmp_path: Path) -> None:
    base = base_python(tmp_path)
    site = site_of(LOCK, base, tmp_path / "cache")
    half = site.folder / "lib" / "half-installed"
    half.mkdir(parents=True)
    run(base, tmp_path / "cache", [])
    assert not half.exists()
    assert site.stamp.exists()


def test_a_failed_verification_leaves_no_stamp(tmp_path: Path) -> None:
    base = base_python(tmp_path)

    def refuse(_python: Path) -> None:
        raise Infra("cannot be imported")

    with pytest.raises(Infra, match="cannot be imported"):
        build(LOCK, base, tmp_path, lambda _line: None, environ={"PATH": "/usr/bin:/bin"}, verify=refuse)
    assert not site_of(LOCK, base, tmp_path).stamp.exists()


def test_a_failed_install_quotes_pips_first_error_and_the_log(tmp_path: Path) -> None:
    base = base_python(tmp_path, broken=True)
    with pytest.raises(Infra) as failure:
        run(base, tmp_path / "cache", [])
    site = site_of(LOCK, base, tmp_path / "cache")
    assert failure.value.root_line == "ERROR: Could not find a version that satisfies the requirement"
    assert failure.value.log == site.log
    assert site.log.exists()
    assert not site.stamp.exists()


def test_a_cuda_torch_stops_the_cpu_build_before_vllm_is_installed(tmp_path: Path) -> None:
    base = base_python(tmp_path, cuda="'13.0'")
    with pytest.raises(Infra, match=r"torch for CUDA 13\.0"):
        run(base, tmp_path / "cache", [])
    assert "vllm.txt" not in (tmp_path / "calls").read_text()


def test_a_python_that_the_lock_is_not_for_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"is 3\.14\.0"):
        run(BasePython(tmp_path / "python", (3, 14, 0)), tmp_path / "cache", [])
    assert not (tmp_path / "cache").exists()


def test_lock_python_and_machine_each_have_their_own_folder(tmp_path: Path) -> None:
    base = BasePython(Path("python"), (3, 11, 7))
    other_lock = parse_lock("cpu", "[torch]\ntorch==2.14.0\n")
    keys = {
        site_of(LOCK, base, tmp_path, "x86_64").key,
        site_of(LOCK, base, tmp_path, "aarch64").key,
        site_of(LOCK, BasePython(Path("python"), (3, 12, 1)), tmp_path, "x86_64").key,
        site_of(other_lock, base, tmp_path, "x86_64").key,
    }
    assert len(keys) == 4


def test_pip_is_not_sent_elsewhere_by_the_environment() -> None:
    inherited = {"PATH": "/bin", "PYTHONPATH": "/runner", "PIP_TARGET": "/elsewhere", "PIP_REQUIRE_VIRTUALENV": "1"}
    kept = pip_environment(inherited | {"PIP_FIND_LINKS": "/wheels", "HTTPS_PROXY": "proxy"})
    assert {"PATH", "PIP_FIND_LINKS", "HTTPS_PROXY"} <= kept.keys()
    assert not {"PYTHONPATH", "PIP_TARGET", "PIP_REQUIRE_VIRTUALENV"} & kept.keys()


def test_the_root_line_is_the_last_commands_first_error() -> None:
    log = "$ pip a\nERROR: of an earlier command\n$ pip b\nCollecting\nERROR: first\nERROR: second\n[notice] update\n"
    assert root_line(log) == "ERROR: first"
    assert root_line("$ pip a\nKilled\n") == "Killed"
    assert root_line("") == "no output"


@pytest.mark.parametrize(
    ("line", "cuda"), [("cuda: Optional[str] = None", None), ("cuda = '12.8'", "12.8"), ("git_version = 'x'", None)]
)
def test_the_cuda_of_torch_is_read_from_its_version_file(line: str, cuda: str | None) -> None:
    assert torch_cuda(f"__version__ = '2.13.0'\n{line}\nhip = None\n") == cuda
