"""The rendered pipelines: their schema, their commands, their budgets, and what a change selects."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from harness.ci.audit import SourceTree, audit
from harness.ci.audit.pipelines import load, parse
from harness.ci.cli import choose, run_pipeline
from harness.ci.deps import read_list
from harness.ci.platforms import PLATFORMS, pool_size
from harness.ci.steps import (
    INTEL_FILE,
    NVIDIA_FILE,
    PROJECT_FILE,
    as_yaml,
    carry_over,
    documents,
    nvidia_document,
    run_minutes,
)
from harness.deployments import DEPLOYMENTS, EAGLE3_PD, Parallel, Timeouts
from harness.errors import Misconfigured
from tests.unit.test_ci_audit import CONFIG, TODAY


def render() -> dict[str, str]:
    return {path: as_yaml(document) for path, document in documents(DEPLOYMENTS.values(), read_list).items()}


@cache
def rendered() -> dict[str, str]:
    """Rendered once: the writer is pure Python and the files are long. Nobody may change what is returned."""
    return render()


@cache
def steps_of(text: str) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = YAML(typ="safe").load(text)["steps"]
    return steps


def all_steps() -> list[dict[str, Any]]:
    return [step for text in rendered().values() for step in steps_of(text)]


def commands_of(step: dict[str, Any]) -> list[str]:
    """The step's commands, and its mirror's where that has its own."""
    return [*step["commands"], *step.get("mirror", {}).get("amd", {}).get("commands", ())]


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert render() == rendered()


def deployment_of(key: str) -> str | None:
    """The deployment of a step's key; None for the project's own sessions."""
    body = key.removeprefix("spec-decode-gate-").removesuffix("-intel")
    body = body.removesuffix("-tiny").removesuffix("-hub").removesuffix("-device").removesuffix("-host")
    return body if body in DEPLOYMENTS else None


def test_every_file_has_steps_with_unique_keys_for_every_deployment_that_it_has_models_for() -> None:
    with_tiny = {name for name, deployment in DEPLOYMENTS.items() if deployment.models.tiny is not None}
    for path, text in rendered().items():
        keys = [step["key"] for step in steps_of(text)]
        assert len(keys) == len(set(keys)), path
        covered = {deployment_of(key) for key in keys} - {None}
        assert covered == (set(DEPLOYMENTS) if path == NVIDIA_FILE else with_tiny), path


def test_no_step_asks_for_tiny_models_that_do_not_exist() -> None:
    for step in all_steps():
        name = deployment_of(step["key"])
        if "--models tiny" in step["commands"][0]:
            assert name is not None
            assert DEPLOYMENTS[name].models.tiny is not None


def test_only_an_expected_refusal_is_let_through_on_cpu() -> None:
    steps = documents(DEPLOYMENTS.values(), read_list, {"dp2"})[PROJECT_FILE]["steps"]
    allowing = [step["key"] for step in steps if "--allow" in step["commands"][0]]
    # In its own step, and in the one that ends with the worst word of all.
    assert allowing == ["dp2", "report"]
    assert all("--allow" not in step["commands"][0] for step in all_steps())


def test_the_project_proves_its_own_gate_and_reports_the_deployments_alone() -> None:
    steps = {step["key"]: step for step in steps_of(rendered()[PROJECT_FILE])}
    # Measured on two cores: 3 minutes of faults, 2 of smoke mutations, 4 to build the engine for them.
    assert steps["faults"]["timeout_in_minutes"] > 2 * 3
    assert steps["falsify"]["timeout_in_minutes"] > 2 * (2 + 4)
    assert steps["faults"]["commands"][0].endswith("nox -s faults")
    command, [kept] = steps["falsify"]["commands"][0], steps["falsify"]["artifact_paths"]
    assert command.endswith(f"nox -s falsify -- --smoke --runs-dir {kept.removesuffix('/**/*')}")
    # The report takes every folder below runs/ for a run: a mutation there would be a regression of the build.
    assert not kept.startswith("runs/")
    reported = {entry["step"] for entry in steps["report"]["depends_on"]}
    assert reported == {name for name, deployment in DEPLOYMENTS.items() if deployment.models.tiny is not None}


def test_every_command_is_valid_shell() -> None:
    for step in all_steps():
        for command in commands_of(step):
            assert subprocess.run(["bash", "-n", "-c", command], check=False).returncode == 0, command


def test_intels_runner_script_leaves_every_command_as_it_is() -> None:
    """It joins the words after `-m` and `-k` up to the next option into one, as a pytest marker."""
    for step in steps_of(rendered()[INTEL_FILE]):
        words = step["commands"][0].split()
        after = [words[at + 1 : at + 3] for at, word in enumerate(words) if word in ("-m", "-k")]
        assert after
        assert all(value[:1] != "-" and following[:1] == "-" for value, following in after), step["commands"]


def test_of_the_connectors_only_nixl_is_installed_and_only_where_kv_moves(tmp_path: Path) -> None:
    script = tmp_path / ".buildkite" / "scripts" / "install-kv-connectors.sh"
    script.parent.mkdir(parents=True)
    script.write_text('echo "script:" && cat "$KV_CONNECTORS_REQUIREMENTS"\n', encoding="utf-8")
    (tmp_path / "requirements").mkdir()
    pins = "lmcache >= 0.5.6\n# not nixl\nnixl == 1.5.0\nmooncake-transfer-engine >= 0.3.12\n"
    (tmp_path / "requirements" / "kv_connectors.txt").write_text(pins, encoding="utf-8")
    for step in steps_of(rendered()[NVIDIA_FILE]):
        name = deployment_of(step["key"])
        assert name is not None
        before, installs, _ = step["commands"][0].partition(" && pip install ")
        script_part = before.replace("/vllm-workspace", str(tmp_path)) if installs else ":"
        ran = subprocess.run(["bash", "-c", script_part], cwd=tmp_path, capture_output=True, text=True, check=True)
        moves_kv = DEPLOYMENTS[name].transfer is not None
        assert ran.stdout == ("script:\nnixl == 1.5.0\n" if moves_kv else "")
        # AMD's images bring NIXL, and the script would install something else there.
        assert "install-kv-connectors" not in step.get("mirror", {}).get("amd", {}).get("commands", step["commands"])[0]
        assert ("requirements/kv_connectors.txt" in step["source_file_dependencies"]) is moves_kv


def test_a_failing_first_command_fails_the_step() -> None:
    for step in all_steps():
        assert len(step["commands"]) == 1
        for command in commands_of(step):
            parts = command.split(" && ")
            assert len(parts) > 1
            # The first command replaced by `false`, the rest as rendered: nothing may turn it into a success.
            inner = command[command.index("'") + 1 : -1] if "'" in command else command
            failing = "false && " + inner.split(" && ", 1)[1]
            assert subprocess.run(["bash", "-c", failing], capture_output=True, check=False).returncode != 0


def test_quotes_survive_the_generators_replacement_of_single_ones() -> None:
    for step in all_steps():
        for command in commands_of(step):
            assert '"' not in command
            replaced = command.replace("'", '"')
            assert subprocess.run(["bash", "-n", "-c", replaced], check=False).returncode == 0


@pytest.mark.parametrize("name", list(DEPLOYMENTS))
def test_a_timeout_exceeds_the_budgets_of_the_run(name: str) -> None:
    budgets = DEPLOYMENTS[name].timeouts
    stages = 1 if name == "synthetic-acceptance" else 2
    phases_s = budgets.lease_s + stages * (budgets.ready_s + budgets.drive_s + budgets.stop_s)
    for step in all_steps():
        if name == deployment_of(step["key"]):
            assert step["timeout_in_minutes"] * 60 > phases_s
            mirror = step.get("mirror", {}).get("amd")
            assert mirror is None or mirror["timeout_in_minutes"] * 60 > phases_s


def test_a_run_longer_than_the_platform_allows_is_refused() -> None:
    long = replace(EAGLE3_PD, timeouts=Timeouts(drive_s=6 * 3600))
    assert run_minutes(long) > (PLATFORMS["amd"].longest_minutes or 0)
    with pytest.raises(ValueError, match="amd ends a step after 180"):
        nvidia_document([long], read_list)


def test_device_counts_are_those_of_the_deployment() -> None:
    for step in all_steps():
        name = deployment_of(step["key"])
        if name is not None and "device" in step:
            devices = DEPLOYMENTS[name].devices
            assert step["num_devices"] == devices
            if "mirror" in step:
                assert step["mirror"]["amd"]["device"].endswith(f"_{devices}")


def test_three_devices_take_the_next_larger_amd_pool_and_say_so() -> None:
    prefill, decode = EAGLE3_PD.roles
    three = replace(EAGLE3_PD, roles=(prefill, replace(decode, parallel=Parallel(tp=2))))
    mirror = nvidia_document([three], read_list)["steps"][0]["mirror"]["amd"]
    assert (mirror["device"], mirror["num_devices"]) == ("mi300_4", 4)
    with pytest.raises(ValueError, match="9 devices"):
        pool_size(9)


def test_the_audit_reads_the_files_and_finds_nothing_wrong_with_them() -> None:
    texts = dict(rendered())
    texts[".buildkite/ci_config.yaml"] = CONFIG
    texts[".buildkite/ci_config_intel.yaml"] = 'name: intel\njob_dirs: [".buildkite/intel_jobs"]\n'
    parsed = {path: parse(text) for path, text in texts.items()}
    pipelines = load(texts, parsed)
    assert {step.file for step in pipelines.steps} == {NVIDIA_FILE, INTEL_FILE}
    assert len(pipelines.mirrors) == len(steps_of(texts[NVIDIA_FILE]))
    present = {entry.rstrip("/") for step in pipelines.steps for entry in step.dependencies}
    findings = audit(SourceTree([*texts, *present], texts), TODAY)
    assert [finding for finding in findings if finding.path.startswith(".buildkite/")] == []
    # What the steps list, they close: no gap is left for the features that the registry's sessions run.
    gaps = [finding.key for finding in findings]
    # A family without tiny checkpoints has nightly steps only, and the audit says so.
    nightly_only = ("MTP:vllm/model_executor/models/mimo_mtp.py",)
    ours = [gap for gap in gaps if gap.startswith(("EAGLE:", "MTP:", "prefill/decode over NIXL"))]
    assert [gap for gap in ours if gap not in nightly_only] == []


def test_unknown_fields_of_upstream_pass_through_and_known_ones_do_not() -> None:
    document = documents([EAGLE3_PD], read_list)[NVIDIA_FILE]
    on_disk = YAML(typ="safe").load(as_yaml(document))
    on_disk["steps"][0] |= {"automatic_shard": True, "timeout_in_minutes": 1}
    [first, *_] = carry_over(document, on_disk)["steps"]
    assert first["automatic_shard"] is True
    assert first["timeout_in_minutes"] == run_minutes(EAGLE3_PD)


def test_a_variable_that_upstream_added_to_a_step_passes_through_and_one_of_ours_does_not() -> None:
    document = documents([EAGLE3_PD], read_list)[INTEL_FILE]
    on_disk = YAML(typ="safe").load(as_yaml(document))
    on_disk["steps"][0]["env"] |= {"ZE_AFFINITY_MASK": "0", "VLLM_TEST_DEVICE": "cpu", "REGISTRY": "stale"}
    first, second = carry_over(document, on_disk)["steps"]
    assert first["env"] == {"VLLM_TEST_DEVICE": "xpu", "ZE_AFFINITY_MASK": "0"}
    assert second["env"] == {"VLLM_TEST_DEVICE": "xpu"}


def test_rendered_into_a_vllm_checkout_intels_steps_name_its_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = tmp_path / INTEL_FILE
    jobs.parent.mkdir(parents=True)
    with pytest.raises(Misconfigured, match="is no vLLM checkout"):
        run_pipeline(tmp_path, check=False, vllm=tmp_path)
    (tmp_path / "vllm").mkdir()
    with pytest.raises(Misconfigured, match="REGISTRY"):
        run_pipeline(tmp_path, check=False, vllm=tmp_path)
    (jobs.parent / "theirs.yaml").write_bytes(b"steps: \xff")
    with pytest.raises(Misconfigured, match=r"theirs\.yaml is not text .*; restore it$"):
        run_pipeline(tmp_path, check=False, vllm=tmp_path)
    (jobs.parent / "theirs.yaml").write_text("steps: [", encoding="utf-8")
    with pytest.raises(Misconfigured, match=r"(?s)theirs\.yaml is not YAML .*; restore it$"):
        run_pipeline(tmp_path, check=False, vllm=tmp_path)
    env = '{REGISTRY: registry.example, REPO: "images"}'
    command = "bash .buildkite/scripts/hardware_ci/run-intel-test.sh pytest"
    theirs = f"steps:\n- label: theirs\n  commands: ['{command}']\n  env: {env}\n"
    (jobs.parent / "theirs.yaml").write_text(theirs, encoding="utf-8")
    assert run_pipeline(tmp_path, check=False, vllm=tmp_path) == 0
    assert not (tmp_path / PROJECT_FILE).exists()
    for step in steps_of(jobs.read_text(encoding="utf-8")):
        assert step["env"] == {"REGISTRY": "registry.example", "REPO": "images", "VLLM_TEST_DEVICE": "xpu"}
    capsys.readouterr()
    assert run_pipeline(tmp_path, check=True, vllm=tmp_path) == 0
    assert capsys.readouterr().out == ""
    # The checkout's jobs move to another image: the steps follow, and the ones rendered before do not object.
    (jobs.parent / "theirs.yaml").write_text(theirs.replace('"images"', '"others"'), encoding="utf-8")
    assert run_pipeline(tmp_path, check=True, vllm=tmp_path) == 1
    assert run_pipeline(tmp_path, check=False, vllm=tmp_path) == 0
    assert {step["env"]["REPO"] for step in steps_of(jobs.read_text(encoding="utf-8"))} == {"others"}


def test_check_is_silent_on_what_was_rendered_and_shows_a_hand_edit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_pipeline(tmp_path, check=True) == 1
    assert not (tmp_path / PROJECT_FILE).exists()
    assert run_pipeline(tmp_path, check=False) == 0
    capsys.readouterr()
    assert run_pipeline(tmp_path, check=True) == 0
    assert capsys.readouterr().out == ""
    file = tmp_path / NVIDIA_FILE
    file.write_text(file.read_text().replace("device: l4", "device: a100", 1))
    assert run_pipeline(tmp_path, check=True) == 1
    shown = capsys.readouterr().out
    assert "-    device: a100" in shown
    assert "+    device: l4" in shown


def test_a_change_to_the_gate_itself_starts_every_step_of_a_pull_request() -> None:
    chosen = choose(documents(DEPLOYMENTS.values(), read_list), [".buildkite/spec_decode_gate/baselines.toml"])
    assert all(step.selected is ("Nightly" not in step.label) for step in chosen)


def test_a_change_to_the_drafter_starts_every_session_that_runs_it() -> None:
    chosen = choose(documents(DEPLOYMENTS.values(), read_list), ["vllm/model_executor/models/llama_eagle3.py"])
    started = [step.label for step in chosen if step.selected]
    runs_it = [name for name, deployment in DEPLOYMENTS.items() if deployment.models.tiny == "llama-eagle3"]
    assert runs_it
    assert all(any(f" {name} " in label for label in started) for name in runs_it)
    assert any(":amd:" in label for label in started)
    assert all("Nightly" not in label for label in started)


def test_the_qwen35_sessions_list_their_model_files() -> None:
    entries = read_list("mtp-pd")
    assert {"vllm/model_executor/models/qwen3_5.py", "vllm/model_executor/models/qwen3_5_mtp.py"} <= set(entries)
