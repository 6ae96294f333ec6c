"""Clean runs in a row: how many are called anything but pass, and how far every figure spreads.

The engine is imported once for all. Servers are reused from run to run only where that changes nothing: a prefix cache
that still holds the prompts of the run before would take the place of the transfer, so a deployment with one gets new
servers each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.baselines import load
from harness.deployments import Deployment
from harness.errors import Misconfigured
from harness.falsify.bench import Bench, BenchRun
from harness.falsify.outcome import NOTHING, judge_all
from harness.falsify.power import POWER, power_of
from harness.plan.types import Plan, Stage
from harness.run.collect import facts_of
from harness.run.judge import conclude
from harness.run.request import Prepared, Request
from harness.run.stage import StageObservation
from harness.run.summary import figures_of
from harness.runtime.supervised import Servers
from harness.verdict import Verdict


@dataclass
class Soaked:
    """``figures``: the values of each figure, one per run. ``alarms``: reasons of runs that did not pass."""

    deployment: str
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    alarms: list[str] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)
    servers_started: int = 0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        return bool(self.verdicts) and set(self.verdicts) == {Verdict.PASS}

    def count(self, verdict: Verdict, reason: str, figures: dict[str, float]) -> None:
        self.verdicts[verdict] += 1
        if verdict is not Verdict.PASS:
            self.alarms.append(reason)
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(value)


def soak_runs(
    request: Request, deployment: Deployment, runs: int, fresh_every: int, tell: Callable[[str], None]
) -> Soaked:
    """``runs`` clean runs; new servers after ``fresh_every`` of them, or for each where they cannot be reused."""
    if deployment.models.tiny is None:
        raise Misconfigured(f"{deployment.name} has no tiny checkpoint, so no run of it is known to be clean.")
    batch = 1 if deployment.settings.prefix_caching else fresh_every
    soaked = Soaked(deployment.name)
    folder = request.locations.runs / f"soak-{deployment.name}"
    with Bench(folder / "bench", request.locations.state) as bench:
        done = 0
        while done < runs:
            size = min(batch, runs - done)
            plans: list[Plan] = []

            def remember(plan: Plan, plans: list[Plan] = plans) -> Plan:
                plans.append(plan)
                return plan

            ran = bench.run(
                replace(
                    request,
                    deployment=deployment,
                    options=replace(request.options, launch="warm"),
                    locations=replace(request.locations, runs=folder),
                    alter_plan=remember,
                ),
                tell,
                lambda *parts, size=size, plans=plans: _SoakRun(soaked, size, plans, *parts),
            )
            soaked.servers_started += 1
            soaked.seconds += ran.seconds
            if ran.result.verdict is Verdict.INTERRUPTED:
                # Cut short, not judged; what came before it counts.
                break
            done += size
            if ran.ended_in is not None:
                # It never came to the end of a drive, where drives are counted.
                soaked.count(ran.result.verdict, f"{ran.result.reason} ({ran.folder})", {})
            phases = {f"{phase.name}_s": phase.seconds for phase in ran.result.phases}
            for name, seconds in phases.items():
                if name in ("ready_s", "stop_s"):
                    soaked.figures.setdefault(name, []).append(seconds)
            tell(f"{done}/{runs} {ran.result.verdict.value} {ran.seconds:.1f} s")
    return soaked


class _SoakRun(BenchRun):
    """Drives its live servers several times; each drive is judged as a run of its own."""

    def __init__(self, soaked: Soaked, times: int, plans: list[Plan], *parts: object) -> None:
        super().__init__(*parts)  # type: ignore[arg-type]
        self._soaked = soaked
        self._times = times
        self._plans = plans

    def _observe(
        self, prepared: Prepared, stage: Stage, servers: Servers, earlier: tuple[StageObservation, ...]
    ) -> tuple[StageObservation, ...]:
        for _ in range(self._times):
            observed = super()._observe(prepared, stage, servers, earlier)
            facts = facts_of(self.request, prepared, self._plans[-1], observed, prepared.baselines[0], self.run_dir)
            checks = judge_all(facts, NOTHING)
            judgement = conclude(facts, checks)
            figures = {
                name: float(value)
                for name, value in figures_of(facts, checks).items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
            self._soaked.count(judgement.verdict, judgement.reason, figures)
        return observed


def print_soak(soaked: Soaked, baselines: Path, console: Console) -> None:
    """Verdicts, spread of every figure, and what each baseline's tolerance can see."""
    counted = ", ".join(f"{count} {verdict.value}" for verdict, count in soaked.verdicts.items()) or "no run"
    console.print(
        Text(f"{soaked.deployment}: {counted}; servers started {soaked.servers_started} times, {soaked.seconds:.0f} s")
    )
    for reason in soaked.alarms:
        console.print(Text(f"  {reason}"), soft_wrap=True)
    table = _table("figure", "runs", "min", "median", "max", "spread %")
    for name, values in soaked.figures.items():
        low, middle, high = min(values), median(values), max(values)
        spread = f"{100 * (high - low) / middle:.2f}" if middle else "0.00" if high == low else "-"
        table.add_row(*map(Text, (name, str(len(values)), f"{low:g}", f"{middle:g}", f"{high:g}", spread)))
    console.print(table)
    console.print(Text(f"What the baselines of {baselines.name} can see (power {POWER:.0%}):"))
    table = _table("baseline", "drafts", "standard error", "false alarm", "detectable", "at best")
    for entry in load(baselines):
        found = power_of(entry)
        if found is None:
            why = "exact" if entry.exact else "rates by position not stated"
            table.add_row(
                *map(Text, (entry.key, "-", why, "0" if entry.exact else "-", "any" if entry.exact else "-", ""))
            )
            continue
        table.add_row(
            *map(
                Text,
                (
                    found.key,
                    str(found.drafts),
                    f"{found.standard_error:.4f}",
                    f"{found.false_alarm:.1e}",
                    f"{found.detectable:.1%}",
                    f"{found.detectable_at_best:.1%}",
                ),
            )
        )
    console.print(table)


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), highlight=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    return table
