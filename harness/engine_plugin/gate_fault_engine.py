"""Faults of the engine as a whole: wrong tokens, and engines that stop."""

from __future__ import annotations

import os
import threading

from gate_replace import replace_method

_WORDS_FROM, _WORDS = 260, 729


def _scheduler():
    from vllm.v1.core.sched.scheduler import Scheduler

    return Scheduler


def diverged(argument: str) -> None:
    """The n-th output token (from 0) is another one; what is computed after it is not touched."""
    place = int(argument)

    def make(update):
        def wrong(self, request, new_token_ids, *args, **kwargs):
            at = place - request.num_output_tokens
            if 0 <= at < len(new_token_ids):
                new_token_ids = list(new_token_ids)
                new_token_ids[at] = _WORDS_FROM + (new_token_ids[at] - _WORDS_FROM + 1) % _WORDS
            return update(self, request, new_token_ids, *args, **kwargs)

        return wrong

    replace_method(_scheduler(), "_update_request_with_output", make)


def unchecked(argument: str) -> None:
    """The rejection sampler accepts every draft token, right or wrong."""
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    def make(forward):
        def accept_all(self, metadata, *args, **kwargs):
            output = forward(self, metadata, *args, **kwargs)
            drafts = metadata.draft_token_ids.tolist()
            for row, count in enumerate(metadata.num_draft_tokens):
                own, drafts = drafts[:count], drafts[count:]
                if count and min(own) >= 0:
                    for place, token in enumerate(own):
                        if output.sampled_token_ids[row, place] == -1:
                            output.sampled_token_ids[row, place] = token
                    if output.sampled_token_ids[row, count] == -1:
                        output.sampled_token_ids[row, count] = own[-1]
            return output

        return accept_all

    replace_method(RejectionSampler, "forward", make)


def _after_requests(n: int, act) -> None:
    """``act()`` instead of the next step once n requests have ended in this engine."""
    ended = 0

    def make_free(free):
        def counted(self, request, *args, **kwargs):
            nonlocal ended
            ended += 1
            return free(self, request, *args, **kwargs)

        return counted

    def make_schedule(schedule):
        def stopped(self, *args, **kwargs):
            if ended >= n and self.has_unfinished_requests():
                act()
            return schedule(self, *args, **kwargs)

        return stopped

    replace_method(_scheduler(), "_free_request", make_free)
    replace_method(_scheduler(), "schedule", make_schedule)


def hung(argument: str) -> None:
    """The engine stops stepping after n requests; the API server goes on answering /health and /metrics."""
    _after_requests(int(argument), threading.Event().wait)


def died(argument: str) -> None:
    """The engine process ends after n requests."""
    _after_requests(int(argument), lambda: os._exit(13))


FAULTS = {
    "output-diverged": diverged,
    "output-unchecked": unchecked,
    "engine-hung": hung,
    "engine-died": died,
}
