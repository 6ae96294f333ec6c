from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from harness.runtime import record as records
from harness.runtime.identity import ProcessId, host_identity, own_identity
from harness.runtime.reaping import is_stale
from harness.runtime.record import RunRecord, ServerEntry

RECORD = RunRecord(
    run_id="r1",
    marker="r1.abc",
    runner=ProcessId(10, 100),
    host=host_identity(),
    user="me",
    run_dir="/runs/r1",
    started_at=1.5,
    leases=("GPU-1",),
    supervisor=ProcessId(11, 110),
    servers=(ServerEntry("decode-0", ProcessId(20, 200)), ServerEntry("prefill-0", None)),
    descendants=(ProcessId(21, 210),),
)


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    records.save(tmp_path, RECORD)
    assert records.read_all(tmp_path).records == (RECORD,)
    assert [path.name for path in (tmp_path / "live").iterdir()] == ["r1.json"]


def test_a_removed_record_is_gone_and_may_be_removed_again(tmp_path: Path) -> None:
    records.save(tmp_path, RECORD)
    records.remove(tmp_path, "r1")
    records.remove(tmp_path, "r1")
    assert records.read_all(tmp_path).records == ()


def test_what_a_killed_writer_of_a_record_left_goes_with_it(tmp_path: Path) -> None:
    records.save(tmp_path, RECORD)
    (tmp_path / "live" / ".r1.json.4711.new").write_text('{"run_id": "r')
    another = tmp_path / "live" / ".r10.json.4711.new"
    another.write_text('{"run_id": "r')
    records.remove(tmp_path, "r1")
    assert list((tmp_path / "live").iterdir()) == [another]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run_id": 1}'])
def test_a_file_that_is_no_record_is_reported_and_hides_no_other(tmp_path: Path, text: str) -> None:
    records.save(tmp_path, RECORD)
    (tmp_path / "live" / "broken.json").write_text(text)
    live = records.read_all(tmp_path)
    assert live.records == (RECORD,)
    assert [path.name for path in live.unreadable] == ["broken.json"]


def test_a_record_with_an_unknown_field_is_not_half_understood() -> None:
    data = json.loads(RECORD.to_json())
    with pytest.raises(TypeError):
        RunRecord.from_json(json.dumps({**data, "gpus": []}))


def test_a_restarted_server_keeps_its_former_process_in_sight() -> None:
    again = RECORD.with_server("decode-0", None).with_server("decode-0", ProcessId(30, 300))
    assert ServerEntry("decode-0", ProcessId(30, 300)) in again.servers
    assert len(again.servers) == 2
    assert ProcessId(20, 200) in again.descendants


def test_a_run_is_stale_when_nobody_looks_after_it() -> None:
    me = own_identity()
    assert not is_stale(dataclasses.replace(RECORD, supervisor=me))
    assert is_stale(dataclasses.replace(RECORD, runner=me, supervisor=ProcessId(me.pid, 1)))
    # It has not got as far as a supervisor.
    assert not is_stale(dataclasses.replace(RECORD, runner=me, supervisor=None))
    assert is_stale(dataclasses.replace(RECORD, runner=ProcessId(me.pid, 1), supervisor=None))


def test_a_run_of_another_boot_is_stale_and_one_of_another_container_is_not_ours_to_judge() -> None:
    boot = host_identity().partition("/")[0]
    assert is_stale(dataclasses.replace(RECORD, host="other-boot/pid:[1]"))
    assert not is_stale(dataclasses.replace(RECORD, host=f"{boot}/pid:[1]"))
