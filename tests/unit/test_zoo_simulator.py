"""The simulator against a second one that works token by token, and against identities that any engine obeys."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.deployments import ZooName
from harness.zoo import AmbiguousPrompt, Chain, chain_of, simulate
from harness.zoo.chain import CHANNELS, MODE_TOKENS, POISON

NAMES: tuple[ZooName, ...] = ("llama-eagle3", "qwen35-mtp", "deepseek-mtp", "gemma4-mtp", "mimo-mtp", "jamba")
# With windows that every text outgrows.
NARROW = dataclasses.replace(chain_of("gemma4-mtp"), windows=(3, 0, 17, 0))
CHAINS: dict[str, Chain] = {**{name: chain_of(name) for name in NAMES}, "narrow": NARROW}
PLAIN_BYTES = st.sampled_from([value for value in range(256) if value not in MODE_TOKENS])


class Machine:
    """A request as an engine lives it: state cells updated by every token, drafts proposed, verified, rolled back."""

    def __init__(self, chain: Chain, prompt: Sequence[int]) -> None:
        self.chain = chain
        self.cells = [0] * CHANNELS
        self.pipes: list[list[int]] = [[0] * delay for delay in chain.delays]
        self.drafter_cells = [0] * CHANNELS
        self.since = [0] * CHANNELS
        self.text: list[int] = []
        for place, token in enumerate(prompt):
            self.absorb(token, seen_by_drafter=place >= chain.drafter_from)
        self.last = prompt[-1]

    def absorb(self, token: int, *, seen_by_drafter: bool) -> None:
        for channel in range(CHANNELS):
            there, reading = MODE_TOKENS.get(token, (-1, 0))
            arriving = reading if there == channel else 0
            if arriving and seen_by_drafter:
                self.drafter_cells[channel] = arriving
            self.pipes[channel].append(arriving)
            leaving = self.pipes[channel].pop(0)
            if arriving:
                self.cells[channel] = 0
            if leaving:
                self.cells[channel] = leaving
            self.since[channel] = 0 if arriving else self.since[channel] + 1

    def within(self, cells: list[int], ago: int) -> tuple[int, ...]:
        """``cells`` as they looked ``ago`` tokens before the last one."""
        windows = self.chain.windows
        gone = [0 < windows[c] <= self.since[c] - ago for c in range(CHANNELS)]
        return tuple(0 if gone[c] else cells[c] for c in range(CHANNELS))

    def emit(self) -> None:
        token = self.chain.next(self.last, self.within(self.cells, 0))
        self.text.append(token)
        self.last = token
        self.absorb(token, seen_by_drafter=True)

    def propose(self, k: int) -> list[int]:
        # The last token is not in the target's cache yet.
        drafts, token, modes = [], self.last, self.within(self.drafter_cells, 1)
        for _ in range(k):
            token = self.chain.draft(token, modes)
            drafts.append(token)
        return drafts

    def step(self, k: int) -> list[bool]:
        """One verify step: which draft positions were accepted."""
        accepted = []
        for draft in self.propose(k):
            self.emit()
            accepted.append(draft == self.text[-1])
            if not accepted[-1]:
                return accepted
        self.emit()
        return accepted


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    tokens = draw(st.lists(PLAIN_BYTES, min_size=1, max_size=40))
    for channel in draw(st.sets(st.integers(0, CHANNELS - 1))):
        token = draw(st.sampled_from([t for t, (there, _) in MODE_TOKENS.items() if there == channel]))
        for _ in range(draw(st.integers(1, 2))):
            tokens.insert(draw(st.integers(0, len(tokens))), token)
    return tuple(tokens)


requests = {"prompt": prompts(), "name": st.sampled_from(sorted(CHAINS)), "max_tokens": st.integers(1, 60)}


def equals_a_machine(chain: Chain, prompt: Sequence[int], max_tokens: int, k: int) -> None:
    machine = Machine(chain, prompt)
    machine.emit()
    drafts, per_position = 0, [0] * k
    while len(machine.text) < max_tokens:
        for position, accepted in enumerate(machine.step(k)):
            per_position[position] += accepted
        drafts += k > 0
    simulated = simulate(chain, prompt, max_tokens, k)
    assert simulated.token_ids == tuple(machine.text[:max_tokens])
    assert (simulated.drafts, simulated.per_position) == (drafts, tuple(per_position))


@given(**requests, k=st.integers(0, 5))
def test_it_equals_a_machine_that_lives_each_step(prompt: tuple[int, ...], name: str, max_tokens: int, k: int) -> None:
    equals_a_machine(CHAINS[name], prompt, max_tokens, k)


@pytest.mark.parametrize("window", range(1, 60, 4))
def test_it_equals_that_machine_wherever_in_a_text_the_mode_token_leaves_the_window(window: int) -> None:
    for wider in range(4):
        chain = dataclasses.replace(NARROW, windows=(window, 0, window + wider, 0))
        for ending in b"acegikmoq":
            equals_a_machine(chain, b"4 is 1 2 " + bytes([ending]), 60, 3)


@given(**requests, k=st.integers(1, 5))
def test_the_counts_obey_the_identities_of_speculation(
    prompt: tuple[int, ...], name: str, max_tokens: int, k: int
) -> None:
    one = simulate(CHAINS[name], prompt, max_tokens, k)
    assert len(one.token_ids) == max_tokens
    assert one.accepted == sum(one.per_position)
    assert list(one.per_position) == sorted(one.per_position, reverse=True)
    assert one.drafts >= max(one.per_position)
    assert one.draft_tokens == k * one.drafts
    # Every step but the first emits its accepted drafts and one token more; only the last step may emit too many.
    assert max_tokens <= 1 + one.drafts + one.accepted <= max_tokens + k
    assert (max_tokens - 1 + k) // (k + 1) <= one.drafts <= max_tokens - 1


@given(**requests, k=st.integers(1, 5))
def test_a_decode_server_counts_one_rejected_draft_more_per_request(
    prompt: tuple[int, ...], name: str, max_tokens: int, k: int
) -> None:
    prompt = (*prompt, ord("x"))
    alone = simulate(CHAINS[name], prompt, max_tokens, k)
    pair = simulate(CHAINS[name], prompt, max_tokens, k, disaggregated=True)
    assert pair.drafts == alone.drafts + 1
    assert pair.draft_tokens == alone.draft_tokens + k
    assert (pair.token_ids, pair.per_position) == (alone.token_ids, alone.per_position)


def test_the_drafter_of_a_recurrent_decode_server_has_not_seen_the_last_prompt_token() -> None:
    chain, prompt = CHAINS["qwen35-mtp"], b"prompt of 0, 2, 5 and 7"
    alone, pair = (simulate(chain, prompt, 60, 1, disaggregated=disaggregated) for disaggregated in (False, True))
    assert pair.accepted < alone.accepted
    assert pair.token_ids == alone.token_ids


@pytest.mark.parametrize("name", [name for name in NAMES if CHAINS[name].drafter_from])
def test_the_drafter_misses_a_mode_token_before_the_first_position_it_embeds(name: ZooName) -> None:
    chain = CHAINS[name]
    seen = simulate(chain, b"a" * chain.drafter_from + b"0bcde", 60, 3)
    missed = simulate(chain, b"a" * (chain.drafter_from - 1) + b"0abcde", 60, 3)
    assert seen.token_ids == missed.token_ids
    assert seen.accepted > missed.accepted


@given(**requests, k=st.integers(1, 5), room=st.integers(0, 8))
def test_near_the_longest_length_steps_verify_only_the_drafts_that_fit(
    prompt: tuple[int, ...], name: str, max_tokens: int, k: int, room: int
) -> None:
    free = simulate(CHAINS[name], prompt, max_tokens, k)
    tight = simulate(CHAINS[name], prompt, max_tokens, k, max_model_len=len(prompt) + max_tokens + room)
    assert tight.token_ids == free.token_ids
    assert tight.accepted <= max(0, max_tokens + room - 2)
    assert tight.draft_tokens <= k * tight.drafts
    if room >= k:
        assert tight == free


@given(**requests, k=st.integers(0, 5))
def test_speculation_never_changes_the_text(prompt: tuple[int, ...], name: str, max_tokens: int, k: int) -> None:
    chain = CHAINS[name]
    assert simulate(chain, prompt, max_tokens, k).token_ids == simulate(chain, prompt, max_tokens, 0).token_ids


@given(**requests)
def test_a_text_holds_neither_special_nor_poison_tokens(prompt: tuple[int, ...], name: str, max_tokens: int) -> None:
    assert min(simulate(CHAINS[name], prompt, max_tokens, 1).token_ids) > POISON


def test_without_speculation_nothing_is_counted_on_either_side() -> None:
    for disaggregated in (False, True):
        one = simulate(CHAINS["llama-eagle3"], b"prompt", 9, 0, disaggregated=disaggregated)
        assert (one.drafts, one.draft_tokens, one.accepted, one.per_position) == (0, 0, 0, ())


def test_one_token_needs_no_draft_alone_and_one_behind_a_prefill() -> None:
    assert simulate(CHAINS["qwen35-mtp"], b"prompt", 1, 1).drafts == 0
    assert simulate(CHAINS["qwen35-mtp"], b"prompt", 1, 1, disaggregated=True).drafts == 1


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [(b"0 and 1", "both mode tokens of channel 0"), (b"2, 2, 2", "3 mode tokens of channel 1"), (b"06", "nothing but")],
)
def test_a_prompt_that_no_table_covers_is_refused_with_its_reason(prompt: bytes, reason: str) -> None:
    with pytest.raises(AmbiguousPrompt, match=reason):
        simulate(CHAINS["llama-eagle3"], prompt, 4, 3)


@pytest.mark.parametrize(("prompt", "max_tokens", "k"), [(b"", 1, 1), (b"x", 0, 1), (b"x", 1, -1)])
def test_a_request_that_no_engine_takes_is_refused(prompt: bytes, max_tokens: int, k: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        simulate(CHAINS["llama-eagle3"], prompt, max_tokens, k)
