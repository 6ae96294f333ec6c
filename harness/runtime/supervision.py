"""What the supervisor process does: it owns the servers, tells the runner of their end, and ends them.

Commands from the runner: importer, start, watch, stop, stop_all. Events to it: hello, importer_ready, started, failed,
exited, descendant_died, stopped. Times are `time.monotonic`, which all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import selectors
import time
from pathlib import Path

from harness.runtime import record as records
from harness.runtime.children import Exits, Server, launch
from harness.runtime.deadline import Deadline
from harness.runtime.family import family, is_engine_process
from harness.runtime.identity import ProcessId, ProcessRow, age_s, command_line, descendants, process_table, read_row
from harness.runtime.reaping import ReapReport, find_ours, stop
from harness.runtime.record import RunRecord
from harness.runtime.wire import IMPORTER, LineReader, Message, ServerSpec, encode, report_to_message, write_all

# How often new descendants are looked for; exits are seen at once and do not wait for it.
_TICK_S = 0.5
# A child shows its parent's command line between fork and exec; nothing stays there this long.
_FORK_TO_EXEC_S = 0.1
# How long the importer gets to report the exit code of a server whose end the kernel already announced.
_EXIT_CODE_WAIT_S = 1.0
# After the runner is gone nobody waits for a clean end; together below the 15 s in which nothing may be left.
_ABANDONED_GRACE_S = 3.0
_ABANDONED_BUDGET_S = 12.0

_log = logging.getLogger("supervisor")


class Supervisor:
    """The event loop. Single-threaded: a command, an exit and a tick never overlap."""

    def __init__(self, state_dir: Path, record: RunRecord, commands_fd: int, events_fd: int, wakeup_fd: int) -> None:
        self._state_dir = state_dir
        self._record = record
        self._commands = LineReader(commands_fd)
        self._events_fd = events_fd
        self._servers: dict[str, Server] = {}
        self._importer_commands_fd: int | None = None
        self._selector = selectors.DefaultSelector()
        self._exits = Exits(self._selector)
        self._selector.register(commands_fd, selectors.EVENT_READ, self._on_commands)
        self._selector.register(wakeup_fd, selectors.EVENT_READ, lambda: _drain(wakeup_fd))
        self._next_tick_s = time.monotonic()
        self.terminated = False

    def run(self) -> None:
        """Serve the runner until its pipe ends or SIGTERM, then leave nothing behind."""
        self._save()
        self._emit({"event": "hello"})
        try:
            while not self._commands.at_end and not self.terminated:
                for key, _ in self._selector.select(max(0.0, self._next_tick_s - time.monotonic())):
                    # An earlier callback of this round may have given the descriptor up.
                    if self._selector.get_map().get(key.fd) is key:
                        key.data()
                if time.monotonic() >= self._next_tick_s:
                    self._tick()
        finally:
            report = self._teardown(_ABANDONED_GRACE_S, Deadline.after(_ABANDONED_BUDGET_S))
            if report.survivors:
                _log.error("could not end %s; the run record stays for `harness reap`", report.survivors)
            else:
                records.remove(self._state_dir, self._record.run_id)

    # Commands

    def _on_commands(self) -> None:
        for message in self._commands.read():
            _log.info("command %s %s", message["op"], message.get("name", ""))
            match message["op"]:
                case "importer":
                    self._start_importer(ServerSpec.from_message(message))
                case "start":
                    self._start(ServerSpec.from_message(message))
                case "watch":
                    if (server := self._servers.get(message["name"])) is not None:
                        server.watched = True
                        self._tick()
                case "stop":
                    self._stop_server(message)
                case "stop_all":
                    deadline = Deadline.after(message["timeout_s"])
                    self._emit_stopped(None, self._teardown(message["grace_s"], deadline))
                case unknown:
                    raise ValueError(f"unknown command {unknown!r}")

    def _start(self, spec: ServerSpec) -> None:
        if (present := self._servers.get(spec.name)) is not None and present.ended_at_s is None:
            self._emit({"event": "failed", "name": spec.name, "error": "a server of this name is already running"})
            return
        self._servers[spec.name] = Server(spec.name)
        # Written before the start: killed in between, the marker in its environment still leads to the new process.
        self._remember(spec.name, None)
        if spec.launch == "spawn":
            self._spawn(spec, [*spec.argv], ())
            return
        if self._importer_commands_fd is None:
            self._emit({"event": "failed", "name": spec.name, "error": "the importer is not running"})
            return
        message = {
            "op": "start",
            "name": spec.name,
            "argv": list(spec.argv),
            "env": dict(spec.environment),
            "unset": list(spec.unset),
            "log": str(spec.log),
        }
        try:
            write_all(self._importer_commands_fd, encode(message))
        except BrokenPipeError:
            self._emit({"event": "failed", "name": spec.name, "error": "the importer has ended"})

    def _start_importer(self, spec: ServerSpec) -> None:
        commands_read, commands_write = os.pipe()
        events_read, events_write = os.pipe()
        argv = [*spec.argv, "--commands-fd", str(commands_read), "--events-fd", str(events_write)]
        self._servers[IMPORTER] = Server(IMPORTER)
        self._remember(IMPORTER, None)
        self._spawn(spec, argv, (commands_read, events_write))
        os.close(commands_read)
        os.close(events_write)
        self._importer_commands_fd = commands_write
        reader = LineReader(events_read)
        self._selector.register(events_read, selectors.EVENT_READ, lambda: self._on_importer(reader, events_read))

    def _spawn(self, spec: ServerSpec, argv: list[str], pass_fds: tuple[int, ...]) -> None:
        server = self._servers[spec.name]
        try:
            server.child = launch(spec, argv, pass_fds)
        except OSError as error:
            del self._servers[spec.name]
            self._emit(
                {"event": "failed", "name": spec.name, "error": f"{error.strerror}: {error.filename or argv[0]}"}
            )
            return
        self._started(server, server.child.pid)

    def _started(self, server: Server, pid: int) -> None:
        server.pid = pid
        # A child of ours that has ended is a zombie until it is polled, so its start time can still be read. One that
        # the importer has already collected is not; its exit code follows.
        row = read_row(pid)
        if row is None:
            server.ended_at_s = time.monotonic()
            return
        server.process = row.identity
        self._remember(server.name, row.identity)
        self._exits.await_exit(server, row.identity, lambda: self._on_exit(server))
        self._emit({"event": "started", "name": server.name, **dataclasses.asdict(row.identity)})

    def _stop_server(self, message: Message) -> None:
        server = self._servers.pop(message["name"], None)
        report = ReapReport()
        if server is not None and server.process is not None:
            self._exits.forget(server)
            process = server.process

            def find() -> frozenset[ProcessId]:
                return family(process, server.members, process_table())

            server.members |= find()
            report = stop(find, [process], grace_s=message["grace_s"], deadline=Deadline.after(message["timeout_s"]))
            self._reap_children(process_table())
            if server.child is not None:
                server.child.poll()
        self._emit_stopped(message["name"], report)

    def _teardown(self, grace_s: float, deadline: Deadline) -> ReapReport:
        for server in self._servers.values():
            self._exits.forget(server)
        self._update_members(process_table())
        first = [s.process for s in self._servers.values() if s.process is not None and s.name != IMPORTER]
        report = stop(lambda: find_ours(self._record), first, grace_s=grace_s, deadline=deadline)
        for server in self._servers.values():
            if server.child is not None:
                server.child.poll()
        self._reap_children(process_table())
        self._servers.clear()
        if self._importer_commands_fd is not None:
            os.close(self._importer_commands_fd)
            self._importer_commands_fd = None
        _log.info("torn down: %s", report)
        return report

    # What the servers do

    def _on_importer(self, reader: LineReader, fd: int) -> None:
        for message in reader.read():
            match message["event"]:
                case "ready":
                    self._emit({**message, "event": "importer_ready"})
                case "started":
                    if (server := self._servers.get(message["name"])) is not None:
                        self._started(server, message["pid"])
                case "exited":
                    server = self._servers.get(message["name"])
                    # The news of a stopped server may arrive when another one already has its name.
                    if server is not None and server.pid == message["pid"]:
                        self._report_exit(server, message["returncode"])
                case "error":
                    self._servers.pop(message["name"], None)
                    self._emit({"event": "failed", "name": message["name"], "error": message["message"]})
                case other:
                    _log.warning("unknown importer event %s: %s", other, message)
        if reader.at_end:
            self._selector.unregister(fd)
            os.close(fd)

    def _on_exit(self, server: Server) -> None:
        server.ended_at_s = time.monotonic()
        if server.child is not None:
            self._report_exit(server, server.child.wait())

    def _report_exit(self, server: Server, returncode: int | None) -> None:
        if server.reported:
            return
        server.reported = True
        server.ended_at_s = server.ended_at_s or time.monotonic()
        number = -returncode if returncode is not None and returncode < 0 else None
        event = {"event": "exited", "name": server.name, "returncode": returncode, "signal": number}
        self._emit({**event, "at_s": server.ended_at_s})

    def _on_descendant_exit(self, server: Server, process: ProcessId, title: str) -> None:
        event = {"event": "descendant_died", "name": server.name, "title": title, "at_s": time.monotonic()}
        self._emit({**event, **dataclasses.asdict(process)})

    def _tick(self) -> None:
        self._next_tick_s = time.monotonic() + _TICK_S
        table = process_table()
        self._reap_children(table)
        self._update_members(table)
        for server in self._servers.values():
            if server.ended_at_s is not None:
                if not server.reported and time.monotonic() - server.ended_at_s > _EXIT_CODE_WAIT_S:
                    self._report_exit(server, None)
            elif server.watched and server.process is not None:
                self._watch_members(server, server.process)

    def _update_members(self, table: dict[int, ProcessRow]) -> None:
        for server in self._servers.values():
            if server.process is not None:
                server.members = family(server.process, server.members, table) - {server.process}
        # An orphan in a session of its own may have come to us before it was ever seen below its server. It belongs to
        # the run then, and is ended with the run, not with the server.
        below_us = {table[pid].identity for pid in descendants({os.getpid()}, table) if not table[pid].gone}
        below_us = below_us.union(*(server.members for server in self._servers.values()))
        seen = tuple(sorted(below_us - {server.process for server in self._servers.values()}))
        if seen != self._record.descendants:
            self._record = dataclasses.replace(self._record, descendants=seen)
            self._save()

    def _watch_members(self, server: Server, process: ProcessId) -> None:
        known = set(server.exit_fds.values())
        server_title = command_line(process.pid)
        for member in server.members - known:
            title = command_line(member.pid)
            if age_s(member) > _FORK_TO_EXEC_S and is_engine_process(title, server_title):
                _log.info("watching %s of %s (%s)", member, server.name, title[:80])

                def died(member: ProcessId = member, title: str = title) -> None:
                    self._on_descendant_exit(server, member, title)

                self._exits.await_exit(server, member, died)

    def _reap_children(self, table: dict[int, ProcessRow]) -> None:
        """Collect orphans that became our children; a server forked by an importer that died is one, too."""
        own = {server.child.pid for server in self._servers.values() if server.child is not None}
        by_pid = {server.process.pid: server for server in self._servers.values() if server.process is not None}
        for row in table.values():
            if row.parent == os.getpid() and row.gone and row.pid not in own:
                with contextlib.suppress(ChildProcessError):
                    _, status = os.waitpid(row.pid, os.WNOHANG)
                    if (server := by_pid.get(row.pid)) is not None and server.process == row.identity:
                        self._report_exit(server, os.waitstatus_to_exitcode(status))

    # Plumbing

    def _remember(self, name: str, process: ProcessId | None) -> None:
        self._record = self._record.with_server(name, process)
        self._save()

    def _save(self) -> None:
        records.save(self._state_dir, self._record)

    def _emit_stopped(self, name: str | None, report: ReapReport) -> None:
        self._emit({"event": "stopped", "name": name, "report": report_to_message(report)})

    def _emit(self, message: Message) -> None:
        _log.info("event %s", message)
        # Without a runner there is nobody to tell; the end of the command pipe says what to do.
        with contextlib.suppress(BrokenPipeError):
            write_all(self._events_fd, encode(message))


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 512):
            pass
