"""Each rule of the audit on a checkout of a few files, with the defect and without it."""

from __future__ import annotations

import json
import textwrap
from datetime import date
from pathlib import Path

import pytest

from harness.ci.audit import Finding, SourceTree, audit
from harness.ci.audit.cli import run_audit
from harness.ci.audit.rules.commented_steps import commented_steps
from harness.ci.audit.waivers import Waiver, read_waivers
from harness.errors import Misconfigured

TODAY = date(2026, 11, 30)
CONFIG = """
name: vllm_ci
job_dirs: [".buildkite/test_areas"]
run_all_patterns: ["csrc/"]
run_all_exclude_patterns: ["csrc/cpu/"]
"""
AREA = ".buildkite/test_areas/spec.yaml"


def tree(files: dict[str, str], **areas: str) -> SourceTree:
    """A checkout with ``files`` and one pipeline file per keyword."""
    texts = {path: textwrap.dedent(text) for path, text in files.items()}
    texts[".buildkite/ci_config.yaml"] = CONFIG
    for name, text in areas.items():
        texts[f".buildkite/test_areas/{name}.yaml"] = textwrap.dedent(text).lstrip("\n")
    return SourceTree([*texts, "vllm/envs.py"], texts)


def found(checkout: SourceTree, rule: str) -> list[Finding]:
    return [finding for finding in audit(checkout, TODAY) if finding.rule == rule]


def step(
    command: str, *, device: str = "h100", count: int = 1, extra: str = "", dependencies: str = "[vllm/envs.py]"
) -> str:
    return (
        "group: Spec\ndepends_on:\n  - image-build\nsteps:\n"
        f'- label: ":nvidia: Spec"\n  key: spec\n  device: {device}\n  num_devices: {count}\n{extra}'
        f"  source_file_dependencies: {dependencies}\n  commands:\n    - {command}\n"
    )


def test_a_dependency_that_is_only_part_of_a_name_is_found_with_its_line() -> None:
    files = {"tests/test_umbp_a.py": "def test_a(): ...\n"}
    bad = step("pytest test_umbp_a.py", dependencies="\n    - vllm/envs.py\n    - tests/test_umbp_")
    [finding] = found(tree(files, spec=bad), "missing-dependency")
    assert finding.where == f"{AREA}:11"
    assert "partial name" in finding.detail
    good = step("pytest test_umbp_a.py", dependencies="[tests/test_umbp_a.py, '!vllm/envs.py']")
    assert found(tree(files, spec=good), "missing-dependency") == []


def test_a_commented_step_is_listed_with_its_reason_and_empties_its_area() -> None:
    text = """
    group: Disaggregated
    steps: []
    # How it works, in a long paragraph.
    # Disabled until the installation is locked.
    # - label: "PD accuracy" # TBD
    #   key: pd
    #   commands:
    #     - bash run.sh
    # - label: prose that is no step
    """
    checkout = tree({}, disaggregated=text)
    [commented] = found(checkout, "commented-step")
    assert "PD accuracy" in commented.message
    assert commented.line == 5
    assert commented.detail == "reason given: Disabled until the installation is locked."
    [empty] = found(checkout, "empty-area")
    assert "0 active steps, 1 commented out" in empty.message
    assert "PD accuracy" in empty.detail


def test_an_area_with_an_active_step_is_not_called_empty() -> None:
    assert found(tree({"tests/test_a.py": "def test_a(): ..."}, spec=step("pytest test_a.py")), "empty-area") == []


@pytest.mark.parametrize(
    "command",
    [
        "pytest -v -s spec/",
        "pytest spec/test_*.py",
        "python3 spec/test_a.py",
        "bash -c 'cd spec && pytest test_a.py'",
        "bash tests/run.sh",
        "\"find spec -name 'test_*.py' | xargs -n1 pytest\"",
        "bash .buildkite/runner.sh 30m 'pytest tests/spec/test_a.py'",
        "cd spec && VLLM_X=1 timeout 30m python3 -m pytest -k a test_a.py",
    ],
)
def test_every_way_to_start_a_test_counts_as_selecting_it(command: str) -> None:
    files = {
        "tests/spec/test_a.py": "def test_a(): ...\n",
        "tests/run.sh": 'pytest \\\n  "${ROOT}/tests/spec/test_a.py"\n',
    }
    assert found(tree(files, spec=step(command)), "unselected-test") == []


