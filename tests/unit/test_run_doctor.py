from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.run import doctor
from harness.run.doctor import examine
from harness.runtime.identity import host_identity, new_marker, own_identity
from harness.runtime.record import RunRecord, save
from tests.unit.run_inputs import locations


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(doctor, "gpu_visible", lambda: False)
    live = tmp_path / "state" / "live"
    live.mkdir(parents=True)
    (live / "broken.json").write_text("{", "utf-8")
    return list(examine(locations(tmp_path), {}))


def test_the_machine_its_devices_and_its_folders_are_named(lines: list[str], tmp_path: Path) -> None:
    assert any(line.startswith("device 0: CPU core 0 (cpu-core-0)") and "never leased" in line for line in lines)
    assert any("cores" in line and line.startswith("host ") for line in lines)
    assert f"state {tmp_path / 'state'}" in lines


def test_a_record_that_nobody_can_read_is_pointed_at(lines: list[str], tmp_path: Path) -> None:
    assert f"unreadable run record {tmp_path / 'state' / 'live' / 'broken.json'}: look at it, then remove it" in lines


def test_a_leased_device_is_told_from_one_that_was_leased_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "gpu_visible", lambda: False)
    state = tmp_path / "state"
    record = RunRecord(
        run_id="run-1",
        marker=new_marker("run-1"),
        runner=own_identity(),
        host=host_identity(),
        user="a",
        run_dir=str(tmp_path),
        started_at=1.0,
        deployment="eagle3-pd",
        leases=("cpu-core-0",),
    )
    save(state, record)
    (state / "leases").mkdir()
    for key in ("cpu-core-0", "cpu-core-1"):
        said = {"run_id": "run-0", "pid": 1, "user": "b", "deployment": "mtp-pd", "since": 1.0}
        (state / "leases" / f"{key}.holder.json").write_text(json.dumps(said), "utf-8")
    lines = list(examine(locations(tmp_path), {}))
    assert any(line.startswith("running: run-1 (eagle3-pd, user a, pid ") for line in lines)
    assert any(line.startswith("device 0") and line.endswith("leased by run-1") for line in lines)
    if len([line for line in lines if line.startswith("device ")]) > 1:
        assert any(line.startswith("device 1") and "free, last leased by run-0 (user b)" in line for line in lines)
