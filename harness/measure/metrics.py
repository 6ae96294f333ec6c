"""A /metrics page as typed samples, and look-ups that never turn a missing series into 0."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

import httpx
from prometheus_client.parser import text_string_to_metric_families

from harness.errors import EngineFailed
from harness.facts import Sample, Snapshot

PAGE_LIMIT_BYTES = 32 * 1024 * 1024
ENGINE = "engine"


class MissingMetric(EngineFailed):
    """The page answers but does not hold the series: an engine that counts nothing proves nothing."""


class UnreadablePage(EngineFailed):
    """No page, or a page that is not in the Prometheus text format."""


class Page(Protocol):
    """Anything with samples: a `Snapshot`, or the `harness.measure.delta.Delta` of two."""

    @property
    def url(self) -> str: ...
    @property
    def samples(self) -> tuple[Sample, ...]: ...


def parse_page(text: str, url: str, taken_at_s: float) -> Snapshot:
    """The samples of one page under the exact names that the page shows.

    Raises `UnreadablePage` naming ``url`` when the text is not in the Prometheus format.
    """
    # With its "# TYPE" lines the parser renames counters (`_total` cut off the family, added to samples that lack it);
    # without them every sample keeps its own name, and `x_created` can never stand in for `x_total`.
    bare = "".join(f"{line}\n" for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    try:
        samples = tuple(
            Sample(name=sample.name, labels=dict(sample.labels), value=float(sample.value))
            for family in text_string_to_metric_families(bare)
            for sample in family.samples
        )
    except (ValueError, IndexError, KeyError) as error:
        raise UnreadablePage(f"{url} is not a metrics page in the Prometheus text format: {error}") from error
    return Snapshot(url=url, taken_at_s=taken_at_s, samples=samples)


def fetch(url: str, timeout_s: float = 10.0) -> Snapshot:
    """One page over HTTP, whole within ``timeout_s``. Raises `UnreadablePage` naming ``url`` when it cannot be had."""
    until_s = time.monotonic() + timeout_s
    # trust_env off: a proxy from the environment must not stand between the harness and its own loopback servers.
    try:
        with (
            httpx.Client(trust_env=False, timeout=timeout_s) as client,
            client.stream("GET", url) as response,
        ):
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > PAGE_LIMIT_BYTES:
                    raise UnreadablePage(f"{url} sent more than {PAGE_LIMIT_BYTES} bytes")
                # httpx bounds each read, not the page: a byte now and then must not hold the run for ever.
                if time.monotonic() > until_s:
                    raise UnreadablePage(f"{url} did not send its whole page within {timeout_s:g} s")
            status = response.status_code
    except httpx.HTTPError as error:
        raise UnreadablePage(f"{url} did not answer: {type(error).__name__} {error}") from error
    if status != httpx.codes.OK:
        raise UnreadablePage(f"{url} answered {status}: {body[:200].decode(errors='replace')}")
    return parse_page(body.decode(errors="replace"), url, time.monotonic())


def has(page: Page, name: str) -> bool:
    """Whether the page holds at least one sample called exactly ``name``."""
    return any(sample.name == name for sample in page.samples)


def series(page: Page, name: str, labels: Mapping[str, str] | None = None) -> tuple[Sample, ...]:
    """Every sample called exactly ``name`` whose labels include ``labels``; at least one, or `MissingMetric`."""
    wanted = (labels or {}).items()
    found = tuple(s for s in page.samples if s.name == name and wanted <= s.labels.items())
    if not found:
        shown = "{" + ", ".join(f'{key}="{value}"' for key, value in wanted) + "}" if labels else ""
        raise MissingMetric(
            f"{page.url} does not show {name}{shown}: either the engine renamed it or the feature is off; "
            f"look at the page with curl and at the server's log"
        )
    return found


def total(page: Page, name: str, labels: Mapping[str, str] | None = None) -> float:
    """Sum over all engines and remaining labels; `MissingMetric` when there is no such series."""
    return sum(sample.value for sample in series(page, name, labels))


def by_label(page: Page, name: str, label: str, labels: Mapping[str, str] | None = None) -> dict[str, float]:
    """Sums by the value of ``label`` (``engine``, ``position``, ``source``), in the order of the page.

    `MissingMetric` when there is no such series, or when one of them does not carry the label.
    """
    sums: dict[str, float] = {}
    for sample in series(page, name, labels):
        if label not in sample.labels:
            raise MissingMetric(f"{page.url} shows {name} without the label {label!r}")
        sums[sample.labels[label]] = sums.get(sample.labels[label], 0.0) + sample.value
    return sums
