"""Runs of mutated deployments over one importer: vLLM is imported once, each run forks its own servers from it.

The importer and its supervisor outlive a run; nothing else does. A mutation never reaches the importer, so the next run
starts from clean code. A supervisor that has bad news (a server died) is replaced, importer and all.
"""

from __future__ import annotations

import getpass
import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from harness.errors import GateError
from harness.facts import CheckResult, RunFacts
from harness.falsify.changes import FAULT_VARIABLE
from harness.falsify.outcome import NOTHING, judge_all
from harness.files import write_atomically
from harness.plan.types import Plan, Stage
from harness.report.terminal import Progress
from harness.result import Result, write_result
from harness.run.collect import adjustments_made
from harness.run.concluded import concluded
from harness.run.execute import Run
from harness.run.interrupts import Interrupts, listening
from harness.run.journal import Journal
from harness.run.judge import FACTS_NAME
from harness.run.prepare import prepare
from harness.run.request import Prepared, Request
from harness.run.session import blank_result, new_run_folder
from harness.runtime.deadline import Deadline
from harness.runtime.identity import ProcessId, host_identity, new_marker, own_identity
from harness.runtime.reaping import ReapReport
from harness.runtime.record import RunRecord
from harness.runtime.supervised import Servers, supervised
from harness.runtime.wire import IMPORTER, ServerSpec

_START_IMPORTER_S = 30
_STOP_GRACE_S = 4.0
_STOP_S = 10.0


@dataclass(frozen=True)
class Ran:
    """One run of the bench. ``ended_in``: the phase that failed, None when the run was judged."""

    result: Result
    ended_in: str | None
    folder: Path
    seconds: float


class Guest:
    """A run's view of the shared supervisor; what it starts, it stops, and nothing else."""

    def __init__(self, bench: Bench, servers: Servers) -> None:
        self._bench = bench
        self._servers = servers
        self._started: list[str] = []

    def start_importer(self, spec: ServerSpec, deadline: Deadline) -> None:
        self._bench.ensure_importer(spec, deadline)

    def start(self, spec: ServerSpec, deadline: Deadline) -> ProcessId:
        self._started.append(spec.name)
        return self._servers.start(spec, deadline)

    def watch(self, name: str) -> None:
        self._servers.watch(name)

    def check(self) -> None:
        self._servers.check()

    def check_within(self, seconds: float) -> None:
        self._servers.check_within(seconds)

    def stop(self, name: str, *, grace_s: float, deadline: Deadline) -> ReapReport:
        self._started.remove(name)
        return self._servers.stop(name, grace_s=grace_s, deadline=deadline)

    def stop_all(self, *, grace_s: float, deadline: Deadline) -> ReapReport:
        """Stop this run's servers, front first: a router whose backends are gone would only complain."""
        reports = []
        while self._started:
            reports.append(self.stop(self._started[-1], grace_s=grace_s, deadline=deadline))
        return _together(reports)


class BenchRun(Run):
    """A run whose supervisor is the bench's."""

    def __init__(
        self,
        bench: Bench,
        request: Request,
        result: Result,
        run_dir: Path,
        journal: Journal,
        progress: Progress,
        signals: Interrupts,
    ) -> None:
        super().__init__(request, result, run_dir, journal, progress, signals)
        self._bench = bench

    def _record(self, keys: tuple[str, ...]) -> RunRecord:
        del keys
        # The record of the supervisor that this run will get: a new one if the last had bad news.
        self._bench.servers()
        return self._bench.record

    def _judge(self, facts: RunFacts) -> tuple[CheckResult, ...]:
        """The same checks without pytest around them, which would cost a second for each of a hundred runs."""
        write_atomically(self.run_dir / FACTS_NAME, facts.model_dump_json(indent=1))
        return judge_all(facts, NOTHING)

    @contextmanager
    def _supervised(self, record: RunRecord, hold: tuple[int, ...], plan: Plan, stage: Stage) -> Iterator[Servers]:
        del record, hold, plan
        guest = Guest(self._bench, self._bench.servers())
        try:
            # A guest offers what a run uses of `Servers`, for the servers of this run.
            yield guest  # type: ignore[misc]
        finally:
            with self.signals.ignored():
                self._leave(guest)
            for server in stage.servers:
                if made := adjustments_made(server, self.run_dir):
                    self.result.adjustments[server.name] = made

    def _leave(self, guest: Guest) -> None:
        try:
            guest.stop_all(grace_s=_STOP_GRACE_S, deadline=Deadline.after(_STOP_S))
            guest.check()
        except GateError:
            # It has bad news of this run, which it would tell every later one.
            self._bench.discard()