@pytest.mark.parametrize(
    "command",
    [
        "pytest other/",
        "pytest spec --ignore=spec/test_a.py",
        "echo pytest spec",
        "'# pytest spec'",
        "find spec -name x",
    ],
)
def test_a_test_that_no_command_collects_is_found(command: str) -> None:
    files = {"tests/spec/test_a.py": "def test_a(): ...\n", "tests/other/test_b.py": "def test_b(): ...\n"}
    assert "tests/spec/test_a.py" in [f.path for f in found(tree(files, spec=step(command)), "unselected-test")]


def test_the_checkouts_own_list_of_known_gaps_is_quoted() -> None:
    files = {
        "tests/test_a.py": "def test_a(): ...\n",
        "tools/pre_commit/test_tethering_allowlist.txt": "tests/test_a.py  # needs a cluster\n",
    }
    [finding] = found(tree(files, spec=step("pytest other.py")), "unselected-test")
    assert finding.detail == "known upstream: needs a cluster"


LARGE = """
import pytest
from tests.utils import large_gpu_mark, multi_gpu_test
@pytest.mark.parametrize("m", [pytest.param("a", marks=large_gpu_mark(min_gb=80)),
                               pytest.param("b", marks=large_gpu_mark(min_gb=160))])
def test_model(m): ...
"""


def test_a_test_that_needs_more_memory_than_every_selecting_device_has_never_executes() -> None:
    checkout = tree({"tests/test_a.py": LARGE}, spec=step("pytest test_a.py", device="l4", count=4))
    [command] = found(checkout, "skips-everything")
    assert "l4" in command.message
    [never] = found(checkout, "never-executes")
    assert "test_model" in never.message
    assert "memory < 80 GB" in never.detail


def test_one_step_with_enough_memory_clears_the_test() -> None:
    spec = step("pytest test_a.py", device="l4") + (
        "- label: big\n  key: big\n  device: h200\n  source_file_dependencies: [vllm/]\n"
        "  commands:\n    - pytest test_a.py\n"
    )
    checkout = tree({"tests/test_a.py": LARGE}, spec=spec)
    assert found(checkout, "never-executes") == []
    assert len(found(checkout, "skips-everything")) == 1


@pytest.mark.parametrize(
    ("source", "device", "count", "skips"),
    [
        ("@pytest.mark.skipif(not current_platform.is_rocm(), reason='r')\ndef test_a(): ...", "h100", 1, True),
        ("@pytest.mark.skipif(not current_platform.is_rocm(), reason='r')\ndef test_a(): ...", "mi300_1", 1, False),
        ("pytestmark = pytest.mark.skipif(current_platform.is_cuda(), reason='r')\ndef test_a(): ...", "h100", 1, True),
        ("@multi_gpu_test(num_gpus=4)\ndef test_a(): ...", "h100", 2, True),
        ("@multi_gpu_test(num_gpus=2)\ndef test_a(): ...", "h100", 2, False),
        ("def test_a():\n    if torch.cuda.device_count() < 8:\n        pytest.skip('x')\n", "h100", 4, True),
        (
            "if not current_platform.is_cpu():\n    pytest.skip('x', allow_module_level=True)\ndef test_a(): ...",
            "h100",
            1,
            True,
        ),
        ("N = 2\n@pytest.mark.skipif(torch.cuda.device_count() < N, reason='r')\ndef test_a(): ...", "h100", 1, True),
        (
            "@pytest.mark.skipif(not current_platform.is_device_capability(100), reason='r')\ndef test_a(): ...",
            "h100",
            1,
            True,
        ),
        ("@pytest.mark.skipif(not has_thing(), reason='r')\ndef test_a(): ...", "h100", 1, False),
        (
            "@pytest.mark.skipif(not current_platform.is_rocm() and has_thing(), reason='r')\ndef test_a(): ...",
            "h100",
            1,
            False,
        ),
        ("class TestX:\n    @single_gpu_only\n    def test_a(self): ...", "h100", 2, True),
    ],
)
def test_skip_conditions_are_judged_against_the_device(source: str, device: str, count: int, skips: bool) -> None:
    spec = step("pytest test_a.py", device=device, count=count)
    found_now = found(tree({"tests/test_a.py": f"import pytest\n{source}\n"}, spec=spec), "skips-everything")
    assert bool(found_now) is skips


