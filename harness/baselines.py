"""baselines.toml: load, select for a run, record from one. No certificate, no entry; no entry, no pass."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from tomlkit.items import AoT, Table

from harness.checks.against_baseline import measured
from harness.deployments import KvBuffer, ModelSetName
from harness.engine.info import EnginePlatform
from harness.errors import Infra, Misconfigured
from harness.facts import BaselineFacts, RunFacts
from harness.files import LARGEST_TABLE_BYTES, read_bounded, write_atomically

_HASHED = re.compile(r"sha256:[0-9a-f]{64}")
_HOW_TO_RECORD = "Run with --no-baseline, then `python -m harness baseline record RUN_DIR --reason ...`."
Text = Annotated[str, Field(min_length=3)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Certificate(_Model):
    """Where a value comes from. Every field is a statement; `not stated by source` is one, an empty string is not.

    ``workload``: ``sha256:<hash>`` of `harness.drive.workloads`, or ``named: ...`` in the words of a published source.
    """

    workload: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64}|named: .{10,}|computed for each run)$")]
    vllm_version: Text
    hardware: Text
    date: Text
    source: Text
    reason: Text


class Entry(_Model):
    """One baseline. ``platforms`` and ``kv_buffers`` None: for all of them.

    ``estimator``: ``standalone`` values are compared with counts corrected for the padded draft of each KV-loaded
    request, ``as-counted`` ones with the engine's own. ``exact``: the counts are computed for each run, so the entry
    holds no value. ``prompts`` and ``max_tokens`` are those of the value; a run with others is not comparable.
    """

    key: Text
    deployment: Text
    models: ModelSetName
    platforms: tuple[EnginePlatform, ...] | None = None
    kv_buffers: tuple[KvBuffer, ...] | None = None
    exact: bool = False
    estimator: Literal["standalone", "as-counted"]
    sided: Literal["two", "lower"]
    acceptance_length: Annotated[float, Field(ge=1)] | None = None
    per_position: tuple[Annotated[float, Field(ge=0, le=1)], ...] | None = None
    rtol: Annotated[float, Field(gt=0, lt=1)] | None = None
    prompts: Annotated[int, Field(gt=0)] | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    certificate: Certificate

    @model_validator(mode="after")
    def _complete(self) -> Entry:
        values = {name: getattr(self, name) for name in ("acceptance_length", "rtol", "prompts", "max_tokens")}
        if self.exact:
            given = [
                name for name, value in (values | {"per_position": self.per_position}).items() if value is not None
            ]
            if given:
                raise ValueError(f"an exact entry is computed for each run and takes no {', '.join(given)}")
        else:
            missing = [name for name, value in values.items() if value is None]
            if missing:
                raise ValueError(f"missing {', '.join(missing)}")
            if self.certificate.workload == "computed for each run":
                raise ValueError("only an exact entry is computed for each run; name the workload")
        return self


@dataclass(frozen=True)
class Query:
    """The run that a baseline is wanted for. ``workload_hash``: hex, of `harness.drive.workloads.workload_hash`."""

    deployment: str
    models: ModelSetName
    platform: EnginePlatform
    kv_buffer: KvBuffer | None
    prompts: int
    max_tokens: int
    workload_hash: str


def load(path: Path) -> tuple[Entry, ...]:
    """Every entry of ``path``. Raises `Misconfigured` naming file, line or entry, and what is missing."""
    try:
        document = tomllib.loads(read_bounded(path, LARGEST_TABLE_BYTES))
    except FileNotFoundError as error:
        raise Misconfigured(f"the baselines file {path} does not exist; give one with --baselines") from error
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(
            f"the baselines file {path} is not TOML: {error}; repair it or give another with --baselines"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Misconfigured(
            f"the baselines file {path} cannot be read ({why}); give another with --baselines"
        ) from error
    stray = sorted(document.keys() - {"baseline"})
    tables = document.get("baseline", [])
    if stray or not isinstance(tables, list):
        raise Misconfigured(f"{path} must hold [[baseline]] tables only, found {', '.join(stray) or 'baseline = ...'}")
    entries = tuple(_entry(table, number, path) for number, table in enumerate(tables, start=1))
    keys = [entry.key for entry in entries]
    doubled = sorted({key for key in keys if keys.count(key) > 1})
    if doubled:
        raise Misconfigured(f"{path} names the baseline {doubled[0]} more than once")
    return entries


def select(entries: Sequence[Entry], query: Query) -> BaselineFacts:
    """The one entry for a run, the most specific if several fit. `Misconfigured` when none or no single one does."""
    fitting = [entry for entry in entries if _fits(entry, query)]
    if not fitting:
        known = ", ".join(entry.key for entry in entries) or "none"
        raise Misconfigured(
            f"no baseline for {query.deployment} with {query.models} models on {query.platform}"
            f"{f' ({query.kv_buffer} KV buffer)' if query.kv_buffer else ''}; entries: {known}. "
            f"{_HOW_TO_RECORD}"
        )
    best = max(_specificity(entry) for entry in fitting)
    chosen = [entry for entry in fitting if _specificity(entry) == best]
    if len(chosen) > 1:
        raise Misconfigured(
            f"several baselines fit {query.deployment} equally well: {', '.join(entry.key for entry in chosen)}; "
            f"narrow one of them by platforms or kv_buffers"
        )
    _check_comparable(chosen[0], query)
    return _facts(chosen[0])


@dataclass(frozen=True)
class Provenance:
    """What facts.json does not hold and a certificate needs."""

    query: Query
    vllm_version: str
    hardware: str
    date: str
    source: str
    reason: str


def record(path: Path, key: str, facts: RunFacts, provenance: Provenance, rtol: float = 0.05) -> Entry:
    """Write the acceptance that ``facts`` show as entry ``key``, in place of one with that key, comments kept.

    The value is the corrected one (`estimator = "standalone"`). Raises `Misconfigured` when the run is no source for a
    baseline (tiny models, no drafts, failed requests) or ``reason`` is empty, and `Infra` when ``path`` cannot be
    written.
    """
    entry = entry_of(key, facts, provenance, rtol)
    existing = load(path) if path.exists() else ()
    document = tomlkit.parse(read_bounded(path, LARGEST_TABLE_BYTES)) if path.exists() else tomlkit.document()
    tables = document.get("baseline")
    if not isinstance(tables, AoT):
        tables = tomlkit.aot()
        document["baseline"] = tables
    table = _table(entry)
    index = next((number for number, old in enumerate(existing) if old.key == key), None)
    if index is None:
        tables.append(table)
    else:
        tables[index] = table
    try:
        write_atomically(path, tomlkit.dumps(document))
    except OSError as error:
        raise Infra(f"the baselines file {path} cannot be written: {error}") from error
    return entry


def entry_of(key: str, facts: RunFacts, provenance: Provenance, rtol: float) -> Entry:
    """The entry that a run is the birth certificate of; pure."""
    if facts.model_set == "tiny":
        raise Misconfigured("tiny checkpoints are judged by computed counts; there is nothing to record")
    if not provenance.reason.strip():
        raise Misconfigured("a baseline needs a reason: say with --reason why this value is right")
    bad = [request.prompt_id for request in facts.requests if request.error or request.body_error]
    if bad:
        raise Misconfigured(f"{len(bad)} requests of that run failed (the first: {bad[0]}); record a clean run")
    counts = measured(facts).corrected
    if counts.length is None or counts.position_rates is None:
        raise Misconfigured("the drafter never fired in that run; there is no acceptance to record")
    query = provenance.query
    return Entry(
        key=key,
        deployment=query.deployment,
        models=query.models,
        platforms=(query.platform,),
        kv_buffers=(query.kv_buffer,) if query.kv_buffer else None,
        estimator="standalone",
        sided="two",
        acceptance_length=round(counts.length, 4),
        per_position=tuple(round(rate, 4) for rate in counts.position_rates),
        rtol=rtol,
        prompts=query.prompts,
        max_tokens=query.max_tokens,
        certificate=Certificate(
            workload=f"sha256:{query.workload_hash}",
            vllm_version=provenance.vllm_version,
            hardware=provenance.hardware,
            date=provenance.date,
            source=provenance.source,
            reason=provenance.reason,
        ),
    )


def _entry(table: object, number: int, path: Path) -> Entry:
    name = str(table.get("key", f"number {number}")) if isinstance(table, dict) else f"number {number}"
    try:
        return Entry.model_validate(table)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        missing = [".".join(map(str, problem["loc"])) for problem in problems if problem["type"] == "missing"]
        others = [
            f"{'.'.join(map(str, problem['loc'])) or 'entry'}: {problem['msg']}"
            for problem in problems
            if problem["type"] != "missing"
        ]
        lacks = [f"lacks {', '.join(missing)}"] if missing else []
        raise Misconfigured(
            f"baseline {name} in {path} {'; '.join(lacks + others)}; repair the entry, or write it with "
            "`python -m harness baseline record RUN_DIR --reason ...`"
        ) from error


def _fits(entry: Entry, query: Query) -> bool:
    return (
        entry.deployment == query.deployment
        and entry.models == query.models
        and (entry.platforms is None or query.platform in entry.platforms)
        and (entry.kv_buffers is None or query.kv_buffer in entry.kv_buffers)
    )


def _specificity(entry: Entry) -> int:
    return (entry.platforms is not None) + (entry.kv_buffers is not None)


def _check_comparable(entry: Entry, query: Query) -> None:
    if entry.exact:
        return
    if (entry.prompts, entry.max_tokens) != (query.prompts, query.max_tokens):
        raise Misconfigured(
            f"baseline {entry.key} was taken with {entry.prompts} prompts of {entry.max_tokens} tokens, this run sends "
            f"{query.prompts} of {query.max_tokens}; drop --prompts and --max-tokens, or record a baseline for "
            f"them. {_HOW_TO_RECORD}"
        )
    workload = entry.certificate.workload
    if _HASHED.fullmatch(workload) and workload != f"sha256:{query.workload_hash}":
        raise Misconfigured(
            f"baseline {entry.key} was taken with another workload ({workload[:19]}..., this run sends "
            f"sha256:{query.workload_hash[:12]}...); use that data set, or record a baseline for "
            f"this one. {_HOW_TO_RECORD}"
        )


def _facts(entry: Entry) -> BaselineFacts:
    certificate = entry.certificate.model_dump()
    if entry.prompts is not None and entry.max_tokens is not None:
        certificate |= {"prompts": str(entry.prompts), "max_tokens": str(entry.max_tokens)}
    return BaselineFacts(
        key=entry.key,
        acceptance_length=entry.acceptance_length,
        per_position=entry.per_position,
        rtol=entry.rtol,
        sided=entry.sided,
        exact=entry.exact,
        estimator=entry.estimator,
        certificate=certificate,
    )


def _table(entry: Entry) -> Table:
    table = tomlkit.table()
    for name, value in entry.model_dump(exclude_none=True, exclude={"certificate"}).items():
        table[name] = list(value) if isinstance(value, tuple) else value
    certificate = tomlkit.table()
    for name, value in entry.certificate.model_dump().items():
        certificate[name] = value
    table["certificate"] = certificate
    return table
