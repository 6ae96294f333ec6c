"""The selection rules of the pipeline generator."""

from __future__ import annotations

import pytest

from harness.ci.selector import RunAll, covers, matching_entry, select


@pytest.mark.parametrize(
    ("entry", "path", "matched"),
    [
        ("vllm/v1/", "vllm/v1/engine/core.py", True),
        ("vllm/v1", "vllm/v1/engine/core.py", True),
        ("vllm/v1/engine/core.py", "vllm/v1/engine/core.py", True),
        ("tests/v1/test_umbp_", "tests/v1/test_umbp_store.py", False),
        ("vllm/v1/spec", "vllm/v1/spec_decode/eagle.py", False),
        ("vllm/*.py", "vllm/envs.py", False),
        ("", "vllm/envs.py", False),
        ("/", "vllm/envs.py", False),
    ],
)
def test_an_entry_covers_whole_path_segments_and_expands_no_globs(entry: str, path: str, matched: bool) -> None:
    assert covers(entry, path) is matched


def test_an_exclusion_wins_wherever_it_stands_in_the_list() -> None:
    dependencies = ["!vllm/distributed/kv_transfer/", "vllm/distributed/"]
    assert matching_entry(dependencies, "vllm/distributed/parallel_state.py") == "vllm/distributed/"
    assert matching_entry(dependencies, "vllm/distributed/kv_transfer/base.py") is None


def test_an_excluded_file_does_not_stop_another_changed_file_from_triggering() -> None:
    chosen = select(["vllm/", "!vllm/entrypoints/"], ["vllm/entrypoints/llm.py", "vllm/envs.py"])
    assert chosen.selected
    assert "vllm/envs.py" in chosen.reason


@pytest.mark.parametrize("dependencies", [[], ["!vllm/"]])
def test_a_list_without_includes_is_never_selected(dependencies: list[str]) -> None:
    assert not select(dependencies, ["vllm/envs.py"]).selected


def test_an_optional_step_is_not_selected_by_any_change() -> None:
    everything = RunAll(("csrc/",))
    assert not select(["vllm/"], ["vllm/envs.py", "csrc/a.cu"], optional=True, run_all=everything).selected


def test_run_all_patterns_are_regular_expressions_anchored_at_the_start() -> None:
    run_all = RunAll(("docker/Dockerfile", "csrc/"), ("docker/Dockerfile.", "csrc/cpu/"))
    assert run_all.trigger(["docker/Dockerfile"]) is not None
    assert run_all.trigger(["docker/Dockerfile.rocm"]) is None
    assert run_all.trigger(["csrc/cpu/x.cpp"]) is None
    assert run_all.trigger(["third_party/csrc/x.cu"]) is None
    # "Dockerfile." is a regular expression: its dot also matches a dash.
    assert run_all.trigger(["docker/Dockerfile-new"]) is None
    assert select([], ["csrc/a.cu"], run_all=run_all).selected


def test_the_hand_kept_amd_file_matches_partial_names_and_always_runs_without_a_list() -> None:
    assert matching_entry(["tests/v1/test_umbp_"], "tests/v1/test_umbp_store.py", "prefix") == "tests/v1/test_umbp_"
    assert select([], ["README.md"], semantics="prefix").selected
