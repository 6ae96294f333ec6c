"""The /metrics pages of servers that are driven together, and what their logs said by the time of each page."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from harness.facts import Sample, Snapshot
from harness.measure.metrics import fetch, has, total
from harness.measure.rearrangements import count_rearrangements
from harness.plan.types import Part, ServerPlan

_SETTLE_POLL_S = 0.1
# A log can have gigabytes, and all of them in one line.
_LINE_CHARS = 65536

_FINISHED = "vllm:request_success_total"
_BALANCED = "--enable-eplb"


class Pages:
    """The /metrics pages of a part's servers, kept in order and written to metrics/."""

    def __init__(self, part: Part, run_dir: Path) -> None:
        self._part = part
        self._logs = run_dir / "logs"
        self._folder = run_dir / "metrics"
        self._folder.mkdir(exist_ok=True)
        self._taken: dict[str, list[Snapshot]] = {server.name: [] for server in part.servers}
        self._rearranged: dict[str, list[int]] = {
            server.name: [] for server in part.servers if _BALANCED in server.argv
        }

    def take(self) -> None:
        for server in self._part.servers:
            self._keep(server, fetch(server.metrics_url))

    def of(self, server: ServerPlan) -> tuple[Snapshot, ...]:
        return tuple(self._taken[server.name])

    def rearranged(self, server: ServerPlan) -> tuple[int, ...] | None:
        """Rearrangements of experts by the time of each page; None for a server without load balancing."""
        counts = self._rearranged.get(server.name)
        return None if counts is None else tuple(counts)

    def router(self) -> Snapshot | None:
        """The router's own page; None without a router."""
        router = self._part.router
        return None if router is None else fetch(f"http://{router.host}:{router.metrics_port}/metrics")

    def settle(self, answered: int, budget_s: float, alive: Callable[[], None]) -> None:
        """Take the closing page of each server once it counts every answer, or after ``budget_s`` as it then is."""
        for server in self._part.servers:
            first = self._taken[server.name][0]
            deadline_s = time.monotonic() + budget_s
            page = fetch(server.metrics_url)
            while _finished(page) - _finished(first) < answered and time.monotonic() < deadline_s:
                alive()
                time.sleep(_SETTLE_POLL_S)
                page = fetch(server.metrics_url)
            self._keep(server, page)

    def _keep(self, server: ServerPlan, page: Snapshot) -> None:
        taken = self._taken[server.name]
        text = "".join(f"{_line(sample)}\n" for sample in page.samples)
        (self._folder / f"{server.name}-{len(taken)}.prom").write_text(text, "utf-8")
        if (counts := self._rearranged.get(server.name)) is not None:
            with (self._logs / server.log_name).open(encoding="utf-8", errors="replace") as log:
                lines = iter(lambda: log.readline(_LINE_CHARS), "")
                counts.append(sum(map(count_rearrangements, lines)))
        taken.append(page.model_copy(update={"samples": tuple(s for s in page.samples if _worth_keeping(s))}))


def _finished(page: Snapshot) -> float:
    return total(page, _FINISHED) if has(page, _FINISHED) else 0.0


def _worth_keeping(sample: Sample) -> bool:
    # Histogram buckets are nine tenths of a page and no check reads them; the whole page is in metrics/.
    return sample.name.startswith("vllm:") and not sample.name.endswith("_bucket")


def _line(sample: Sample) -> str:
    labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
    return f"{sample.name}{{{labels}}} {sample.value!r}"
