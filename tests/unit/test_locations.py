from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.errors import Misconfigured
from harness.locations import locate, make_usable


def test_the_user_choice_comes_before_the_usual_places(tmp_path: Path) -> None:
    chosen = locate({"SPEC_GATE_CACHE": "/c", "SPEC_GATE_STATE": "/s", "XDG_CACHE_HOME": "/x"}, tmp_path)
    assert (chosen.cache, chosen.state, chosen.runs) == (Path("/c"), Path("/s"), tmp_path)
    usual = locate({"XDG_CACHE_HOME": "/x"}, None)
    assert usual.cache == Path("/x/spec-decode-gate")
    assert usual.runs == Path.cwd() / "runs"


def test_the_state_belongs_to_one_user_wherever_the_home_is() -> None:
    assert locate({"HOME": "/home/a"}, None).state == locate({"HOME": "/home/b"}, None).state
    assert locate({}, None).state.name.endswith(f"-{os.getuid()}")


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    make_usable(tmp_path / "a" / "b", "runs", "choose another")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_the_place_of_a_folder_is_named_with_what_to_do(tmp_path: Path, below: str) -> None:
    (tmp_path / "runs").write_text("x")
    with pytest.raises(Misconfigured, match=r"The runs folder .*/runs.* \(a file is in its place\); choose another\."):
        make_usable(tmp_path / "runs" / below, "runs", "choose another")


@pytest.mark.parametrize("folder", ["/proc/runs", "/sys/runs"])
def test_a_place_where_nothing_can_be_made_is_refused(folder: str) -> None:
    with pytest.raises(Misconfigured, match=f"The runs folder {folder} cannot be written"):
        make_usable(Path(folder), "runs", "choose another")


def test_a_folder_without_enough_space_says_how_much_there_is(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"has [\d.]+ MiB of free space and a run needs \d+; free some or choose"):
        make_usable(tmp_path, "runs", "choose another", free_bytes=1 << 60)
