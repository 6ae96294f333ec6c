"""Prompts for comparing two servers, and GSM8K from a local file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.drive.paired import GSM8K_SHOTS, load_gsm8k, paired_prompts
from harness.errors import Misconfigured


def problems(path: Path, count: int) -> Path:
    lines = [json.dumps({"question": f"What is {i} + 1?", "answer": f"It is.\n#### {i + 1}"}) for i in range(count)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_half_of_the_prompts_force_the_next_token_and_no_prompt_begins_another() -> None:
    prompts = paired_prompts(40, 32, random_weights=False)
    assert sum(not prompt.open_ended for prompt in prompts) == 20
    texts = [prompt.text or "" for prompt in prompts if prompt.open_ended]
    assert not any(a != b and b.startswith(a) for a in texts for b in texts)
    assert len({prompt.prompt_id for prompt in prompts}) == 40


def test_random_weights_are_forced_by_nothing() -> None:
    assert all(prompt.open_ended for prompt in paired_prompts(16, 8, random_weights=True))


def test_the_first_problems_are_worked_examples_and_the_next_are_asked(tmp_path: Path) -> None:
    found = load_gsm8k(problems(tmp_path / "gsm8k.jsonl", 8), questions=3, max_tokens=64)
    assert list(found.answers.values()) == ["6", "7", "8"]
    first = found.prompts[0].text or ""
    assert first.count("Question:") == GSM8K_SHOTS + 1
    assert first.endswith("Question: What is 5 + 1?\nAnswer:")


def test_a_file_that_is_too_short_absent_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="holds 7 problems, 5 worked examples and 3 questions need 8"):
        load_gsm8k(problems(tmp_path / "short.jsonl", 7), questions=3, max_tokens=64)
    with pytest.raises(Misconfigured, match="give them with --dataset"):
        load_gsm8k(None, questions=3, max_tokens=64)
    with pytest.raises(Misconfigured, match="cannot be read"):
        load_gsm8k(tmp_path / "absent.jsonl", questions=3, max_tokens=64)
    broken = problems(tmp_path / "broken.jsonl", 8)
    broken.write_text(broken.read_text().replace("#### 3", "3"), encoding="utf-8")
    with pytest.raises(Misconfigured, match=r"broken.jsonl line 3 has no answer behind ####"):
        load_gsm8k(broken, questions=3, max_tokens=64)
