from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.errors import EngineFailed, GateError, Infra, Interrupted, Misconfigured, Unsupported
from harness.locations import Locations
from harness.result import read_result
from harness.run import session
from harness.run.session import new_run_folder, run_session
from harness.verdict import Verdict, worst
from tests.unit.run_inputs import locations, only_result, quiet, request


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Let each attempt end with the next of the given errors, as if it had come out of a phase."""
    attempts: list[str] = []

    def use(*errors: BaseException) -> list[str]:
        left: Iterator[BaseException] = iter(errors)

        def prepare(*_: object) -> None:
            error = next(left)
            attempts.append(type(error).__name__)
            raise error

        monkeypatch.setattr(session, "prepare", prepare)
        return attempts

    return use


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (Misconfigured("no such thing"), Verdict.MISCONFIGURED),
        (Infra("busy"), Verdict.INFRA),
        (Unsupported("refuses", root_line="NotImplementedError: no"), Verdict.UNSUPPORTED),
        (EngineFailed("died"), Verdict.REGRESSION),
        (Interrupted("SIGTERM"), Verdict.INTERRUPTED),
        (KeyboardInterrupt(), Verdict.INTERRUPTED),
        (OSError(28, "No space left on device"), Verdict.INFRA),
        (ZeroDivisionError("a bug of ours"), Verdict.INFRA),
    ],
)
def test_whatever_ends_a_run_becomes_a_verdict_and_a_result(
    tmp_path: Path, ends_with: Callable[..., list[str]], error: BaseException, verdict: Verdict
) -> None:
    ends_with(error)
    (result,) = run_session(request(tmp_path), quiet(), retry_infra=False)
    assert result.verdict is verdict
    assert read_result(Path(result.run_dir)) == result
    assert str(error) in result.reason or isinstance(error, KeyboardInterrupt)
    if isinstance(error, GateError):
        assert result.root_line == error.root_line


def test_a_bug_of_the_harness_keeps_its_traceback_in_a_file(
    tmp_path: Path, ends_with: Callable[..., list[str]]
) -> None:
    ends_with(ZeroDivisionError("a bug of ours"))
    (result,) = run_session(request(tmp_path), quiet(), retry_infra=False)
    trace = Path(result.run_dir) / "logs" / "harness-traceback.log"
    assert str(trace) in result.reason
    assert "ZeroDivisionError: a bug of ours" in trace.read_text("utf-8")


def test_infra_is_tried_once_more_and_the_result_says_so(tmp_path: Path, ends_with: Callable[..., list[str]]) -> None:
    attempts = ends_with(Infra("busy"), EngineFailed("died"))
    (result,) = run_session(request(tmp_path), quiet(), retry_infra=True)
    assert attempts == ["Infra", "EngineFailed"]
    assert (result.verdict, result.retried) == (Verdict.REGRESSION, True)
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 2


@pytest.mark.parametrize("error", [EngineFailed("died"), Misconfigured("typo"), Interrupted("SIGTERM")])
def test_only_infra_is_tried_again(tmp_path: Path, ends_with: Callable[..., list[str]], error: GateError) -> None:
    attempts = ends_with(error, error)
    run_session(request(tmp_path), quiet(), retry_infra=True)
    assert len(attempts) == 1


def test_infra_twice_is_infra(tmp_path: Path, ends_with: Callable[..., list[str]]) -> None:
    attempts = ends_with(Infra("busy"), Infra("still busy"), Infra("never reached"))
    (result,) = run_session(request(tmp_path), quiet(), retry_infra=True)
    assert len(attempts) == 2
    assert (result.verdict, result.reason) == (Verdict.INFRA, "still busy")


def test_a_runs_folder_that_cannot_be_used_starts_nothing(tmp_path: Path, ends_with: Callable[..., list[str]]) -> None:
    attempts = ends_with(Infra("never reached"))
    (tmp_path / "runs").write_text("in the way", "utf-8")
    (result,) = run_session(request(tmp_path), quiet(), retry_infra=True)
    assert (result.verdict, attempts) == (Verdict.MISCONFIGURED, [])
    assert "a file is in its place" in result.reason
    assert "--runs-dir" in result.reason


def test_a_disk_without_room_for_a_run_starts_nothing(
    tmp_path: Path, ends_with: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = ends_with(Infra("never reached"))
    monkeypatch.setattr(session, "_FREE_BYTES", 1 << 60)
    (result,) = run_session(request(tmp_path), quiet(), retry_infra=True)
    assert (result.verdict, attempts) == (Verdict.MISCONFIGURED, [])
    assert "MiB of free space" in result.reason


def test_a_result_is_there_from_the_first_moment(tmp_path: Path) -> None:
    run_id, folder = new_run_folder(locations(tmp_path), "eagle3-pd")
    written = read_result(folder)
    assert (written.verdict, written.run_id) == (Verdict.INFRA, run_id)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_hostile_name_stays_inside_the_runs_folder(tmp_path: Path) -> None:
    _, folder = new_run_folder(locations(tmp_path), "../../etc/" + "x" * 300)
    assert folder.parent == tmp_path / "runs"
    assert only_result(tmp_path / "runs")["verdict"] == "infra"


def test_a_session_is_as_bad_as_its_worst_run_and_nothing_run_is_no_pass() -> None:
    order = ["interrupted", "regression", "misconfigured", "infra", "unsupported", "pass"]
    for index, word in enumerate(order):
        assert worst([Verdict(later) for later in reversed(order[index:])]).value == word
    assert worst([]) is Verdict.MISCONFIGURED
    assert len({Verdict(word).exit_code for word in order}) == len(order)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes; only root may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_disk_that_fills_up_in_the_middle_still_takes_the_result(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*_: object) -> None:
        with (small_disk / "filler").open("wb") as filler:
            filler.write(b"x" * (5 << 20))

    monkeypatch.setattr(session, "prepare", prepare)
    monkeypatch.setattr(session, "_FREE_BYTES", 2 << 20)
    place = Locations(cache=tmp_path / "cache", state=tmp_path / "state", runs=small_disk / "runs")
    full = request(tmp_path, locations=place)
    (result,) = run_session(full, quiet(), retry_infra=False)
    assert shutil.disk_usage(small_disk).free < 1 << 20
    written = only_result(small_disk / "runs")
    assert (written["verdict"], result.verdict) == ("infra", Verdict.INFRA)
    assert "No space left on device" in written["reason"]
    assert "--runs-dir" in written["reason"]
    assert written["wall_seconds"] > 0
    # The next one is refused before it begins, and so is the second attempt of a session in CI.
    (again,) = run_session(full, quiet(), retry_infra=True)
    assert again.verdict is Verdict.MISCONFIGURED
    assert "MiB of free space" in again.reason
