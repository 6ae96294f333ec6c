"""What the router counted over the run, from its own metrics port."""

from __future__ import annotations

from harness.facts import RouterFacts, Snapshot
from harness.measure.delta import delta
from harness.measure.metrics import Page, by_label, has, total

_PREFILL = "vllm_router_pd_prefill_requests_total"
_DECODE = "vllm_router_pd_decode_requests_total"
# Born with the first error: absent means none.
_ERRORS = (
    "vllm_router_pd_prefill_errors_total",
    "vllm_router_pd_decode_errors_total",
    "vllm_router_pd_stream_errors_total",
)


def router_facts(before: Snapshot, after: Snapshot) -> RouterFacts:
    """Requests served and failed between two pages, per backend URL. `MissingMetric` when the router counts nothing.

    ``before`` is taken after the smoke request: the router shows a series only from its first event on.
    """
    run = delta(before, after)
    prefill, decode = _per_worker(run, _PREFILL), _per_worker(run, _DECODE)
    return RouterFacts(
        mode="vllm-router",
        served=round(total(run, _DECODE)),
        failed=sum(round(total(run, name)) for name in _ERRORS if has(run, name)),
        per_worker={url: prefill.get(url, 0) + decode.get(url, 0) for url in (*prefill, *decode)},
        prefill_hops=prefill,
        decode_hops=decode,
    )


def _per_worker(page: Page, name: str) -> dict[str, int]:
    return {worker: round(count) for worker, count in by_label(page, name, "worker").items()}