@pytest.mark.parametrize(
    ("options", "runs"),
    [("-k other", False), ("-k 'test_a or other'", True), ("-m slow_test", False), ("-m 'not slow_test'", True)],
)
def test_filters_of_the_command_count(options: str, runs: bool) -> None:
    files = {
        "tests/test_a.py": "def test_a(): ...\n",
        "tests/test_b.py": "import pytest\n@pytest.mark.slow_test\ndef test_other(): ...\n",
    }
    checkout = tree(files, spec=step(f'"pytest test_a.py test_b.py {options}"'))
    assert ("tests/test_a.py" in [f.path for f in found(checkout, "never-executes")]) is not runs


def test_a_version_condition_that_the_pins_decide_is_stale_either_way() -> None:
    source = """
    import pytest
    @pytest.mark.skipif(not is_torch_equal_or_newer("2.10.0"), reason="requires torch 2.10")
    def test_a(): ...
    @pytest.mark.skipif(is_torch_equal_or_newer("2.10.0"), reason="fails with 2.10")
    def test_b(): ...
    @pytest.mark.skipif(not is_torch_equal_or_newer("2.15.0"), reason="requires torch 2.15")
    def test_c(): ...
    """
    files = {
        "tests/test_a.py": source,
        "requirements/cuda.txt": "torch==2.14.0\n",
        "requirements/build/rocm.txt": "torch==2.12.0+rocm\n",
    }
    messages = [f.message for f in found(tree(files, spec=step("pytest test_a.py")), "stale-skip")]
    assert [("can never skip" in m, "always skips" in m) for m in messages] == [
        (True, False),
        (False, True),
        (False, True),
    ]


def test_two_pins_that_disagree_leave_a_version_condition_alone() -> None:
    source = 'import pytest\n@pytest.mark.skipif(not is_torch_equal_or_newer("2.13"), reason="r")\ndef test_a(): ...\n'
    files = {
        "tests/test_a.py": source,
        "requirements/cuda.txt": "torch==2.14.0\n",
        "requirements/build/rocm.txt": "torch==2.12.0\n",
    }
    assert found(tree(files, spec=step("pytest test_a.py")), "stale-skip") == []


def test_a_filter_whose_name_occurs_nowhere_is_stale() -> None:
    files = {"tests/test_a.py": "import pytest\n@pytest.mark.parametrize('x', ['qwen3'])\ndef test_a(x): ...\n"}
    [finding] = found(tree(files, spec=step("\"pytest test_a.py -k 'not gone and not qwen3'\"")), "stale-filter")
    assert "'gone' excludes nothing" in finding.message


@pytest.mark.parametrize(
    "command", ["pytest . --ignore=test_gone.py", "pytest test_a.py::test_gone", "pytest test_gone.py"]
)
def test_paths_and_nodes_that_do_not_exist_are_stale(command: str) -> None:
    files = {"tests/test_a.py": "def test_a(): ...\n"}
    assert len(found(tree(files, spec=step(command)), "stale-filter")) == 1
    assert found(tree(files, spec=step("pytest test_a.py::test_a")), "stale-filter") == []


MIRROR = "  mirror:\n    amd:\n      device: {device}\n      label: '{label}'\n{more}"


def mirrored(**parts: str) -> str:
    values = {"device": "mi300_2", "label": ":amd: (MI300) Spec", "more": ""} | parts
    return step("pytest test_a.py", count=2) + MIRROR.format(**values)


def test_a_faithful_mirror_is_no_finding() -> None:
    assert found(tree({"tests/test_a.py": "def test_a(): ..."}, spec=mirrored()), "mirror-drift") == []


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"device": "mi300_1"}, "has 1 devices, the mirrored step uses 2"),
        ({"label": ":amd: (MI355) Spec"}, "says (MI355), the device is mi300_2"),
        ({"more": "      num_devices: 4\n"}, "num_devices 4, but mi300_2 has 2"),
        ({"more": "      source_file_dependencies: [vllm/v1/core.py]\n"}, "1 paths trigger"),
        ({"more": "      commands:\n      - pytest test_b.py\n"}, "leaves out 1 test files"),
    ],
)
def test_a_mirror_that_disagrees_is_found(parts: dict[str, str], what: str) -> None:
    files = {"tests/test_a.py": "def test_a(): ...", "tests/test_b.py": "def test_b(): ...", "vllm/v1/core.py": ""}
    [finding] = found(tree(files, spec=mirrored(**parts)), "mirror-drift")
    assert what in finding.message


