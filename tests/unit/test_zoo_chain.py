from __future__ import annotations

import itertools

import pytest

from harness.zoo.chain import (
    CHANNELS,
    CLASSES,
    MODE_TOKENS,
    NO_DELAY,
    POISON,
    READINGS,
    Chain,
    build_chain,
    read_modes,
    target_modes,
)
from harness.zoo.tokens import WORD_IDS

ALL_MODES = tuple(itertools.product(range(READINGS), repeat=CHANNELS))


@pytest.fixture(scope="module")
def chain() -> Chain:
    return build_chain(3, shared_head=False)


def test_the_same_seed_draws_the_same_tables_and_another_one_others(chain: Chain) -> None:
    assert build_chain(3, shared_head=False) == chain
    assert build_chain(4, shared_head=False) != chain


def test_each_combination_of_readings_leads_every_reader_to_another_token(chain: Chain) -> None:
    reader = next(token for token, reader in enumerate(chain.reader_class) if reader >= 0)
    assert len({chain.next(reader, modes) for modes in ALL_MODES}) == len(ALL_MODES)


def test_a_plain_token_ignores_the_readings(chain: Chain) -> None:
    plain = next(token for token, reader in enumerate(chain.reader_class) if reader < 0)
    assert len({chain.next(plain, modes) for modes in ALL_MODES}) == 1


@pytest.mark.parametrize("modes", ALL_MODES[::7])
def test_every_text_passes_readers_of_every_class_before_it_repeats(chain: Chain, modes: tuple[int, ...]) -> None:
    token, passed = WORD_IDS[0], []
    for _ in range(3 * len(WORD_IDS) // CLASSES):
        token = chain.next(token, modes)
        passed.append(chain.reader_class[token])
    assert {reader for reader in passed if reader >= 0} == set(range(CLASSES))


def test_the_drafter_errs_only_where_the_table_says_so(chain: Chain) -> None:
    for token in WORD_IDS:
        for modes in ALL_MODES[::13]:
            assert (chain.draft(token, modes) != chain.next(token, modes)) == (token in chain.wrong)


def test_a_drafter_with_the_targets_head_errs_with_one_token_that_no_chain_emits() -> None:
    shared = build_chain(5, shared_head=True)
    assert {shared.wrong_guess[token] for token in shared.wrong} == {POISON}
    emitted = {*shared.successor, *itertools.chain.from_iterable(shared.landing)}
    assert emitted == set(WORD_IDS)


def test_a_prompt_reads_absent_where_it_holds_no_mode_token() -> None:
    assert read_modes(b"") == (0, 0, 0, 0)
    assert read_modes(b"a1b2c6") == (2, 1, 0, 1)


def test_attention_sees_a_mode_token_at_its_own_position_and_not_before() -> None:
    seen = [target_modes(b"ab1cd", position, (0, 0, 0, 0))[0] for position in range(8)]
    assert seen == [0, 0, 2, 2, 2, 2, 2, 2]


def test_attention_over_a_window_forgets_a_mode_token_that_has_left_it() -> None:
    seen = [target_modes(b"ab1cd", position, NO_DELAY, (3, 0, 0, 0))[0] for position in range(8)]
    assert seen == [0, 0, 2, 2, 2, 0, 0, 0]


def test_a_recurrent_channel_writes_after_its_delay_also_past_the_prompt() -> None:
    seen = [target_modes(b"ab1", position, (3, 0, 0, 0))[0] for position in range(8)]
    assert seen == [0, 0, 0, 0, 0, 2, 2, 2]


def test_a_repeated_mode_token_erases_a_recurrent_channel_until_it_arrives() -> None:
    seen = [target_modes(b"1abcd1ef", position, (3, 0, 0, 0))[0] for position in range(10)]
    assert seen == [0, 0, 0, 2, 2, 0, 0, 0, 2, 2]


def test_mode_tokens_are_two_digits_for_each_channel() -> None:
    assert sorted(MODE_TOKENS) == list(b"01234567")
