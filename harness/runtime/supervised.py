"""The runner's side of the supervisor: start servers, learn of their end, stop them.

    with supervised(record, state_dir, run_dir, hold=lease.descriptors) as servers:
        servers.start(spec, deadline)
        ...
        servers.watch("decode-0")     # from here on the death of an engine process is news, too
        servers.check()               # raises ServerExited or EngineProcessDied
        report = servers.stop_all(grace_s=10, deadline=deadline)

Whatever ends the block, or the runner, ends the servers.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import harness
from harness.errors import EngineFailed, GateError, Infra
from harness.runtime import record as records
from harness.runtime.deadline import Deadline
from harness.runtime.identity import ProcessId, missing_from_environment
from harness.runtime.logs import root_error
from harness.runtime.reaping import ReapReport, reap, stop_one
from harness.runtime.record import RunRecord
from harness.runtime.wire import IMPORTER, LineReader, Message, ServerSpec, encode, report_from_message
from harness.verdict import Verdict

_HELLO_S = 20.0
# The supervisor gives abandoned servers 12 s; then it is stuck itself and its job is finished from here.
_CLOSE_S = 15.0
_REAP_BUDGET_S = 15.0
_REAP_GRACE_S = 2.0


class ServerExited(EngineFailed):
    """A server ended that nobody stopped. ``returncode`` None: unknown. ``seen_s``: `time.monotonic` of its end."""

    def __init__(self, name: str, returncode: int | None, log: Path, seen_s: float) -> None:
        root = root_error(log)
        quoted = f": {root.line}" if root is not None else ""
        super().__init__(
            f"{name} {_how(returncode)}{quoted}; read {log}", log=log, root_line=None if root is None else root.line
        )
        self.name = name
        self.returncode = returncode
        self.seen_s = seen_s
        if returncode == -signal.SIGKILL:
            # The engine never kills its own API server; the kernel short of memory, or somebody, did.
            self.verdict = Verdict.INFRA


class EngineProcessDied(EngineFailed):
    """A process of the engine below a server died; the server itself may go on answering /health."""

    def __init__(self, name: str, title: str, process: ProcessId, log: Path, seen_s: float) -> None:
        root = root_error(log)
        quoted = f": {root.line}" if root is not None else ""
        super().__init__(
            f"the engine process {title[:80]!r} (pid {process.pid}) of {name} died{quoted}; read {log}",
            log=log,
            root_line=None if root is None else root.line,
        )
        self.name = name
        self.title = title
        self.process = process
        self.seen_s = seen_s


class Servers:
    """What `supervised` yields. Not thread-safe: one thread of the runner uses it."""

    def __init__(self, child: subprocess.Popen[bytes], record: RunRecord, state_dir: Path, log: Path) -> None:
        self._child = child
        self._record = record
        self._state_dir = state_dir
        self._log = log
        self._specs: dict[str, ServerSpec] = {}
        self._failure: GateError | None = None
        self._ended = False
        self._events: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        assert child.stdout is not None
        threading.Thread(target=_read_events, args=(child.stdout, self._events), daemon=True).start()

    def start_importer(self, spec: ServerSpec, deadline: Deadline) -> ProcessId:
        """Start the process that imports the engine once; servers started ``warm`` wait for it by themselves."""
        return self._launch(spec, "importer", deadline)

    def start(self, spec: ServerSpec, deadline: Deadline) -> ProcessId:
        """Start one server and return as soon as its process exists. Start several, then wait for readiness of all.

        Raises `Infra` when the program cannot be executed, `ServerExited` when the importer has ended.
        """
        return self._launch(spec, "start", deadline)

    def watch(self, name: str) -> None:
        """Report the death of the engine processes below ``name`` from now on; call it when the server is ready."""
        self._send({"op": "watch", "name": name})

    def check(self) -> None:
        """Raise what has gone wrong so far: `ServerExited`, `EngineProcessDied`, or `Infra` for the supervisor."""
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                break
            self._note(event)
        if self._failure is not None:
            raise self._failure

    def check_within(self, seconds: float) -> None:
        """`check`, giving news that is still on its way ``seconds`` to arrive. For when an answer failed to come: if
        its server died, that is the cause, and it is seen a moment later than its consequence."""
        deadline = Deadline.after(seconds)
        while self._failure is None and not self._ended:
            try:
                self._note(self._events.get(timeout=max(0.01, deadline.remaining())))
            except queue.Empty:
                break
        self.check()

    def stop(self, name: str, *, grace_s: float, deadline: Deadline) -> ReapReport:
        """End one server with everything below it. Raises `Infra` when the supervisor has ended."""
        return self._stop({"op": "stop", "name": name}, grace_s, deadline)

    def stop_all(self, *, grace_s: float, deadline: Deadline) -> ReapReport:
        """End every server and the importer. Raises `Infra` when the supervisor has ended."""
        return self._stop({"op": "stop_all", "name": None}, grace_s, deadline)

    def _launch(self, spec: ServerSpec, op: str, deadline: Deadline) -> ProcessId:
        if (spec.launch == "spawn" or op == "importer") and (
            missing := missing_from_environment(spec.environment, self._record.marker)
        ):
            raise ValueError(f"the environment of {spec.name} lacks {', '.join(missing)}: it could not be found again")
        self.check()
        self._specs[spec.name] = spec
        self._send(spec.to_message("importer" if op == "importer" else "start"))
        while True:
            event = self._next(deadline, f"start {spec.name}")
            if event is not None and event.get("name") == spec.name:
                if event["event"] == "started":
                    return ProcessId(event["pid"], event["create_time"])
                if event["event"] == "failed":
                    raise Infra(f"{spec.name} could not be started: {event['error']}", log=spec.log)
            self._note(event)
            # Not `check`, which would take the answer off the queue.
            if self._failure is not None:
                raise self._failure

    def _stop(self, message: Message, grace_s: float, deadline: Deadline) -> ReapReport:
        self._send({**message, "grace_s": grace_s, "timeout_s": deadline.remaining()})
        # The supervisor ends its own wait at the deadline; its answer may take a moment longer.
        patience = Deadline(deadline.at_s + 2.0)
        while True:
            event = self._next(patience, "stop the servers")
            if event is not None and event["event"] == "stopped" and event["name"] == message["name"]:
                return report_from_message(event["report"])
            self._note(event)
            if event is None and self._failure is not None:
                raise self._failure

    def _next(self, deadline: Deadline, doing: str) -> Message | None:
        """The next event; None when the supervisor has ended."""
        if self._ended:
            return None
        try:
            return self._events.get(timeout=max(0.01, deadline.remaining()))
        except queue.Empty:
            raise Infra(f"the supervisor did not {doing} in time; read {self._log}", log=self._log) from None

    def _note(self, event: Message | None) -> None:
        """Keep the first thing that went wrong; later ones are mostly its consequences."""
        if event is None:
            if self._ended:
                return
            self._ended = True
            # Its exit status may lag behind the end of its pipe.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)
            report = self._finish_the_job()
            self._failure = Infra(
                f"the supervisor process ended ({_how(self._child.returncode)}); its {_count(report)} were ended "
                f"by the runner; read {self._log}",
                log=self._log,
            )
        elif self._failure is None and event["event"] == "exited":
            spec = self._specs[event["name"]]
            self._failure = ServerExited(spec.name, event["returncode"], spec.log, event["at_s"])
        elif self._failure is None and event["event"] == "descendant_died":
            spec = self._specs[event["name"]]
            process = ProcessId(event["pid"], event["create_time"])
            self._failure = EngineProcessDied(spec.name, event["title"], process, spec.log, event["at_s"])

    def _send(self, message: Message) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(encode(message))
            self._child.stdin.flush()
        except (BrokenPipeError, ValueError):
            # Its end arrives on the event pipe as well, where it is dealt with.
            return

    def _finish_the_job(self) -> ReapReport:
        """End what a supervisor left behind. Nothing to do when it removed its record."""
        record = records.read(records.record_path(self._state_dir, self._record.run_id))
        if record is None:
            return ReapReport()
        return reap(self._state_dir, record, grace_s=_REAP_GRACE_S, deadline=Deadline.after(_REAP_BUDGET_S))

    def _hello(self) -> None:
        while True:
            event = self._next(Deadline.after(_HELLO_S), "come up")
            if event is not None and event["event"] == "hello":
                return
            self._note(event)
            if self._failure is not None:
                raise self._failure

    def _close(self) -> ReapReport:
        """End the command pipe, which ends the servers and the supervisor, and make sure of it."""
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            record = records.read(records.record_path(self._state_dir, self._record.run_id))
            if record is not None and record.supervisor is not None:
                stop_one(record.supervisor, grace_s=0.0, deadline=Deadline.after(_REAP_BUDGET_S))
            self._child.wait()
        return self._finish_the_job()


@contextlib.contextmanager
def supervised(record: RunRecord, state_dir: Path, run_dir: Path, *, hold: Sequence[int] = ()) -> Iterator[Servers]:
    """Run a supervisor for the time of the block. ``record`` is written first and gone afterwards.

    ``hold``: descriptors that the supervisor keeps open, such as a lease's: they outlive a killed runner.
    Raises `Infra` when processes of ours survive the end of the block.
    """
    records.save(state_dir, record)
    log = run_dir / "supervisor.log"
    # The harness may be run from a checkout, without being installed.
    path = [str(Path(harness.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("ab") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "harness.runtime.supervisor", "--state-dir", state_dir, "--run-id", record.run_id],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            pass_fds=tuple(hold),
        )
    servers = Servers(child, record, state_dir, log)
    try:
        servers._hello()
        yield servers
    finally:
        report = servers._close()
    if report.survivors:
        pids = ", ".join(str(process.pid) for process in report.survivors)
        raise Infra(f"processes of this run could not be ended: {pids}; try `harness reap`, then read {log}", log=log)


def _read_events(pipe: IO[bytes], events: queue.SimpleQueue[Message | None]) -> None:
    reader = LineReader(pipe.fileno())
    while not reader.at_end:
        for message in reader.read():
            events.put(message)
    events.put(None)


def _how(returncode: int | None) -> str:
    if returncode is None:
        return "ended"
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def _count(report: ReapReport) -> str:
    number = len(report.terminated) + len(report.killed)
    return f"{number} process{'' if number == 1 else 'es'}"


__all__ = ["IMPORTER", "EngineProcessDied", "ServerExited", "Servers", "supervised"]
