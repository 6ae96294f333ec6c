"""expectations.toml: what an engine is known to refuse, by version and platform, for a limited time.

An entry never skips a run. The run is made; a refusal in the entry's own words reads ``unsupported``, any other
failure stays what it is, and a pass says that the entry has to go. Entries expire, so none is believed for ever.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness.deployments import DEPLOYMENTS, ModelSetName
from harness.engine.info import EnginePlatform
from harness.errors import Misconfigured
from harness.files import LARGEST_TABLE_BYTES, read_bounded
from harness.verdict import Verdict

EXPECTATIONS_NAME = "expectations.toml"

# Longer than two vLLM releases: whoever extends an entry has looked at it once in between.
_LONGEST = timedelta(days=180)
# A public thread or a place in the engine's source; "see chat" can be followed by nobody.
_LINK = r"^(https://\S+|vllm/[\w./-]+\.(py|cpp|cu)(:\d+)?)$"
# What a refusal can have been called before the table was asked; a busy machine or Ctrl-C is never the engine's answer.
_REFUSALS = (Verdict.REGRESSION, Verdict.UNSUPPORTED)

Text = Annotated[str, Field(min_length=3)]


class Expectation(BaseModel):
    """One known refusal. ``platforms`` and ``models`` None: on all of them. ``signature`` is searched in the root line.

    ``vllm``: a version range such as ``>=0.32,<0.34``. ``expires``: the last day on which the entry is believed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    deployments: Annotated[tuple[Text, ...], Field(min_length=1)]
    platforms: tuple[EnginePlatform, ...] | None = None
    models: tuple[ModelSetName, ...] | None = None
    vllm: Text
    signature: Annotated[str, Field(min_length=8)]
    reason: Text
    link: Annotated[str, Field(pattern=_LINK)]
    added: date
    expires: date

    @field_validator("vllm")
    @classmethod
    def _range(cls, value: str) -> str:
        try:
            SpecifierSet(value)
        except InvalidSpecifier as error:
            raise ValueError("is not a version range such as >=0.32,<0.34") from error
        return value

    @field_validator("signature")
    @classmethod
    def _pattern(cls, value: str) -> str:
        try:
            empty = re.search(value, "")
        except re.error as error:
            raise ValueError(f"is not a regular expression ({error})") from error
        if empty:
            raise ValueError("matches an empty line, and so every failure")
        return value

    @model_validator(mode="after")
    def _believable(self) -> Expectation:
        if not self.added <= self.expires <= self.added + _LONGEST:
            raise ValueError(f"expires must lie within {_LONGEST.days} days after added")
        return self

    def __str__(self) -> str:
        return f"{', '.join(self.deployments)} on vLLM {self.vllm} ({self.link})"

    def concerns(self, context: Context) -> bool:
        """Whether the entry speaks of this deployment on this platform, version and model set."""
        return (
            context.deployment in self.deployments
            and (self.platforms is None or context.platform in self.platforms)
            and (self.models is None or context.model_set in self.models)
            and _within(context.vllm_version, self.vllm)
        )


@dataclass(frozen=True)
class Context:
    """What ran. ``vllm_version`` as the engine reports it (``0.32.0+cpu``)."""

    deployment: str
    platform: str
    vllm_version: str
    model_set: str | None


@dataclass(frozen=True)
class Outcome:
    """``reason`` None: the run's own stays. ``finding``: what is wrong with the table; None when nothing is."""

    verdict: Verdict
    reason: str | None = None
    finding: str | None = None


def load(path: Path, known: Collection[str] = DEPLOYMENTS) -> tuple[Expectation, ...]:
    """The entries of expectations.toml. Raises `Misconfigured` for a file or an entry that cannot be used."""
    try:
        parsed = tomllib.loads(read_bounded(path, LARGEST_TABLE_BYTES))
    except OSError as error:
        raise Misconfigured(f"The expectations {path} cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"The expectations {path} are not TOML: {error}.") from error
    tables = parsed.get("expect", [])
    if set(parsed) - {"expect"} or not isinstance(tables, list):
        raise Misconfigured(f"{path} holds something other than [[expect]] entries; each refusal is one of those.")
    entries = []
    for number, table in enumerate(tables, start=1):
        try:
            entry = Expectation.model_validate(table)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "entry"
            raise Misconfigured(f"{path}, [[expect]] number {number}: {where}: {first['msg']}.") from error
        unknown = [name for name in entry.deployments if name not in known]
        if unknown:
            raise Misconfigured(f"{path}, [[expect]] number {number}: there is no deployment {unknown[0]!r}.")
        entries.append(entry)
    return tuple(entries)


def apply(
    verdict: Verdict, root_line: str | None, context: Context, today: date, entries: Sequence[Expectation]
) -> Outcome:
    """What a run is called once the known refusals are considered. Pure.

    A pass where an entry says refusal is ``misconfigured``: the table is wrong, and green would hide that it is.
    """
    concerned = [entry for entry in entries if entry.concerns(context)]
    if verdict is Verdict.PASS and concerned:
        finding = f"Passed, so the expectation {concerned[0]} no longer holds: delete it."
        return Outcome(Verdict.MISCONFIGURED, finding, finding)
    if verdict not in _REFUSALS or root_line is None:
        return Outcome(verdict)
    matching = [entry for entry in concerned if re.search(entry.signature, root_line)]
    live = next((entry for entry in matching if today <= entry.expires), None)
    if live is not None:
        return Outcome(Verdict.UNSUPPORTED, f"Known until {live.expires}: {live.reason} ({live.link}).")
    if matching:
        finding = f"The expectation {matching[0]} expired on {matching[0].expires}: look again, then extend or delete."
        return Outcome(verdict, finding=finding)
    return Outcome(verdict)


def refused_on(platform: EnginePlatform, entries: Sequence[Expectation]) -> frozenset[str]:
    """The deployments that an engine on ``platform`` is expected to refuse with tiny models. Pure."""
    return frozenset(
        name
        for entry in entries
        if (entry.platforms is None or platform in entry.platforms) and (entry.models is None or "tiny" in entry.models)
        for name in entry.deployments
    )


def expired(entries: Sequence[Expectation], today: date) -> list[str]:
    """One sentence for each entry that nobody may believe any more, whether or not its deployment ran. Pure."""
    return [f"The expectation {entry} expired on {entry.expires}." for entry in entries if today > entry.expires]


def _within(version: str, specifier: str) -> bool:
    try:
        parsed = Version(version)
    except InvalidVersion:
        # A build that names itself freely cannot be placed in a range; its failures stay what they are.
        return False
    # A development build of 0.33 is already past 0.32's limits.
    return SpecifierSet(specifier).contains(parsed, prereleases=True)
