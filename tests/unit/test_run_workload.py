from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.deployments import DEPLOYMENTS
from harness.errors import Misconfigured
from harness.plan.types import Options
from harness.run.workload import load_workload
from harness.zoo import ZooModel, build

NAMES = ("eagle3-pd", "mtp-pd")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ZooModel]:
    folder = tmp_path_factory.mktemp("zoo")
    return {name: build(tiny, folder) for name in NAMES if (tiny := DEPLOYMENTS[name].models.tiny) is not None}


def questions(folder: Path, count: int) -> Path:
    path = folder / "mt-bench.jsonl"
    path.write_text("".join(json.dumps({"prompt": [f"question {n}"]}) + "\n" for n in range(count)), "utf-8")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_workload_knows_every_count_and_every_answer(name: str, zoo: dict[str, ZooModel]) -> None:
    deployment = DEPLOYMENTS[name]
    workload = load_workload(deployment, "tiny", Options(), zoo[name])
    counts = workload.counts
    assert counts is not None
    speculation = deployment.role("decode").speculation
    assert speculation is not None
    assert counts.draft_tokens == speculation.k * counts.drafts
    assert sum(counts.per_position) == counts.accepted > 0
    # One padded draft per request comes on top of those that a standalone server makes.
    assert counts.drafts > len(workload.prompts)
    asked = {prompt.prompt_id: prompt.max_tokens for prompt in workload.prompts}
    assert {text.prompt_id: len(text.token_ids) for text in workload.texts} == asked
    assert workload.ignore_eos


def test_fewer_prompts_and_tokens_change_counts_and_hash(zoo: dict[str, ZooModel]) -> None:
    deployment = DEPLOYMENTS["eagle3-pd"]
    whole = load_workload(deployment, "tiny", Options(), zoo["eagle3-pd"])
    short = load_workload(deployment, "tiny", Options(prompts=3, max_tokens=4, concurrency=1), zoo["eagle3-pd"])
    assert (len(short.prompts), short.concurrency) == (3, 1)
    assert max(prompt.max_tokens for prompt in short.prompts) == 4
    assert short.hash != whole.hash
    assert short.counts is not None
    assert whole.counts is not None
    assert short.counts.drafts < whole.counts.drafts


@pytest.mark.parametrize("name", NAMES)
def test_no_prompt_begins_like_the_smoke_request(name: str, zoo: dict[str, ZooModel]) -> None:
    """Its KV is in the prefix cache already and would take the place of a transfer."""
    workload = load_workload(DEPLOYMENTS[name], "tiny", Options(), zoo[name])
    assert workload.smoke.text
    assert not any((prompt.text or "").startswith(workload.smoke.text[0]) for prompt in workload.prompts)


def test_a_hub_workload_is_80_conversations_of_256_tokens_with_nothing_known_beforehand(tmp_path: Path) -> None:
    options = Options(models="hub", dataset=questions(tmp_path, 90))
    workload = load_workload(DEPLOYMENTS["eagle3-pd"], "hub", options, None)
    assert len(workload.prompts) == 80
    assert {prompt.max_tokens for prompt in workload.prompts} == {256}
    assert workload.prompts[0].messages == (("user", "question 0"),)
    assert (workload.counts, workload.texts, workload.ignore_eos) == (None, (), False)


def test_a_dataset_for_computed_prompts_is_refused(tmp_path: Path, zoo: dict[str, ZooModel]) -> None:
    with pytest.raises(Misconfigured, match="--dataset needs hub models"):
        load_workload(DEPLOYMENTS["mtp-pd"], "tiny", Options(dataset=questions(tmp_path, 1)), zoo["mtp-pd"])


def test_a_data_parallel_run_keeps_more_requests_in_flight_than_it_has_engines(zoo: dict[str, ZooModel]) -> None:
    workload = load_workload(DEPLOYMENTS["eagle3-dp2"], "tiny", Options(), zoo["eagle3-pd"])
    assert workload.concurrency == 4
    assert len(workload.prompts) > 4
    assert all(not prompt.open_ended for prompt in workload.prompts)


def test_a_synthetic_sampler_decides_by_chance_so_nothing_is_computed(zoo: dict[str, ZooModel]) -> None:
    workload = load_workload(DEPLOYMENTS["synthetic-acceptance"], "tiny", Options(), zoo["eagle3-pd"])
    assert workload.counts is None
    assert workload.texts == ()


def test_texts_are_computed_for_a_deployment_without_a_drafter_and_no_counts(tmp_path: Path) -> None:
    workload = load_workload(DEPLOYMENTS["jamba-pp2-mrv2"], "tiny", Options(), build("jamba", tmp_path))
    assert len(workload.texts) == len(workload.prompts) > 0
    assert workload.counts is None


def test_hub_prompts_are_forced_only_where_weights_were_trained() -> None:
    dense = load_workload(DEPLOYMENTS["eagle3-tp2"], "hub", Options(), None)
    random_weights = load_workload(DEPLOYMENTS["dp2"], "hub", Options(), None)
    assert {prompt.open_ended for prompt in dense.prompts} == {True, False}
    assert {prompt.open_ended for prompt in random_weights.prompts} == {True}
    assert {prompt.max_tokens for prompt in random_weights.prompts} == {8}
    assert len(random_weights.prompts) > 4
    with pytest.raises(Misconfigured, match="takes no --dataset"):
        load_workload(DEPLOYMENTS["dp2"], "hub", Options(dataset=Path("x.jsonl")), None)


def test_a_correctness_run_compares_short_answers_and_asks_questions_with_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{n}", "answer": f"#### {n}"}) + "\n" for n in range(9)), "utf-8")
    workload = load_workload(DEPLOYMENTS["mimo-mtp"], "hub", Options(dataset=path, prompts=4), None)
    assert len(workload.prompts) == 8
    assert sorted(workload.answers.values()) == ["5", "6", "7", "8"]
    with pytest.raises(Misconfigured, match="give them with --dataset"):
        load_workload(DEPLOYMENTS["mimo-mtp"], "hub", Options(), None)


def test_random_weights_are_asked_no_questions() -> None:
    workload = load_workload(DEPLOYMENTS["deepseek-mtp"], "hub", Options(), None)
    assert workload.answers == {}
    assert {prompt.max_tokens for prompt in workload.prompts} == {10}
