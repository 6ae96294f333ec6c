"""One run from lease to verdict. Whatever happens inside, a result comes out and nothing of ours stays behind."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from harness.checks.registry import judge
from harness.deployments import KvBuffer
from harness.errors import EngineFailed
from harness.facts import CheckResult, RunFacts
from harness.files import write_atomically
from harness.plan.assign import assign_devices
from harness.plan.build import build_plan
from harness.plan.reference import judged_only, with_reference_after
from harness.plan.render import as_json
from harness.plan.types import Allocation, Plan, Stage
from harness.report.terminal import Progress
from harness.result import Result
from harness.run.blame import blame_others
from harness.run.collect import adjustments_made, facts_of
from harness.run.finish import own_secrets
from harness.run.interrupts import Interrupts
from harness.run.journal import Journal
from harness.run.judge import conclude, run_assertions
from harness.run.launch import importer_spec, ready_conditions, router_spec, server_spec
from harness.run.request import Prepared, Request
from harness.run.reuse import KeptReference, Shelf, shelf_of, sweep
from harness.run.stage import StageObservation, observe, smoke
from harness.run.summary import describe_run, expected_of, figures_of
from harness.run.trace import TRACE_FOLDER, files_per_process, read_processes
from harness.runtime import leases, ports
from harness.runtime.deadline import Deadline
from harness.runtime.devices import memory_used, wait_released
from harness.runtime.identity import host_identity, new_marker, own_identity
from harness.runtime.occupancy import busy_with_strangers
from harness.runtime.readiness import wait
from harness.runtime.reaping import ReapReport, reap_stale
from harness.runtime.record import RunRecord
from harness.runtime.supervised import ServerExited, Servers, supervised
from harness.verdict import Verdict

# The importer reads half a gigabyte of Python from a cold disk before it can fork a server.
_IMPORT_S = 180
_START_S = 30
_RELEASE_S = 60
# A broken connection is seen before the end of the process that broke it: so long for the end to be reported.
_NEWS_S = 0.5


class Run:
    """The pieces of one run that its phases share. ``result`` is filled in as they become known."""

    def __init__(
        self, request: Request, result: Result, run_dir: Path, journal: Journal, progress: Progress, signals: Interrupts
    ) -> None:
        self.request = request
        self.result = result
        self.run_dir = run_dir
        self.journal = journal
        self.progress = progress
        self.signals = signals

    def execute(self, prepared: Prepared, index: int) -> None:
        """Lease, run every stage, judge. Raises GateError; the caller turns it into a verdict."""
        buffer = prepared.buffers[index]
        describe_run(self.result, self.request, prepared, buffer)
        state = self.request.locations.state
        self._finish_killed_runs(state)
        sweep(state)
        with ExitStack() as held:
            with self.journal.phase("lease"):
                plan, lease = self._lease(prepared, buffer, held)
            record = self._record(lease.keys)
            prepared = replace(prepared, workload=prepared.workload.marked(record.marker))
            used_before = memory_used(lease.keys)
            shelf = shelf_of(self.request, prepared, plan)

            def facts_with(observed: tuple[StageObservation, ...], kept: KeptReference | None) -> RunFacts:
                return facts_of(self.request, prepared, plan, observed, prepared.baselines[index], self.run_dir, kept)

            try:
                observations, kept = self._observations(prepared, plan, record, lease.descriptors, shelf, facts_with)
            except EngineFailed as error:
                # Its own servers are gone by now: what still holds their place is somebody else's.
                with self.signals.ignored():
                    blame_others(error, plan, lease.keys, used_before)
                raise
            with self.journal.phase("release"), self.signals.ignored():
                wait_released(lease.keys, used_before, Deadline.after(_RELEASE_S))
        self.result.trace = files_per_process(read_processes(self.run_dir / TRACE_FOLDER))
        with self.journal.phase("judge"):
            facts = facts_with(observations, kept)
            checks = self._judge(facts)
        judgement = conclude(facts, checks)
        if shelf is not None and kept is None and judgement.verdict is Verdict.PASS:
            shelf.keep(self.result.run_id, facts)
        self.result.reference_from = facts.reference_from
        self.result.checks = list(checks)
        self.result.figures = figures_of(facts, checks)
        self.result.expected = expected_of(facts)
        self.result.verdict = judgement.verdict
        self.result.reason = judgement.reason

    def _judge(self, facts: RunFacts) -> tuple[CheckResult, ...]:
        return run_assertions(self.run_dir, facts)

    def _finish_killed_runs(self, state: Path) -> None:
        for run_id, report in reap_stale(state).items():
            ended = len(report.terminated) + len(report.killed)
            self.journal.note(f"finished what the killed run {run_id} left behind: {ended} processes ended")

    def _lease(self, prepared: Prepared, buffer: KvBuffer | None, held: ExitStack) -> tuple[Plan, leases.Lease]:
        state = self.request.locations.state
        assigned = assign_devices(prepared.needs, prepared.machine, self.request.options, prepared.model_set)
        keys = sorted({device.key for group in assigned.values() for device in group})
        holder = leases.Holder(
            self.result.run_id, os.getpid(), getpass.getuser(), self.request.deployment.name, time.time()
        )
        lease = held.enter_context(
            leases.lease(
                keys,
                state,
                holder,
                deadline=Deadline.after(self.request.lease_timeout_s),
                on_wait=self.journal.note,
                busy=busy_with_strangers,
            )
        )
        chosen = held.enter_context(ports.lease_ports(prepared.needs.ports, state, self.result.run_id))
        plan = self.request.alter_plan(build_plan(prepared.inputs, Allocation(devices=assigned, ports=chosen), buffer))
        self.result.launch = plan.launch
        self.result.notes = list(plan.notes)
        return plan, lease

    def _record(self, keys: tuple[str, ...]) -> RunRecord:
        run_id = self.result.run_id
        return RunRecord(
            run_id=run_id,
            marker=new_marker(run_id),
            runner=own_identity(),
            host=host_identity(),
            user=getpass.getuser(),
            run_dir=str(self.run_dir),
            started_at=time.time(),
            deployment=self.request.deployment.name,
            leases=keys,
        )

    def _observations(
        self,
        prepared: Prepared,
        plan: Plan,
        record: RunRecord,
        hold: tuple[int, ...],
        shelf: Shelf | None,
        facts_with: Callable[[tuple[StageObservation, ...], KeptReference | None], RunFacts],
    ) -> tuple[tuple[StageObservation, ...], KeptReference | None]:
        """What the servers of the plan showed; the reference's part may be one that the invocation kept."""
        kept = shelf.find() if shelf is not None else None
        if kept is None:
            return self._stages(prepared, plan, record, hold), None
        self.journal.note(f"no reference server: an equal one answered the same requests in run {kept.run_id}")
        observations = self._stages(prepared, judged_only(plan), record, hold)
        facts = facts_with(observations, kept)
        if all(judge(check, facts).ok for check in self.request.deployment.checks):
            return observations, kept
        # Kept answers may be noise: nothing is held against the engine before a reference of its own was asked.
        self.journal.note("a check fails against the kept answers: starting the reference after all")
        return self._stages(prepared, with_reference_after(plan), record, hold, observations), None

    def _stages(
        self,
        prepared: Prepared,
        plan: Plan,
        record: RunRecord,
        hold: tuple[int, ...],
        done: tuple[StageObservation, ...] = (),
    ) -> tuple[StageObservation, ...]:
        """Run the stages of ``plan``, but for those that were observed already."""
        write_atomically(self.run_dir / "plan.json", as_json(plan) + "\n")
        observations = list(done)
        seen = {one.stage for one in done}
        for stage in (stage for stage in plan.stages if stage.name not in seen):
            suffix = "" if stage.name == "main" else f" ({stage.name})"
            with self._supervised(record, hold, plan, stage) as servers:
                with self.journal.phase(f"launch{suffix}"):
                    self._launch(prepared, plan, stage, record, servers)
                with self.journal.phase(f"ready{suffix}"):
                    self._ready(prepared, stage, servers)
                with self.journal.phase(f"drive{suffix}"), self.signals.polled():
                    observations += self._observe(prepared, stage, servers, tuple(observations))
                with self.journal.phase(f"stop{suffix}"), self.signals.ignored():
                    budget = self.request.deployment.timeouts.stop_s
                    report = servers.stop_all(grace_s=budget / 2, deadline=Deadline.after(budget))
                    self._note_cleanup(report)
        return tuple(observations)

    @contextmanager
    def _supervised(self, record: RunRecord, hold: tuple[int, ...], plan: Plan, stage: Stage) -> Iterator[Servers]:
        """The supervisor for one stage; its teardown is not interruptible, and what the servers logged is kept."""
        state = self.request.locations.state
        try:
            # Left last, so that it covers the end of `supervised`, where the servers are ended.
            with ExitStack() as teardown, supervised(record, state, self.run_dir, hold=hold) as servers:
                try:
                    yield servers
                finally:
                    # From here on a Ctrl-C must not cut the teardown short.
                    teardown.enter_context(self.signals.ignored())
        except ServerExited as error:
            if stage.router is not None and error.name == stage.router.name:
                # The router is not the engine under test: its end must not read as a regression of vLLM.
                error.verdict = Verdict.INFRA
            raise
        finally:
            for server in stage.servers:
                if made := adjustments_made(server, self.run_dir):
                    self.result.adjustments[server.name] = made
            if plan.adjustments and not self.result.adjustments:
                self.journal.event("note", text="no server reported an adjustment")

    def _launch(self, prepared: Prepared, plan: Plan, stage: Stage, record: RunRecord, servers: Servers) -> None:
        inherited, engine = self.request.inherited, prepared.engine
        for server in stage.servers:
            ports.check_still_free(server.host, server.port)
            for port in server.side_channel_ports:
                ports.check_still_free(server.host, port)
        deadline = Deadline.after(_START_S)
        if plan.launch == "warm":
            servers.start_importer(
                importer_spec(stage.servers[0], engine, inherited, record.marker, self.run_dir), deadline
            )
            deadline = Deadline.after(_IMPORT_S)
        for server in stage.servers:
            servers.start(server_spec(server, plan, engine, inherited, record.marker, self.run_dir), deadline)
            self.journal.event("started", server=server.name)
        if stage.router is not None:
            ports.check_still_free(stage.router.host, stage.router.port)
            servers.start(router_spec(stage.router, inherited, record.marker, self.run_dir), deadline)

    def _ready(self, prepared: Prepared, stage: Stage, servers: Servers) -> None:
        logs = self.run_dir / "logs"
        wait(ready_conditions(stage, logs), Deadline.after(self.request.deployment.timeouts.ready_s), servers.check)
        for server in stage.servers:
            servers.watch(server.name)
        self.journal.detail("every server answers; one request through the whole route")
        with self.signals.polled():
            try:
                smoke(
                    prepared.workload,
                    stage,
                    self.request.deployment,
                    logs,
                    lambda: self._go_on(servers),
                    own_secrets(self.request.inherited),
                )
            except EngineFailed:
                servers.check_within(_NEWS_S)
                raise
        servers.check()

    def _go_on(self, servers: Servers) -> None:
        """Asked between requests and while one is waited for: raises when a server died or the user interrupted."""
        servers.check()
        self.signals.check()

    def _observe(
        self, prepared: Prepared, stage: Stage, servers: Servers, earlier: tuple[StageObservation, ...]
    ) -> tuple[StageObservation, ...]:
        def progress(done: int, total: int) -> None:
            self.progress.count(done, total, "requests")

        try:
            observed = observe(
                self.request.deployment,
                stage,
                prepared.workload,
                self.run_dir,
                self.journal,
                lambda: self._go_on(servers),
                progress,
                earlier,
                own_secrets(self.request.inherited),
            )
        except EngineFailed:
            servers.check_within(_NEWS_S)
            raise
        # A server may have died after its last answer, and its metrics page been the last thing it said.
        if all(server.answered_after_run for part in observed for server in part.servers):
            servers.check()
        else:
            servers.check_within(_NEWS_S)
        return observed

    def _note_cleanup(self, report: ReapReport) -> None:
        cleanup = self.result.cleanup
        for name, count in (
            ("ended_by_sigterm", len(report.terminated)),
            ("ended_by_sigkill", len(report.killed)),
            ("survivors", len(report.survivors)),
            ("shared_memory_removed", len(report.shared_memory)),
        ):
            cleanup[name] = cleanup.get(name, 0) + count
