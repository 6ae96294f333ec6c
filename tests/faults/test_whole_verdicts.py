"""The command line to its verdict on answers that differ: thresholds, controls, forced tokens, a balancer that sleeps.

The engine is the fake one; the checkpoints of the hub runs are folders that look like them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from harness.deployments import DEPLOYMENTS, Limits
from harness.drive.paired import COPY_MAX_TOKENS, paired_prompts
from harness.drive.workloads import Prompt
from harness.result import Result
from harness.verdict import Verdict
from tests.faults.whole_run import Whole

pytestmark = pytest.mark.whole_run

PROMPTS = paired_prompts(100, COPY_MAX_TOKENS, random_weights=False)
OPEN = [prompt for prompt in PROMPTS if prompt.open_ended]
FORCED = [prompt for prompt in PROMPTS if not prompt.open_ended]


@pytest.fixture
def hub(whole: Whole) -> Whole:
    """A hub cache with the checkpoints."""
    cache = whole.folder / "hub"
    for name in ("mimo-mtp", "deepseek-tp2"):
        models = DEPLOYMENTS[name].models
        for model in (models.target, *((models.drafter,) if models.drafter else ())):
            folder = cache / f"models--{model.repo.replace('/', '--')}"
            snapshot = folder / "snapshots" / ("0" * 40)
            snapshot.mkdir(parents=True)
            (snapshot / "config.json").write_text("{}")
            (snapshot / "model.safetensors").write_bytes(b"")
            (folder / "refs").mkdir()
            (folder / "refs" / "main").write_text("0" * 40)
    whole.extra = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    return whole


def knows(whole: Whole, prompts: tuple[Prompt, ...]) -> None:
    """Tell the engine what each of ``prompts`` must get."""
    (whole.fake / "paired.json").unlink()
    answers = {prompt.text: answer(number, prompt) for number, prompt in enumerate(prompts)}
    (whole.fake / "paired.json").write_text(json.dumps(answers))


def answer(number: int, prompt: Prompt) -> dict[str, object]:
    """As many tokens as asked for, a draft for every second one of them accepted."""
    after_the_first = prompt.max_tokens - 1
    accepted = after_the_first // 2
    return {
        "token_ids": [1000 + 20 * number + place for place in range(prompt.max_tokens)],
        "prompt_ids": [1, 2, 3],
        "drafts": after_the_first - accepted,
        "draft_tokens": after_the_first - accepted,
        "accepted": accepted,
        "per_position": [accepted],
    }


def texts(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.text or "" for prompt in prompts]


def judged(whole: Whole, name: str, *options: str, limits: Limits | None = None) -> tuple[int, Result, str]:
    """Exit code, result, and what the terminal showed, of the command line."""
    (whole.folder / "expectations.toml").write_text("")
    expectations = ("--expectations", str(whole.folder / "expectations.toml"))
    with whole.started(*expectations, *options, name=name, limits=limits) as command:
        code, result = command.finish()
        return code, result, " ".join(command.out.read_text().split())


def mimo(whole: Whole, identical: float) -> tuple[int, Result, str]:
    knows(whole, PROMPTS)
    limits = Limits(identical=identical, compared_tokens=10, gsm8k=0.0)
    return judged(whole, "mimo-mtp", "--models", "hub", "--prompts", "100", limits=limits)


def test_66_of_100_at_a_threshold_of_0_66_pass(hub: Whole) -> None:
    hub.faults(server={"differs": texts(OPEN[:34]), "differs_at": 4})
    code, result, shown = mimo(hub, 0.66)
    assert (code, result.verdict) == (0, Verdict.PASS), result.reason
    assert "PASS mimo-mtp" in shown
    assert "66 of 100 outputs are identical in their first 10 tokens (at least 0.66 must)" in shown


def test_59_of_100_at_a_threshold_of_0_60_fail_and_print_the_control(hub: Whole) -> None:
    hub.faults(server={"differs": texts(OPEN[:41]), "differs_at": 4})
    code, result, shown = mimo(hub, 0.60)
    assert (code, result.verdict) == (1, Verdict.REGRESSION)
    assert "REGRESSION mimo-mtp" in shown
    assert result.reason.startswith("identical_outputs: 59 of 100 outputs are identical in their first 10 tokens")
    assert "first divergence: open-0 at position 4: expected token 1004, got token 1005" in shown
    assert "control, the reference against itself: 100 of 100 outputs are identical" in shown


def test_forced_tokens_that_differ_fail_whatever_the_total(hub: Whole) -> None:
    hub.faults(server={"differs": texts(FORCED[:1]), "differs_at": 4})
    # Several of them have one text.
    wrong = texts(FORCED).count(FORCED[0].text or "")
    code, result, _ = mimo(hub, 0.60)
    assert (code, result.verdict) == (1, Verdict.REGRESSION)
    said = f"deterministic_all_match: {50 - wrong} of 50 deterministic prompts answered alike (all must)"
    assert result.reason.startswith(said)
    (total,) = [check for check in result.checks if check.name == "identical_outputs"]
    assert total.ok
    assert total.summary.startswith(f"{100 - wrong} of 100 outputs are identical")


def test_speculation_that_strays_from_its_reference_is_a_regression_with_the_first_divergence(hub: Whole) -> None:
    prompts = paired_prompts(16, 8, random_weights=True)
    knows(hub, prompts)
    hub.faults(server={"differs": texts(prompts), "differs_at": 3})
    code, result, shown = judged(hub, "deepseek-tp2", "--models", "hub", limits=Limits(token_match=0.9))
    assert (code, result.verdict) == (1, Verdict.REGRESSION)
    assert "REGRESSION deepseek-tp2" in shown
    assert result.reason.startswith("token_match: 112 of 128 positions hold the reference's token (at least 0.9 must)")
    assert "first divergence: open-0 at position 3: expected token" in result.reason
    assert "control, the reference against itself: 128 of 128 positions" in result.reason


def test_a_balancer_that_rearranges_passes(whole: Whole) -> None:
    code, result, shown = judged(whole, "ep2-eplb")
    assert (code, result.verdict) == (0, Verdict.PASS), result.reason
    assert "1 rearrangements during the run" in shown


def test_a_step_interval_that_never_comes_is_no_pass(whole: Whole) -> None:
    whole.faults(server={"rearranges_at": 10_000})
    code, result, shown = judged(whole, "ep2-eplb")
    assert (code, result.verdict) == (1, Verdict.REGRESSION)
    assert "REGRESSION ep2-eplb" in shown
    assert result.reason.startswith("eplb_rearranged: no rearrangement on server-0 during the run")
    assert "the step interval never came" in shown
