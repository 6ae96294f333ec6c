"""What was counted between two pages of one server, series by series."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from harness.errors import EngineFailed
from harness.facts import Sample, Snapshot

_CUMULATIVE = ("_total", "_count", "_sum", "_bucket")
# The engine's and the router's own series. Those of the Python runtime and of the HTTP layer come and go with threads
# and URLs, and say nothing about speculation.
_OWN = ("vllm:", "vllm_router_")

SeriesKey = tuple[str, tuple[tuple[str, str], ...]]


class CounterReset(EngineFailed):
    """A counter went backwards or vanished: the process behind the page is not the one that was measured first."""


@dataclass(frozen=True)
class Delta:
    """Differences of the cumulative series; the same look-ups work on it as on a page.

    ``appeared``: series that only the later page shows, counted from 0 (a labelled series is born with its first event
    in some versions, e.g. of the NIXL connector).
    """

    url: str
    samples: tuple[Sample, ...]
    appeared: tuple[str, ...]
    duration_s: float


def delta(before: Snapshot, after: Snapshot) -> Delta:
    """Per-series differences. Raises `CounterReset` naming URL and series."""
    first = _cumulative(before)
    last = _cumulative(after)
    _check_births(before, after)
    for key in first.keys() - last.keys():
        raise CounterReset(
            f"{after.url} no longer shows {_show(key)}: the server was replaced in the middle of the run"
        )
    samples: list[Sample] = []
    appeared: list[str] = []
    for key, sample in last.items():
        start = first.get(key)
        if start is None:
            appeared.append(_show(key))
        elif sample.value < start.value:
            raise CounterReset(
                f"{after.url}: {_show(key)} went from {start.value:g} back to {sample.value:g}: "
                f"the server restarted in the middle of the run"
            )
        value = sample.value - (start.value if start else 0.0)
        samples.append(Sample(name=sample.name, labels=sample.labels, value=value))
    return Delta(after.url, tuple(samples), tuple(appeared), after.taken_at_s - before.taken_at_s)


def whole_run(windows: tuple[Snapshot, ...]) -> Delta:
    """First page against last, with every page in between checked for resets."""
    if len(windows) < 2:
        where = windows[0].url if windows else "the server"
        raise EngineFailed(f"{where} was read {len(windows)} times; a delta needs a page before and one after the run")
    for earlier, later in pairwise(windows):
        delta(earlier, later)
    return delta(windows[0], windows[-1])


def _cumulative(snapshot: Snapshot) -> dict[SeriesKey, Sample]:
    return {
        _key(sample): sample
        for sample in snapshot.samples
        if sample.name.startswith(_OWN) and sample.name.endswith(_CUMULATIVE)
    }


def _check_births(before: Snapshot, after: Snapshot) -> None:
    """A restarted server that has already overtaken its old counts shows only in its `_created` times."""
    born = {_key(s): s.value for s in before.samples if s.name.startswith(_OWN) and s.name.endswith("_created")}
    for sample in after.samples:
        key = _key(sample)
        if key in born and born[key] != sample.value:
            raise CounterReset(f"{after.url}: {_show(key)} changed: the server restarted in the middle of the run")


def _key(sample: Sample) -> SeriesKey:
    return sample.name, tuple(sorted(sample.labels.items()))


def _show(key: SeriesKey) -> str:
    name, labels = key
    return name + "{" + ", ".join(f'{label}="{value}"' for label, value in labels) + "}"
