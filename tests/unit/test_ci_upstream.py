"""What is read from a vLLM checkout's own jobs, and what is refused when they do not tell."""

from __future__ import annotations

from typing import Any

import pytest

from harness.ci.upstream import image_variables
from harness.errors import Misconfigured

CALL = "bash .buildkite/scripts/hardware_ci/run-intel-test.sh 'pytest'"


def job(command: str = CALL, **env: str) -> dict[str, Any]:
    return {"steps": [{"label": "x", "commands": [command], "env": env}]}


def test_the_image_is_the_one_that_every_calling_step_names() -> None:
    named = job(REGISTRY="r", REPO="p", VLLM_TEST_DEVICE="xpu")
    files = {"a.yaml": named, "b.yaml": named, "c.yaml": {"steps": [{"label": "y"}]}, "d.yaml": None}
    assert image_variables(files) == {"REGISTRY": "r", "REPO": "p"}


def test_a_step_that_starts_no_container_says_nothing_about_its_image() -> None:
    files = {"a.yaml": job(REGISTRY="r", REPO="p"), "b.yaml": job("docker build .", REGISTRY="other")}
    assert image_variables(files)["REGISTRY"] == "r"


def test_steps_that_disagree_are_named() -> None:
    files = {"a.yaml": job(REGISTRY="r", REPO="p"), "b.yaml": job(REGISTRY="r", REPO="q")}
    with pytest.raises(Misconfigured, match=r"one REPO \(a.yaml sets it to p and b.yaml sets it to q\)"):
        image_variables(files)


def test_a_checkout_without_such_a_step_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"one REGISTRY \(none sets it\)"):
        image_variables({"a.yaml": job()})


@pytest.mark.parametrize("env", [["REGISTRY=r"], None, "REGISTRY=r"])
def test_an_environment_that_is_no_mapping_names_nothing(env: object) -> None:
    with pytest.raises(Misconfigured, match=r"one REGISTRY \(none sets it\)"):
        image_variables({"a.yaml": {"steps": [{"commands": [CALL], "env": env}]}})


def test_a_single_command_counts_as_much_as_a_list() -> None:
    step = {"commands": CALL, "env": {"REGISTRY": "r", "REPO": "p"}}
    assert image_variables({"a.yaml": {"steps": [step]}}) == {"REGISTRY": "r", "REPO": "p"}