def test_a_drafter_that_no_gating_end_to_end_job_lists_is_a_gap() -> None:
    files = {
        "vllm/model_executor/models/llama_eagle3.py": "",
        "tests/v1/e2e/spec_decode/eagle/test_a.py": "def test_a(): ...",
    }
    command = "pytest v1/e2e/spec_decode/eagle"
    [gap] = found(tree(files, spec=step(command)), "trigger-gap")
    assert gap.path.endswith("llama_eagle3.py")
    assert "EAGLE" in gap.message
    assert ":nvidia: Spec" in gap.detail
    listed = step(command, dependencies="[vllm/model_executor/models/]")
    assert found(tree(files, spec=listed), "trigger-gap") == []
    for weak in ("  optional: true\n", "  soft_fail: true\n"):
        weakened = step(command, dependencies="[vllm/model_executor/models/]", extra=weak)
        assert len(found(tree(files, spec=weakened), "trigger-gap")) == 1


AMD_JOB = step("pytest v1/e2e/spec_decode/eagle", dependencies="[vllm/model_executor/models/]").replace(
    "h100", "mi300_1"
)


def test_a_drafter_that_only_an_amd_job_lists_is_a_gap_on_cuda_and_the_amd_job_is_named() -> None:
    files = {
        "vllm/model_executor/models/llama_eagle3.py": "",
        "tests/v1/e2e/spec_decode/eagle/test_a.py": "def test_a(): ...",
    }
    [gap] = found(tree(files, spec=AMD_JOB), "trigger-gap")
    assert "job on CUDA" in gap.message
    assert "on mi300_1 only" in gap.detail


def test_a_file_of_amds_own_needs_an_amd_job() -> None:
    files = {
        "vllm/models/kimi/amd/eagle.py": "",
        "tests/v1/e2e/spec_decode/eagle/test_a.py": "def test_a(): ...",
    }
    listed = AMD_JOB.replace("vllm/model_executor/models/", "vllm/models/")
    assert found(tree(files, spec=listed), "trigger-gap") == []
    [gap] = found(tree(files, spec=listed.replace("mi300_1", "h100")), "trigger-gap")
    assert "job on ROCm" in gap.message


@pytest.mark.parametrize(
    ("arguments", "gaps"),
    [
        ("--speculative-config.method dspark", 0),
        ("""--speculative-config '{"method":"dspark","num_speculative_tokens":5}'""", 0),
        ("""--speculative-config '{"method":"mtp"}'""", 1),
    ],
)
def test_an_evaluation_whose_server_speculates_is_an_end_to_end_job(arguments: str, gaps: int) -> None:
    files = {
        "vllm/model_executor/models/qwen3_dspark.py": "",
        "tests/evals/gsm8k/test_gsm8k_correctness.py": "def test_a(): ...",
        "tests/evals/gsm8k/configs/list.txt": "a.yaml\n",
        "tests/evals/gsm8k/configs/a.yaml": f"server_args: >-\n  {arguments}\n",
    }
    command = "pytest evals/gsm8k/test_gsm8k_correctness.py --config-list-file=configs/list.txt"
    listed = step(command, dependencies="[vllm/model_executor/models/]")
    assert len(found(tree(files, spec=listed), "trigger-gap")) == gaps


def test_a_test_that_starts_such_an_engine_for_a_moment_is_named_and_closes_nothing() -> None:
    files = {
        "vllm/model_executor/models/llama_eagle3.py": "",
        "tests/v1/sample/test_logprobs.py": "def test_a():\n    LLM(speculative_config={'method': 'eagle3'})\n",
    }
    listed = step("pytest v1/sample", dependencies="[vllm/model_executor/models/]")
    [gap] = found(tree(files, spec=listed), "trigger-gap")
    assert "in other tests: :nvidia: Spec (test_logprobs.py)" in gap.detail


