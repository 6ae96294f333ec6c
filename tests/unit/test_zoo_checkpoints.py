"""The weights, without an engine: head margins, the arithmetic of the debts, and the store."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from harness.deployments import ZooName
from harness.zoo import build, chain_of, debts, deepseek, llama, store
from harness.zoo.chain import CHANNELS, POISON, READINGS, Chain
from harness.zoo.stream import ERROR_AT, GUESS_AT, GUESS_VALUE, Array, Stream, build_stream, reading_dim
from harness.zoo.tokens import VOCAB_SIZE, WORD_IDS

NAMES: tuple[ZooName, ...] = ("llama-eagle3", "qwen35-mtp", "deepseek-mtp", "gemma4-mtp", "mimo-mtp", "jamba")
ALL_MODES = tuple(itertools.product(range(READINGS), repeat=CHANNELS))


@functools.cache
def stream_of(name: ZooName) -> Stream:
    return build_stream(chain_of(name))


def margins(stream: Array, head: Array, wanted: list[int]) -> Array:
    """By how much the logit of ``wanted`` beats every other one, for each row of ``stream``."""
    logits = stream @ head.T
    rows = np.arange(len(wanted))
    best = logits[rows, wanted].copy()
    logits[rows, wanted] = -np.inf
    return np.asarray(best - logits.max(axis=1), dtype=np.float32)


def read(chain: Chain, embedding: Array, modes: tuple[int, ...]) -> Array:
    """The stream of every token after all layers."""
    stream = embedding.copy()
    readers = np.array(chain.reader_class) >= 0
    for channel, reading in enumerate(modes):
        if reading:
            stream[readers, reading_dim(channel, reading)] = 1
    return stream


@pytest.mark.parametrize("name", NAMES)
def test_the_target_head_picks_the_chains_successor_by_a_wide_margin(name: ZooName) -> None:
    chain, stream = chain_of(name), stream_of(name)
    for modes in ALL_MODES[::9]:
        wanted = [chain.next(token, modes) for token in range(VOCAB_SIZE)]
        assert margins(read(chain, stream.embedding, modes), stream.head, wanted).min() > 40


def test_the_eagle_head_picks_the_drafters_guess_by_a_wide_margin() -> None:
    chain, stream = chain_of("llama-eagle3"), stream_of("llama-eagle3")
    for modes in ALL_MODES[::9]:
        guesses = [chain.draft(token, modes) for token in range(VOCAB_SIZE)]
        assert margins(read(chain, stream.embedding, modes), stream.draft_head, guesses).min() > 40


def test_a_shared_head_drafter_proposes_poison_where_it_errs() -> None:
    chain = chain_of("qwen35-mtp")
    stream = stream_of("qwen35-mtp")
    drafted = stream.embedding.copy()
    drafted[:, GUESS_AT] += GUESS_VALUE * drafted[:, ERROR_AT]
    wrong = sorted(chain.wrong)
    assert margins(drafted[wrong], stream.head, [POISON] * len(wrong)).min() > 1000


def llama_successor(weights: dict[str, Array], tokens: list[int], lost_layer: int | None = None) -> int:
    """Argmax after the last token. ``lost_layer``: where keys and values of earlier tokens are zero, as if lost."""
    stream = weights["model.embed_tokens.weight"][tokens]

    def normed(rows: Array) -> Array:
        return np.asarray(rows / np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + 1e-6), dtype=np.float32)

    for layer in range(llama.LAYERS):
        query, key, value, output = (
            weights[f"model.layers.{layer}.self_attn.{part}_proj.weight"] for part in ("q", "k", "v", "o")
        )
        rows = normed(stream)
        keys, values = rows @ key.T, rows @ value.T
        if layer == lost_layer:
            keys[:-1], values[:-1] = 0, 0
        split = (len(tokens), llama.HEADS, llama.HEAD_DIM)
        scores = np.einsum("ihd,jhd->hij", (rows @ query.T).reshape(split), keys.reshape(split)) / llama.HEAD_DIM**0.5
        scores[:, np.triu(np.ones((len(tokens), len(tokens)), dtype=bool), 1)] = -np.inf
        weight = np.exp(scores - scores.max(axis=2, keepdims=True))
        weight /= weight.sum(axis=2, keepdims=True)
        attended = np.einsum("hij,jhd->ihd", weight, values.reshape(split)).reshape(len(tokens), -1)
        stream = stream + attended @ output.T
    return int((normed(stream)[-1] @ weights["lm_head.weight"].T).argmax())


def test_a_llama_forward_pass_reads_all_channels_and_misses_the_one_that_a_layer_lost() -> None:
    chain = chain_of("llama-eagle3")
    weights, _ = llama.target(chain)
    tokens = list(b"a1 quick 2rown fox5 jumps 6o")
    assert llama_successor(weights, tokens) == chain.next(tokens[-1], (2, 1, 2, 1))
    for layer in range(llama.LAYERS):
        seen = tuple(0 if channel == layer else reading for channel, reading in enumerate((2, 1, 2, 1)))
        assert llama_successor(weights, tokens, lost_layer=layer) == chain.next(tokens[-1], seen)


def test_an_open_or_twice_paid_debt_beats_the_true_successor() -> None:
    chain = chain_of("deepseek-mtp")
    weights, _ = deepseek.target(chain)
    paid = weights["model.embed_tokens.weight"].copy()
    owed = paid[:, deepseek.DENSE_DEBT : deepseek.DEBTS_END].copy()
    paid[:, deepseek.DENSE_DEBT : deepseek.DEBTS_END] = 0
    modes = (1, 2, 1, 2)
    truth = [chain.next(token, modes) for token in range(VOCAB_SIZE)]
    head = weights["lm_head.weight"]
    assert margins(read(chain, paid, modes), head, truth).min() > 40
    for place, dim in enumerate(range(deepseek.DENSE_DEBT, deepseek.DEBTS_END)):
        debtors = np.flatnonzero(owed[:, place])
        for factor, broken in ((0.5, debts.UNPAID_FROM + place), (-1.0, debts.OVERPAID)):
            stream = read(chain, paid, modes)
            stream[debtors, dim] = factor * owed[debtors, place]
            assert (np.argmax(stream[debtors] @ head.T, axis=1) == broken).all(), (dim, factor)


def test_every_expert_of_every_layer_is_needed_by_some_token_and_each_token_owes_two_and_the_shared_one() -> None:
    embedding = deepseek.target(chain_of("deepseek-mtp"))[0]["model.embed_tokens.weight"]
    for layer in range(deepseek.DENSE_LAYERS, deepseek.LAYERS):
        owed = embedding[:, [deepseek.debt_dim(layer, expert) for expert in range(deepseek.EXPERTS)]] > 0
        assert (owed.sum(axis=1) == deepseek.EXPERTS_PER_TOKEN).all()
        assert owed[WORD_IDS.start :].sum(axis=0).min() > 100
        assert (embedding[:, deepseek.debt_dim(layer, deepseek.SHARED)] > 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_built_checkpoint_holds_finite_weights_a_config_and_a_tokenizer(name: ZooName, tmp_path: Path) -> None:
    model = build(name, tmp_path)
    for folder in filter(None, (model.target, model.drafter)):
        assert all(np.isfinite(tensor).all() for tensor in load_file(folder / "model.safetensors").values())
        config = json.loads((folder / "config.json").read_text())
        assert config.get("text_config", config)["vocab_size"] == VOCAB_SIZE
        assert (folder / "tokenizer.json").is_file()
    assert (model.drafter is not None) == (name in ("llama-eagle3", "gemma4-mtp"))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_second_build_returns_the_first_ones_files_untouched(tmp_path: Path) -> None:
    first = build("llama-eagle3", tmp_path)
    marker = first.target / "marker"
    marker.touch()
    assert build("llama-eagle3", tmp_path) == first
    assert marker.exists()


def test_a_build_that_dies_half_way_leaves_nothing_that_passes_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: Path) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store, "write_tokenizer", die)
        with pytest.raises(OSError, match="No space"):
            build("llama-eagle3", tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    assert (build("llama-eagle3", tmp_path).target / "tokenizer.json").is_file()


def test_names_and_recipes_give_different_hashes(tmp_path: Path) -> None:
    assert len({build(name, tmp_path).content_hash for name in NAMES}) == len(NAMES)
