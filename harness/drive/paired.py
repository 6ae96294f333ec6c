"""Prompts for comparing two servers: some that force the next token, some that leave it open, and GSM8K."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from harness.drive.workloads import Prompt
from harness.errors import Misconfigured
from harness.files import LARGEST_DATA_BYTES, read_bounded
from harness.measure.gsm8k import right_answer

PAIRED_PROMPTS = 16
GSM8K_QUESTIONS = 100
GSM8K_SHOTS = 5
GSM8K_MAX_TOKENS = 256
COPY_PROMPTS = 50
COPY_MAX_TOKENS = 10
_SHAPE = '{"question": "...", "answer": "... #### 42"}, one object per line'

_WORDS = ("river", "stone", "cloud", "lamp", "field", "glass", "wind", "bread", "chair", "leaf", "sand", "door")
_OPENINGS = (
    "The capital of France is",
    "In the morning the first thing that she noticed was",
    "A good way to learn a language is",
    "The three largest rivers of the continent are",
    "Water boils at a lower temperature on a mountain because",
    "The letter began with the words",
    "To repair a bicycle tyre, first",
    "Nobody in the village remembered when",
)


def paired_prompts(count: int, max_tokens: int, *, random_weights: bool) -> tuple[Prompt, ...]:
    """``count`` text prompts, every other one deterministic: a pattern that is repeated and goes on repeating.

    No prompt forces a model of random weights, so all of its prompts are open-ended.
    """
    return tuple(
        _copy(index, max_tokens) if index % 2 and not random_weights else _open(index, max_tokens)
        for index in range(count)
    )


def _copy(index: int, max_tokens: int) -> Prompt:
    start = index % len(_WORDS)
    pattern = " ".join((_WORDS[start], _WORDS[(start + 5) % len(_WORDS)], _WORDS[(start + 7) % len(_WORDS)]))
    return Prompt(
        prompt_id=f"copy-{index}",
        text=" ".join([pattern] * 8),
        max_tokens=max_tokens,
        mode="deterministic",
        open_ended=False,
    )


def _open(index: int, max_tokens: int) -> Prompt:
    opening, word = _OPENINGS[index % len(_OPENINGS)], _WORDS[index // len(_OPENINGS) % len(_WORDS)]
    # Numbered, so that no prompt is the prefix of another.
    text = f"{word.capitalize()} {index}. {opening}"
    return Prompt(prompt_id=f"open-{index}", text=text, max_tokens=max_tokens, mode="open-ended")


@dataclass(frozen=True)
class Questions:
    """GSM8K prompts, and the right answers by prompt id."""

    prompts: tuple[Prompt, ...]
    answers: dict[str, str]


def load_gsm8k(source: Path | None, *, questions: int, max_tokens: int) -> Questions:
    """The first lines of a local JSONL are the worked examples, the next ``questions`` are asked.

    Raises `Misconfigured` naming the file, the line, or how many questions are missing.
    """
    if source is None:
        raise Misconfigured(f"this session solves GSM8K problems; give them with --dataset, a JSONL of {_SHAPE}")
    try:
        lines = [line for line in read_bounded(source, LARGEST_DATA_BYTES).split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"the GSM8K file {source} cannot be read: {error}") from error
    needed = GSM8K_SHOTS + questions
    if len(lines) < needed:
        raise Misconfigured(
            f"{source} holds {len(lines)} problems, {GSM8K_SHOTS} worked examples and {questions} questions need "
            f"{needed}; give a longer file or --prompts"
        )
    problems = [_problem(line, f"{source} line {number}") for number, line in enumerate(lines[:needed], start=1)]
    shots = "".join(f"Question: {question}\nAnswer: {solution}\n\n" for question, solution, _ in problems[:GSM8K_SHOTS])
    prompts, answers = [], {}
    for index, (question, _, answer) in enumerate(problems[GSM8K_SHOTS:]):
        prompt_id = f"gsm8k-{index}"
        text = f"{shots}Question: {question}\nAnswer:"
        prompts.append(Prompt(prompt_id=prompt_id, text=text, max_tokens=max_tokens, mode="open-ended"))
        answers[prompt_id] = answer
    return Questions(tuple(prompts), answers)


def _problem(line: str, where: str) -> tuple[str, str, str]:
    try:
        record = json.loads(line)
        question, solution = record["question"], record["answer"]
        answer = right_answer(solution)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise Misconfigured(f"{where} is no GSM8K problem; expected {_SHAPE}") from error
    if answer is None:
        raise Misconfigured(f"{where} has no answer behind ####; expected {_SHAPE}")
    return question, solution, answer
