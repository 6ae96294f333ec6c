from __future__ import annotations

import pytest

from harness.checks.registry import judge
from harness.facts import CheckResult, RunFacts
from harness.run.summary import describe_engine, describe_hardware, expected_of, figures_of
from tests.unit import check_facts as cf
from tests.unit.plan_inputs import GPU_MACHINE, engine


def checks(facts: RunFacts) -> tuple[CheckResult, ...]:
    return tuple(judge(name, facts) for name in facts.checks)


def test_tiny_figures_are_the_counts_as_they_were_judged() -> None:
    facts = cf.passing()
    figures = figures_of(facts, checks(facts))
    expected = expected_of(facts)
    assert {name: figures[name] for name in expected} == expected
    assert expected == {
        "drafts": 14,
        "draft_tokens": 42,
        "accepted": 15,
        "acceptance_length": 1 + 15 / 14,
        "per_position": [8, 4, 3],
    }
    assert figures["bytes"] == 4096 * cf.PROMPTS


def test_hub_figures_are_corrected_for_padded_drafts_as_the_baseline_is_standalone() -> None:
    facts = cf.hub()
    figures = figures_of(facts, checks(facts))
    assert figures["acceptance_length"] == pytest.approx(1 + 15 / 10)
    assert figures["per_position"] == pytest.approx([0.8, 0.4, 0.3])
    assert expected_of(facts) == {"acceptance_length": 2.5, "per_position": [0.8, 0.4, 0.3]}


def test_a_drafter_that_never_fired_has_no_acceptance_length() -> None:
    facts = cf.passing(decode={key: 0.0 for key in cf.DECODE_RUN if key[0].startswith("spec_decode")})
    figures = figures_of(facts, checks(facts))
    assert (figures["drafts"], figures["acceptance_length"]) == (0, None)


def test_a_page_without_the_metric_leaves_the_figure_out_and_never_makes_it_zero() -> None:
    facts = cf.passing()
    pages = tuple(
        page.model_copy(update={"samples": tuple(s for s in page.samples if "spec_decode" not in s.name)})
        for page in facts.servers[1].windows
    )
    broken = cf.with_server(facts, "decode-0", windows=pages)
    assert "drafts" not in figures_of(broken, checks(broken))


def test_nothing_is_expected_without_a_baseline() -> None:
    facts = cf.hub().model_copy(update={"baseline": None})
    assert expected_of(facts) == {}


def test_engine_and_hardware_are_described_for_a_certificate() -> None:
    assert describe_engine(engine("cuda"))["vllm"] == "0.32.0"
    hardware = describe_hardware(GPU_MACHINE)
    assert hardware["devices"] == ["0 NVIDIA H200 140 GiB", "1 NVIDIA H200 140 GiB"]
    assert hardware["driver"] == "580.159.04"
