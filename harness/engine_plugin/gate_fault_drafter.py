"""Faults of the drafter: guesses spoiled, drafts that are never made."""

from __future__ import annotations

from collections.abc import Callable

from gate_replace import replace_method

# In the vocabulary of the tiny checkpoints and emitted by none of them: a guess that is always rejected.
NEVER_RIGHT = 259


def _spoil(change: Callable) -> None:
    """``change(tokens)`` alters what `propose` returns, [batch, k], in place."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    def make(propose):
        def spoiled(self, *args, **kwargs):
            tokens = propose(self, *args, **kwargs).clone()
            change(tokens)
            return tokens

        return spoiled

    replace_method(SpecDecodeBaseProposer, "propose", make)


def forgets(token: int, per_mille: int) -> bool:
    """Whether the degraded drafter has lost ``token``: a fixed choice, so what a run counts can be computed."""
    return token * 2654435761 % 2**32 < per_mille * 2**32 // 1000


def degraded(argument: str) -> None:
    """The drafter never guesses n of 1000 tokens."""
    per_mille = int(argument)

    def change(tokens) -> None:
        for row, guesses in enumerate(tokens.tolist()):
            for position, token in enumerate(guesses):
                if forgets(token, per_mille):
                    tokens[row, position] = NEVER_RIGHT

    _spoil(change)


def collapsed(argument: str) -> None:
    """Every draft is wrong once n drafts have been made."""
    after, made = int(argument), 0

    def change(tokens) -> None:
        nonlocal made
        made += tokens.shape[0]
        if made > after:
            tokens[:] = NEVER_RIGHT

    _spoil(change)


def positions_lost(argument: str) -> None:
    """Draft positions from n on (counted from 0) are never right: a smaller k that still costs the larger one."""
    first = int(argument)

    def change(tokens) -> None:
        tokens[:, first:] = NEVER_RIGHT

    _spoil(change)


def _thin(keep: Callable, engine: int | None = None) -> None:
    """``keep(tokens)`` decides which draft tokens of a request the scheduler gets to see; of ``engine`` only, if given.

    Under data parallelism each engine has a scheduler of its own, and all of them one environment.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    def make(update):
        def thinned(self, draft_token_ids):
            if engine in (None, self.parallel_config.data_parallel_index):
                draft_token_ids.draft_token_ids = [keep(list(tokens)) for tokens in draft_token_ids.draft_token_ids]
            return update(self, draft_token_ids)

        return thinned

    replace_method(Scheduler, "update_draft_token_ids", make)


def suppressed(argument: str) -> None:
    """No draft reaches the scheduler once n have; 0: none ever does. ``n@engine``: of one engine only."""
    number, _, engine = argument.partition("@")
    after, seen = int(number), 0

    def keep(tokens):
        nonlocal seen
        seen += 1
        return tokens if seen <= after else []

    _thin(keep, int(engine) if engine else None)


def shortened(argument: str) -> None:
    """Only the first n tokens of each draft reach the scheduler: k is smaller than the configuration says."""
    k = int(argument)
    _thin(lambda tokens: tokens[:k])


FAULTS = {
    "draft-degraded": degraded,
    "draft-collapsed": collapsed,
    "draft-positions-lost": positions_lost,
    "draft-suppressed": suppressed,
    "draft-shortened": shortened,
}