def test_a_note_in_prose_above_a_commented_step_is_its_reason() -> None:
    text = "group: a\nsteps:\n# Note: the emulator cannot be downloaded\n# - label: X\n#   commands:\n#   - pytest a\n"
    [only] = commented_steps(".buildkite/test_areas/a.yaml", text)
    assert only.reason == "Note: the emulator cannot be downloaded"


def test_different_pins_of_one_package_are_found_and_equal_ones_are_not() -> None:
    files = {
        "tests/a.sh": "pip install tblib==3.1.0\n# pip install tblib==2\n",
        "tests/b.sh": "uv pip install --system tblib 'lm-eval>=0.4'\n",
    }
    [finding] = found(tree(files), "install-pins")
    assert "tblib is installed with 2 different pins" in finding.message
    files["tests/b.sh"] = files["tests/b.sh"].replace("tblib", "tblib==3.1.0")
    assert found(tree(files), "install-pins") == []


@pytest.mark.parametrize(
    ("line", "contradicts"),
    [
        ("ray==2.48.0  # needs ray >= 2.56", True),
        ("ray[default]>=2.56,<2.57  # needs ray >= 2.56", False),
        ("# pinned: ray==2.40\nray==2.48.0", True),
        ("# ray==2.40\nray==2.48.0", False),
    ],
)
def test_a_comment_that_contradicts_the_pin_beside_it_is_found(line: str, contradicts: bool) -> None:
    assert bool(found(tree({"requirements/cuda.txt": line + "\n"}), "pin-comment")) is contradicts


def test_a_file_that_is_no_yaml_is_a_finding_and_hides_nothing_else() -> None:
    checkout = tree({"tests/test_a.py": "def test_a(): ..."}, bad="steps: [\n", spec=step("pytest test_a.py"))
    assert len(found(checkout, "broken-yaml")) == 1
    assert found(checkout, "unselected-test") == []


def waiver(**parts: object) -> Waiver:
    values = {"rule": "unselected-test", "key": "tests/test_a.py", "owner": "o", "reason": "r", "link": "https://x/1"}
    return Waiver.model_validate(values | {"expires": date(2027, 1, 1)} | parts)


def test_a_waiver_hides_its_finding_until_it_expires() -> None:
    checkout = tree({"tests/test_a.py": "def test_a(): ..."}, spec=step("true"))
    assert [f.rule for f in audit(checkout, TODAY, [waiver()])] == []
    assert [f.rule for f in audit(checkout, date(2027, 1, 2), [waiver()])] == ["expired-waiver", "unselected-test"]


def test_a_waiver_that_matches_nothing_is_a_finding() -> None:
    checkout = tree({"tests/test_a.py": "def test_a(): ..."}, spec=step("pytest test_a.py"))
    assert [f.rule for f in audit(checkout, TODAY, [waiver()])] == ["unmatched-waiver"]


@pytest.mark.parametrize("missing", ["owner", "reason", "link", "expires"])
def test_a_waiver_without_owner_reason_link_or_expiry_is_refused(tmp_path: Path, missing: str) -> None:
    lines = {
        "rule": '"a"',
        "key": '"b"',
        "owner": '"o"',
        "reason": '"r"',
        "link": '"https://x"',
        "expires": "2027-01-01",
    }
    del lines[missing]
    path = tmp_path / "waivers.toml"
    path.write_text("\n[[waiver]]\n" + "\n".join(f"{key} = {value}" for key, value in lines.items()))
    with pytest.raises(Misconfigured, match=missing):
        read_waivers(path)


def test_the_command_line_prints_findings_as_json_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, text in {
        ".buildkite/ci_config.yaml": CONFIG,
        AREA: step("true"),
        "vllm/envs.py": "",
        "tests/test_a.py": "def test_a(): ...",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert run_audit(tmp_path, None, as_json=True) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["counts"] == {"unselected-test": 1}
    assert document["findings"][0]["key"] == "tests/test_a.py"
    assert run_audit(tmp_path, None, as_json=False) == 1
    assert "tests/test_a.py:1: no active step" in capsys.readouterr().out


def test_a_folder_that_is_no_checkout_is_refused_instead_of_found_clean(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no vLLM checkout"):
        run_audit(tmp_path, None, as_json=False)
