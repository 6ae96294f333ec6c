"""From imported files to a trigger list, and the check that the list covers them."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.ci.deps import (
    DEPS_FOLDER,
    TOO_WIDE,
    check_list,
    collapse,
    parse_list,
    read_list,
    read_trace,
    render_list,
    uncovered,
)
from harness.deployments import DEPLOYMENTS
from harness.errors import Misconfigured

SPEC = [f"vllm/v1/spec_decode/{name}.py" for name in ("eagle", "metadata", "metrics", "utils")]
MODEL = "vllm/model_executor/models/qwen3_5.py"
REST = [f"vllm/model_executor/models/m{number}.py" for number in range(300)]


def paths(traced: list[str], present: list[str]) -> list[str]:
    return [entry.path for entry in collapse(traced, present)]


def test_a_folder_stands_for_its_files_when_enough_of_them_were_imported() -> None:
    assert paths(SPEC[:3], SPEC) == ["vllm/v1/spec_decode/"]
    assert collapse(SPEC[:3], SPEC)[0].imported == 3
    assert collapse(SPEC[:3], SPEC)[0].present == 4


def test_too_few_files_or_too_small_a_share_stay_single_files() -> None:
    assert paths(SPEC[:2], SPEC[:2]) == SPEC[:2]
    many = [f"vllm/v1/spec_decode/x{number}.py" for number in range(20)]
    assert paths(SPEC[:3], SPEC + many) == SPEC[:3]


def test_model_files_are_listed_one_by_one_whatever_the_share() -> None:
    assert paths([*REST[:200], MODEL], [*REST, MODEL]) == sorted([*REST[:200], MODEL])


def test_a_folder_above_the_models_is_never_taken_whole() -> None:
    layers = [f"vllm/model_executor/layers/l{number}.py" for number in range(9)]
    assert paths([*layers, MODEL], [*layers, MODEL]) == ["vllm/model_executor/layers/", MODEL]


def test_the_outermost_folder_wins_and_nothing_lies_under_another_entry() -> None:
    nested = [f"vllm/v1/worker/gpu/{name}.py" for name in "abc"] + [f"vllm/v1/worker/{name}.py" for name in "abc"]
    assert paths(nested, nested) == ["vllm/v1/worker/"]


def test_the_top_of_the_package_is_never_collapsed() -> None:
    top = [f"vllm/{name}.py" for name in "abcdef"]
    assert paths(top, top) == top


def test_folders_that_half_of_all_changes_touch_are_never_collapsed() -> None:
    top = [f"{folder}{name}.py" for folder in TOO_WIDE for name in "abcdef"]
    assert paths(top, top) == sorted(top)


def test_a_vendors_platform_file_does_not_come_with_the_traced_one() -> None:
    common = [f"vllm/platforms/{name}.py" for name in ("__init__", "interface")]
    traced = [*common, "vllm/platforms/cpu.py"]
    assert paths(traced, [*traced, "vllm/platforms/cuda.py"]) == common


def test_excluded_files_are_left_out_and_need_no_cover() -> None:
    traced = [*SPEC, "vllm/third_party/pynvml.py", "vllm/_version.py"]
    assert paths(traced, traced) == ["vllm/v1/spec_decode/"]
    assert uncovered(["vllm/v1/spec_decode/"], traced) == []


def test_the_derived_list_covers_the_trace_and_deleting_any_entry_fails_the_check() -> None:
    traced = [*SPEC, MODEL, "vllm/envs.py"]
    entries = paths(traced, [*traced, *REST])
    check_list("mtp-pd", entries, traced)
    for entry in entries:
        with pytest.raises(Misconfigured, match="does not cover"):
            check_list("mtp-pd", [other for other in entries if other != entry], traced)


def test_a_trace_is_the_union_of_its_processes_without_comments_and_foreign_files() -> None:
    texts = [
        "# pid=1 process=APIServer\nvllm/envs.py\n../torch/x.py\n",
        "vllm/envs.py\nvllm/v1/a.py\nvllm/_C.abi3.so\n",
    ]
    assert read_trace(texts) == {"vllm/envs.py", "vllm/v1/a.py"}


def test_a_written_list_reads_back_and_explains_where_it_comes_from_and_what_it_leaves_out() -> None:
    traced = [*SPEC, "vllm/third_party/a.py", "vllm/third_party/b.py"]
    text = render_list("mtp-pd", collapse(traced, SPEC), "a test", {"decode-0/EngineCore": 6}, traced)
    assert parse_list(text) == ("vllm/v1/spec_decode/",)
    assert "decode-0/EngineCore: 6" in text
    assert "vllm/third_party/ (2): copies of other projects" in text
    assert "vllm/benchmarks/" not in text


def test_a_deployment_without_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="never triggered"):
        read_list("mtp-pd", tmp_path)


@pytest.mark.parametrize("name", list(DEPLOYMENTS))
def test_every_deployment_has_a_list(name: str) -> None:
    assert read_list(name, DEPS_FOLDER)