class Bench:
    """Use as a context manager; ``folder`` receives the importer's and the supervisor's logs."""

    def __init__(self, folder: Path, state: Path) -> None:
        self._folder = folder
        self._state = state
        self._stack = ExitStack()
        self._servers: Servers | None = None
        self._importing = False
        self._prepared: dict[tuple[str, int | None], Prepared] = {}
        self.record = self._new_record()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def servers(self) -> Servers:
        """The running supervisor, started if need be."""
        if self._servers is None:
            self.record = self._new_record()
            (self._folder / "logs").mkdir(parents=True, exist_ok=True)
            self._servers = self._stack.enter_context(supervised(self.record, self._state, self._folder))
        return self._servers

    def ensure_importer(self, spec: ServerSpec, deadline: Deadline) -> None:
        if self._importing:
            return
        clean = {name: value for name, value in spec.environment.items() if name != FAULT_VARIABLE}
        log = self._folder / "logs" / f"{IMPORTER}.log"
        self.servers().start_importer(replace(spec, environment=clean, cwd=self._folder, log=log), deadline)
        self._importing = True

    def discard(self) -> None:
        """End the importer and its supervisor."""
        self._servers, self._importing = None, False
        stack, self._stack = self._stack, ExitStack()
        stack.close()

    def run(self, request: Request, note: Callable[[str], None], make: Make | None = None) -> Ran:
        """One run to its verdict, quietly, by an object that ``make`` builds (default: `BenchRun`). Never raises."""
        began = time.monotonic()
        run_id, folder = new_run_folder(request.locations, request.deployment.name)
        result = blank_result(request.deployment.name, run_id, folder)
        with Progress(Console(file=io.StringIO())) as progress, listening(note) as signals:
            journal = Journal(folder, progress)
            run = (make or BenchRun)(self, request, result, folder, journal, progress, signals)
            concluded(run, lambda: self._execute(run, request, journal))
            with signals.ignored():
                result.phases, result.wall_seconds = journal.phases, round(journal.wall_seconds, 3)
                (folder / ".reserve").unlink(missing_ok=True)
                write_result(folder, result)
                journal.close()
        failed = [phase.name for phase in journal.phases if phase.state == "failed"]
        return Ran(result, failed[0] if failed else None, folder, round(time.monotonic() - began, 2))

    def prepared(self, request: Request, journal: Journal) -> Prepared:
        """What the runs of one deployment share, found out once."""
        key = (request.deployment.name, request.options.prompts)
        if key not in self._prepared:
            self._prepared[key] = prepare(request, journal, journal.detail)
        return self._prepared[key]

    def _execute(self, run: Run, request: Request, journal: Journal) -> None:
        run.execute(self.prepared(request, journal), 0)

    def _new_record(self) -> RunRecord:
        run_id = f"{self._folder.name}-{time.monotonic_ns()}"
        return RunRecord(
            run_id=run_id,
            marker=new_marker(run_id),
            runner=own_identity(),
            host=host_identity(),
            user=getpass.getuser(),
            run_dir=str(self._folder),
            started_at=time.time(),
            deployment="falsify",
            leases=(),
        )


Make = Callable[[Bench, Request, Result, Path, Journal, Progress, Interrupts], Run]


def _together(reports: Sequence[ReapReport]) -> ReapReport:
    return ReapReport(
        terminated=tuple(process for report in reports for process in report.terminated),
        killed=tuple(process for report in reports for process in report.killed),
        survivors=tuple(process for report in reports for process in report.survivors),
        seconds=sum(report.seconds for report in reports),
        shared_memory=tuple(name for report in reports for name in report.shared_memory),
    )
