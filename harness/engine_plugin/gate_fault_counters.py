"""Faults of what is counted, and of the page that shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from gate_replace import EveryNth, replace_method


def _prom():
    from vllm.v1.spec_decode.metrics import SpecDecodingProm

    return SpecDecodingProm


def _recount(change: Callable) -> None:
    """``change(stats)`` returns the statistics of one step as they are counted instead."""

    def make(observe):
        def recounted(self, spec_decoding_stats, engine_idx=0):
            return observe(self, change(spec_decoding_stats), engine_idx)

        return recounted

    replace_method(_prom(), "observe", make)


def _with_positions(stats, positions):
    return dataclasses.replace(stats, num_accepted_tokens_per_pos=list(positions))


def positions_swapped(argument: str) -> None:
    """First and last draft position are counted under each other's label."""

    def change(stats):
        first, *middle, last = stats.num_accepted_tokens_per_pos
        return _with_positions(stats, [last, *middle, first])

    _recount(change)


def positions_shifted(argument: str) -> None:
    """Each n-th step's first position is counted under the second: the sum stays, and so does the order."""
    chosen = EveryNth(int(argument))

    def change(stats):
        first, second, *rest = stats.num_accepted_tokens_per_pos
        if chosen() and first > second:
            return _with_positions(stats, [first - 1, second + 1, *rest])
        return stats

    _recount(change)


def positions_short(argument: str) -> None:
    """Each n-th step is not counted by position."""
    chosen = EveryNth(int(argument))
    _recount(lambda stats: _with_positions(stats, [0] * len(stats.num_accepted_tokens_per_pos)) if chosen() else stats)


def accepted_doubled(argument: str) -> None:
    """Accepted tokens are counted twice, in total and by position."""

    def change(stats):
        doubled = dataclasses.replace(stats, num_accepted_tokens=2 * stats.num_accepted_tokens)
        return _with_positions(doubled, [2 * count for count in stats.num_accepted_tokens_per_pos])

    _recount(change)


def draft_tokens_short(argument: str) -> None:
    """Each n-th step's last draft token is not counted as drafted."""
    chosen = EveryNth(int(argument))

    def change(stats):
        if chosen() and stats.num_draft_tokens > stats.num_accepted_tokens:
            return dataclasses.replace(stats, num_draft_tokens=stats.num_draft_tokens - 1)
        return stats

    _recount(change)


def phantom_engine(argument: str) -> None:
    """Half of the steps are counted under a second engine that does not exist."""
    other = EveryNth(2)

    def make_init(init):
        def two_engines(self, speculative_config, labelnames, per_engine_labelvalues, *args, **kwargs):
            (values,) = per_engine_labelvalues.values()
            second = [("1" if label == "engine" else value) for label, value in zip(labelnames, values, strict=True)]
            return init(self, speculative_config, labelnames, {0: values, 1: second}, *args, **kwargs)

        return two_engines

    def make_observe(observe):
        def split(self, spec_decoding_stats, engine_idx=0):
            return observe(self, spec_decoding_stats, int(other()))

        return split

    replace_method(_prom(), "__init__", make_init)
    replace_method(_prom(), "observe", make_observe)


def engine_hidden(argument: str) -> None:
    """Engine n of a data-parallel server does not count its speculation."""
    absent = int(argument)

    def make_init(init):
        def one_less(self, speculative_config, labelnames, per_engine_labelvalues, *args, **kwargs):
            shown = {engine: values for engine, values in per_engine_labelvalues.items() if engine != absent}
            if len(shown) == len(per_engine_labelvalues):
                raise LookupError(f"no engine {absent} among {sorted(per_engine_labelvalues)}")
            return init(self, speculative_config, labelnames, shown, *args, **kwargs)

        return one_less

    def make_observe(observe):
        def silent(self, spec_decoding_stats, engine_idx=0):
            if engine_idx != absent:
                observe(self, spec_decoding_stats, engine_idx)

        return silent

    replace_method(_prom(), "__init__", make_init)
    replace_method(_prom(), "observe", make_observe)


def reset(argument: str) -> None:
    """The counters of speculation start again from 0 after n steps, as after a restart that nobody saw."""
    after, seen = int(argument), 0

    def make(observe):
        def forgetful(self, spec_decoding_stats, engine_idx=0):
            nonlocal seen
            seen += 1
            if seen == after:
                counters = [
                    self.counter_spec_decode_num_drafts[engine_idx],
                    self.counter_spec_decode_num_draft_tokens[engine_idx],
                    self.counter_spec_decode_num_accepted_tokens[engine_idx],
                    *self.counter_spec_decode_num_accepted_tokens_per_pos[engine_idx],
                ]
                for counter in counters:
                    counter.reset()
            return observe(self, spec_decoding_stats, engine_idx)

        return forgetful

    replace_method(_prom(), "observe", make)


def _make_counters(owner, rename: Callable) -> None:
    """``rename(name)``: the name under which ``owner`` shows a counter, or None to keep it off the page."""
    import prometheus_client

    def counter(name: str, **options):
        shown = rename(name)
        if shown is None:
            return prometheus_client.Counter(name, registry=prometheus_client.CollectorRegistry(), **options)
        return prometheus_client.Counter(shown, **options)

    owner._counter_cls = staticmethod(counter)


def hidden(argument: str) -> None:
    """The counters of speculation are not on the page."""
    _make_counters(_prom(), lambda name: None)


def positions_hidden(argument: str) -> None:
    """The counts by draft position are not on the page."""
    _make_counters(_prom(), lambda name: None if name.endswith("per_pos") else name)


def renamed(argument: str) -> None:
    """The counters of speculation have new names."""
    _make_counters(_prom(), lambda name: name.replace("spec_decode", "speculation"))


def transfer_hidden(argument: str) -> None:
    """The counters of failed and expired transfers are not on the page."""
    import prometheus_client
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlPromMetrics

    def make(init):
        def hiding(self, *args, **kwargs):
            init(self, *args, **kwargs)
            registry = prometheus_client.REGISTRY
            for collector, names in list(registry._collector_to_names.items()):
                if any(name.startswith("vllm:nixl_num_") and name.endswith("_total") for name in names):
                    registry.unregister(collector)

        return hiding

    replace_method(NixlPromMetrics, "__init__", make)


FAULTS = {
    "count-positions-swapped": positions_swapped,
    "count-positions-shifted": positions_shifted,
    "count-positions-short": positions_short,
    "count-accepted-doubled": accepted_doubled,
    "count-draft-tokens-short": draft_tokens_short,
    "count-phantom-engine": phantom_engine,
    "count-reset": reset,
    "metrics-engine-hidden": engine_hidden,
    "metrics-hidden": hidden,
    "metrics-positions-hidden": positions_hidden,
    "metrics-renamed": renamed,
    "metrics-transfer-hidden": transfer_hidden,
}
