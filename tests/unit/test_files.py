"""Whatever a user or a run folder gives to read is refused by its size before it is in memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import baselines, expectations
from harness.ci.audit.checkout import read_checkout
from harness.ci.audit.waivers import read_waivers
from harness.drive.paired import load_gsm8k
from harness.drive.workloads import load_mt_bench
from harness.engine.lock import read_lock
from harness.engine.probing import _read as read_probe
from harness.errors import GateError, Infra, Misconfigured
from harness.falsify.outcome import NOTHING, read_facts
from harness.falsify.session import OUTCOMES_NAME, read_again
from harness.files import LARGEST_DATA_BYTES, LARGEST_TABLE_BYTES, read_bounded
from harness.models import bos_token_id, missing_file, template_adds_bos
from harness.report.junit import merge_junit
from harness.result import read_result
from harness.run.again import read_run
from harness.run.finish import write_report
from harness.run.trace import read_processes
from harness.runtime import record as records
from harness.runtime.leases import holder_of
from harness.runtime.ports import lease_ports
from tests.unit.run_inputs import finished_run

HUGE_BYTES = 8 << 30
ROOM_BYTES = 1 << 30


# Who waits for a FIFO fails here.
pytestmark = pytest.mark.timeout(30)


@pytest.fixture(autouse=True)
def little_room() -> Iterator[None]:
    """Who reads a huge file fails here, and does not take the machine with it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def huge(path: Path) -> Path:
    """A sparse file of 8 GiB that takes no room on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.truncate(HUGE_BYTES)
    return path


def test_a_file_of_just_the_bound_is_read_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.toml"
    path.write_text("äb")
    assert read_bounded(path, 3) == "äb"
    with pytest.raises(Misconfigured, match=r"table.toml is larger \(3 bytes\) .* \(at most 2\)"):
        read_bounded(path, 2)


def test_a_sparse_file_of_gigabytes_is_refused_by_its_size(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=rf"huge is larger \({HUGE_BYTES} bytes\)"):
        read_bounded(huge(tmp_path / "huge"), LARGEST_DATA_BYTES)


def test_a_file_that_says_it_is_empty_and_is_not_is_read_up_to_the_bound_only() -> None:
    # As one that grows while it is read; what is found then is the bound and one byte.
    assert Path("/proc/self/maps").stat().st_size == 0
    with pytest.raises(Misconfigured, match=r"\(101 bytes\) .* \(at most 100\)"):
        read_bounded(Path("/proc/self/maps"), 100)


def test_what_is_no_regular_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (Path("/dev/zero"), fifo):
        with pytest.raises(Misconfigured, match=f"{path} is no regular file"):
            read_bounded(path, LARGEST_DATA_BYTES)


def test_what_cannot_be_opened_or_decoded_raises_as_an_unbounded_read_would(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "none", 1)
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        read_bounded(tmp_path, 1)
    path = tmp_path / "latin"
    path.write_bytes(b"\xe4")
    with pytest.raises(UnicodeDecodeError):
        read_bounded(path, 9)
    assert read_bounded(path, 9, "replace") == "\ufffd"


def big_checkpoint(folder: Path, name: str) -> Path:
    (folder / "config.json").write_text("{}")
    huge(folder / name)
    return folder


def big_facts(folder: Path) -> Path:
    run = finished_run(folder)
    huge(run / "facts.json")
    return run


def big_requests(folder: Path) -> None:
    run = finished_run(folder)
    huge(run / "requests.jsonl")
    write_report(run, read_result(run), frozenset())


def big_tree(folder: Path) -> Path:
    (folder / "vllm").mkdir()
    huge(folder / ".buildkite" / "steps.yaml")
    return folder


READERS: dict[str, Callable[[Path], object]] = {
    "a data set": lambda folder: load_mt_bench(huge(folder / "huge.jsonl")),
    "GSM8K": lambda folder: load_gsm8k(huge(folder / "huge.jsonl"), questions=1, max_tokens=1),
    "baselines.toml": lambda folder: baselines.load(huge(folder / "baselines.toml")),
    "expectations.toml": lambda folder: expectations.load(huge(folder / "expectations.toml")),
    "waivers": lambda folder: read_waivers(huge(folder / "waivers.toml")),
    "a lock": lambda folder: read_lock("cpu", huge(folder / "cpu.lock").parent),
    "result.json": lambda folder: read_result(huge(folder / "result.json").parent),
    "facts.json of a run that is judged again": lambda folder: read_run(big_facts(folder)),
    "facts.json of a mutation": lambda folder: read_facts(huge(folder / "facts.json").parent),
    "outcomes.json": lambda folder: read_again([huge(folder / OUTCOMES_NAME).parent], NOTHING),
    "requests.jsonl": big_requests,
    "an import trace": lambda folder: read_processes(huge(folder / "decode-0" / "1.txt").parents[1]),
    "config.json": lambda folder: bos_token_id(huge(folder / "config.json").parent),
    "a weight index": lambda folder: missing_file(big_checkpoint(folder, "model.safetensors.index.json")),
    "tokenizer_config.json": lambda folder: template_adds_bos(big_checkpoint(folder, "tokenizer_config.json")),
    "a chat template": lambda folder: template_adds_bos(big_checkpoint(folder, "chat_template.jinja")),
    "a vLLM tree": lambda folder: read_checkout(big_tree(folder)),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_each_reader_refuses_a_huge_file_in_one_sentence(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(GateError) as caught:
        read(tmp_path)
    assert isinstance(caught.value, Misconfigured)
    assert f"is larger ({HUGE_BYTES} bytes) than a file of its kind can be" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_may_be_broken_are_taken_for_broken_when_they_are_huge(tmp_path: Path) -> None:
    assert records.read_all(huge(tmp_path / "live" / "r1.json").parents[1]).unreadable == (tmp_path / "live/r1.json",)
    assert holder_of(huge(tmp_path / "leases" / "gpu.holder.json").parents[1], "gpu") is None
    assert read_probe(huge(tmp_path / "probe.json")) is None
    huge(tmp_path / "ports.json")
    with pytest.raises(Infra, match=r"the port registry .* cannot be read"), lease_ports((), tmp_path, "r1"):
        pytest.fail("a registry of 8 GiB was read")


def test_a_huge_file_of_one_run_is_an_error_case_in_the_merged_report(tmp_path: Path) -> None:
    first, second = (finished_run(tmp_path / name) for name in ("first", "second"))
    huge(first / "result.json")
    huge(second / "junit.xml")
    merged = merge_junit([first, second])
    assert merged.count("<error") == 2
    assert merged.count(f"is larger ({HUGE_BYTES} bytes)") == 2


def test_the_bounds_are_far_above_what_is_shipped() -> None:
    root = Path(__file__).parents[2]
    tables = (root / "baselines.toml", root / "expectations.toml", *(root / "engines").glob("*.lock"))
    assert all(100 * path.stat().st_size < LARGEST_TABLE_BYTES for path in tables)
