"""Acceptance of draft tokens by pooled counts: sum first, divide once."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import EngineFailed
from harness.measure.metrics import ENGINE, Page, by_label

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True)
class Counts:
    """Drafts, draft tokens, accepted draft tokens, and accepted ones by draft position."""

    drafts: int
    draft_tokens: int
    accepted: int
    per_position: tuple[int, ...]

    @property
    def length(self) -> float | None:
        """Acceptance length, the bonus token included. None without a draft: 1.0 would read as a measurement."""
        return 1 + self.accepted / self.drafts if self.drafts > 0 else None

    @property
    def rate(self) -> float | None:
        """Accepted per draft token, None without one."""
        return self.accepted / self.draft_tokens if self.draft_tokens > 0 else None

    @property
    def position_rates(self) -> tuple[float, ...] | None:
        """Accepted per draft, by draft position; None without a draft."""
        return tuple(count / self.drafts for count in self.per_position) if self.drafts > 0 else None

    @property
    def consistent(self) -> bool:
        """``length == 1 + sum(position_rates)``, in whole numbers so that no tolerance is needed."""
        return self.accepted == sum(self.per_position)

    def without_padding(self, requests: int) -> Counts:
        """These counts as a standalone server would have them.

        A decode engine schedules each request whose KV was loaded with one padded draft (`k` tokens of id -1) that it
        then counts as rejected: R requests add R drafts and k*R draft tokens, and no accepted token.
        """
        k = len(self.per_position)
        return Counts(self.drafts - requests, self.draft_tokens - k * requests, self.accepted, self.per_position)


@dataclass(frozen=True)
class Acceptance:
    """All engines together, and each by its ``engine`` label."""

    pooled: Counts
    engines: dict[str, Counts]


def acceptance(page: Page) -> Acceptance:
    """Counts of one page or delta. `MissingMetric` names the URL and the series that is not there."""
    drafts = _whole(page, DRAFTS)
    draft_tokens = _whole(page, DRAFT_TOKENS)
    accepted = _whole(page, ACCEPTED)
    engines = {
        engine: Counts(
            drafts=drafts[engine],
            draft_tokens=draft_tokens.get(engine, 0),
            accepted=accepted.get(engine, 0),
            per_position=_positions(page, engine),
        )
        for engine in drafts
    }
    return Acceptance(pool(tuple(engines.values())), engines)


def pool(parts: tuple[Counts, ...]) -> Counts:
    """Counts of several engines or windows added up."""
    positions = max((len(part.per_position) for part in parts), default=0)
    return Counts(
        drafts=sum(part.drafts for part in parts),
        draft_tokens=sum(part.draft_tokens for part in parts),
        accepted=sum(part.accepted for part in parts),
        per_position=tuple(
            sum(part.per_position[i] for part in parts if i < len(part.per_position)) for i in range(positions)
        ),
    )


def _whole(page: Page, name: str) -> dict[str, int]:
    return {engine: _integer(page, name, value) for engine, value in by_label(page, name, ENGINE).items()}


def _positions(page: Page, engine: str) -> tuple[int, ...]:
    by_position = by_label(page, PER_POSITION, "position", {ENGINE: engine})
    indices = sorted(int(position) for position in by_position)
    if indices != list(range(len(indices))):
        raise EngineFailed(f"{page.url} shows {PER_POSITION} with a gap in its draft positions: {indices}")
    return tuple(_integer(page, PER_POSITION, by_position[str(i)]) for i in indices)


def _integer(page: Page, name: str, value: float) -> int:
    if value != int(value):
        raise EngineFailed(f"{page.url} shows {name} = {value!r}; a count must be a whole number")
    return int(value)
