"""The values that the audit works on: steps as the pipelines define them, and findings."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.ci.selector import RunAll, Semantics


@dataclass(frozen=True, slots=True)
class Text:
    """A string of a YAML file and the line (1-based) where it stands."""

    value: str
    line: int


@dataclass(frozen=True)
class Step:
    """One job that Buildkite would run: a step, or the AMD mirror of one with the parent's values filled in.

    ``dependencies`` are the effective ones: a mirror adds its parent's to its own, and a file with a group-level
    ``depends_on`` adds itself (``file``), as the generator does. ``own_dependencies`` is what the YAML says.
    ``base``: the directory, relative to the checkout, in which the commands start.
    """

    file: str
    line: int
    label: str
    key: str
    area: str
    pipeline: str
    device: str | None
    count: int | None
    optional: bool
    soft_fail: bool
    base: str
    own_dependencies: tuple[Text, ...]
    dependencies: tuple[str, ...]
    commands: tuple[Text, ...]
    env: tuple[tuple[str, str], ...] = ()
    no_gpu: bool = False
    mirror_of: str | None = None
    semantics: Semantics = "segments"

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def per_pr(self) -> bool:
        return not self.optional


@dataclass(frozen=True)
class Mirror:
    """A ``mirror: amd:`` block as written: ``explicit`` names the fields that it sets itself."""

    parent: Step
    step: Step
    explicit: frozenset[str]
    own_count: int | None


@dataclass(frozen=True)
class Area:
    """One pipeline file. ``steps_line``: where its ``steps:`` key stands."""

    file: str
    name: str
    pipeline: str
    steps_line: int
    active: int


@dataclass(frozen=True)
class Pipelines:
    """Everything the YAML files of a checkout define. ``run_all`` is by pipeline name."""

    steps: tuple[Step, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    areas: tuple[Area, ...] = ()
    run_all: dict[str, RunAll] = field(default_factory=dict)
    broken: tuple[tuple[str, int, str], ...] = ()


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. ``key`` stays the same when lines move, so that a waiver keeps naming it."""

    rule: str
    path: str
    line: int
    message: str
    detail: str = ""
    key: str = ""

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"
