"""The registry as data: every session is complete, and says what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.deployments import DEPLOYMENTS, EPLB

ROWS = (
    *("eagle3-pd", "mtp-pd", "deepseek-tp2", "ep2", "ep2-eplb", "dp2", "pp2", "tp1", "dp1", "eagle3-dp2", "eagle3-tp2"),
    *("deepseek-pd", "ep2-eplb-pd", "mimo-mtp", "deepseek-mtp", "qwen35-hybrid-mrv2", "gemma4-mtp", "jamba-pp2-mrv2"),
    "synthetic-acceptance",
)
COMPARING = {"token_match", "identical_outputs"}


def test_every_system_of_the_mission_is_a_session() -> None:
    assert set(ROWS) == set(DEPLOYMENTS)


@pytest.mark.parametrize("name", ROWS)
def test_what_a_session_is_judged_by_fits_what_it_runs(name: str) -> None:
    deployment = DEPLOYMENTS[name]
    checks = set(deployment.checks)
    roles = {role.name: role for role in deployment.roles}
    assert len(checks) == len(deployment.checks)
    assert bool(checks & COMPARING) == ("reference" in roles)
    assert ("kv_moved" in checks) == (deployment.transfer is not None)
    assert ("drafts_on_every_engine" in checks) == (deployment.judged_role.speculation is not None)
    balanced = any(role.parallel.eplb for role in deployment.roles)
    assert ("eplb_rearranged" in checks) == balanced
    if "token_match" in checks:
        assert deployment.limits.token_match is not None
    if "identical_outputs" in checks:
        assert deployment.limits.identical is not None
        assert deployment.limits.gsm8k is not None
    assert deployment.needs


@pytest.mark.parametrize("name", ["deepseek-tp2", "ep2", "ep2-eplb", "dp2", "pp2", "tp1", "dp1"])
def test_the_reference_has_the_same_layout_and_no_drafter(name: str) -> None:
    server, reference = DEPLOYMENTS[name].roles
    assert server.parallel == reference.parallel
    assert server.speculation is not None
    assert reference.speculation is None


def test_load_balancing_rearranges_within_a_short_generation() -> None:
    assert (EPLB.window_size, EPLB.step_interval, EPLB.num_redundant_experts) == (2, 4, 2)


def test_controls_are_tagged() -> None:
    assert {name for name, deployment in DEPLOYMENTS.items() if "control" in deployment.tags} == {"tp1", "dp1"}


def test_listing_the_sessions_needs_the_standard_library_alone() -> None:
    code = "import sys; import harness.deployments; print(sorted(m for m in sys.modules if 'pydantic' in m))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
