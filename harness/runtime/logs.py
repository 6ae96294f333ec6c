"""Reading server logs: the tail, and the line that names the first cause of a failure.

A vLLM line is ``(EngineCore pid=123) ERROR 11-30 16:12:01 [core.py:1136] text``; every line of a logged traceback
carries the same prefix, and the lines of several processes are interleaved. A crash may also be printed bare.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

# A log that grew beyond this is searched from its end: what ended the server is there.
_SEARCHED_BYTES = 8 << 20
# A longer line is cut: a dumped config or token list must not fill the memory, nor the terminal.
_LINE_BYTES = 4096

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(
    r"^(?:\((?P<process>[^()]+?) pid=(?P<pid>\d+)\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]]*\] ?)?"
)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Timeout)\b(?::|$)")
_PYDANTIC = re.compile(r"^(?:[\w.]+: )?\d+ validation errors? for ")
_FIELD = re.compile(r"^[\w.\[\]-]+$")
_CRASH = re.compile(
    r"^!+\s*Segfault encountered|^Fatal Python error: |^Segmentation fault|^terminate called |: error: |^error: "
    r"|^what\(\): |^\S+: command not found|No module named "
)
# Said by processes that failed because another one did, or while they were being ended.
_CONSEQUENCE = re.compile(
    r"[Ss]ee (?:root cause|stack trace|error logs?)|stack trace above|EngineDeadError|EngineCore encountered an issue"
    r"|died unexpectedly|died with exit code|KeyboardInterrupt|SystemExit|CancelledError|BrokenPipeError|EOFError"
    r"|ConnectionResetError|Connection (?:reset|closed) by peer|ContextTerminated|leaked (?:shared_memory|semaphore)"
    r"|process group has NOT been destroyed|Terminated|resource_tracker|psutil\.(?:ZombieProcess|NoSuchProcess)"
)
# Ordinary lines of others: uvicorn, Rust and NIXL loggers with a date, glog, Python warnings; and our own plugin's.
_ORDINARY = re.compile(
    r"^(?:INFO|WARNING|DEBUG):\s|^\d{4}-\d\d-\d\d[ T][\d:.,]+Z?\s+(?:\w+\s+)?(?:TRACE|DEBUG|INFO|WARN|WARNING)\b"
    r"|^[IW]\d{4} \d\d:\d\d|^\S+:\d+: \w*Warning: |^gate-plugin pid=\d+ (?:applied|not-applicable) "
)
# A Python or native frame. The signal handler's own, and those without a line number, name nothing.
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>[1-9]\d*), in (?P<name>[\w.~:]+)')
# Exceptions without a message, and crashes, say nothing without the place.
_WORDLESS = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Timeout):?$")
_QUIET_LEVELS = frozenset({"DEBUG", "INFO", "WARNING"})


@dataclass(frozen=True)
class RootError:
    """``line`` as the process said it, without its prefix; ``process`` its title, None when the line has none."""

    line: str
    process: str | None


def tail(path: Path, lines: int = 20, max_bytes: int = 16384) -> list[str]:
    """The last lines of a log, however large; at most ``max_bytes`` of it. Empty when there is no log."""
    try:
        text = _read_end(path, max_bytes)
    except FileNotFoundError:
        return []
    return [_clean(line) for line in text.splitlines()][-lines:]


def root_error(path: Path) -> RootError | None:
    """The first cause of a failure that the log shows; None when it shows none or does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _SEARCHED_BYTES))
            return find_root(_lines(iter(lambda: file.readline(_LINE_BYTES), b"")))
    except FileNotFoundError:
        return None


@dataclass
class _Process:
    """Where one process is in its log: inside a traceback, or inside a validation error that goes on."""

    in_traceback: bool = False
    # The innermost frame of the traceback so far.
    frame: str | None = None
    quiet: bool = False
    # A finalizer raised: Python prints the traceback and goes on, so it explains nothing.
    ignored: bool = False
    unfinished: RootError | None = None
    # An ERROR line that may turn out to be the heading of a traceback, which then speaks for it.
    heading: RootError | None = None


@dataclass
class _Found:
    """Candidates, best kind first; each kind keeps its first."""

    cause: RootError | None = None
    crash: RootError | None = None
    error_line: RootError | None = None
    consequence: RootError | None = None
    bare: RootError | None = None

    def best(self) -> RootError | None:
        return self.cause or self.crash or self.error_line or self.consequence or self.bare


@dataclass
class _Search:
    found: _Found = field(default_factory=_Found)
    processes: dict[str, _Process] = field(default_factory=dict)
    # A crash whose native frames are still to come.
    crashed: RootError | None = None

    def line(self, line: str) -> None:
        match = _PREFIX.match(line)
        assert match is not None
        text = line[match.end() :].rstrip()
        title, level = match["process"], match["level"]
        process = self.processes.setdefault(f"{title} {match['pid']}", _Process())
        if process.unfinished is not None and self._continues(process, process.unfinished, text):
            return
        if text.lstrip().startswith("Traceback (most recent call last)"):
            process.heading = None
            process.in_traceback = True
            process.frame = None
            process.quiet = level in _QUIET_LEVELS or process.ignored
            process.ignored = False
            return
        if not text:
            return
        if text.startswith("Exception ignored in"):
            self.settle(process)
            process.ignored = True
            process.in_traceback = False
            return
        self.settle(process)
        if process.in_traceback:
            if text[0] in " \t":
                process.frame = _place(text) or process.frame
                return
            process.in_traceback = False
            if _WORDLESS.match(text) and process.frame is not None:
                text = f"{text.rstrip(':')} (in {process.frame})"
            if not process.quiet:
                self._exception(process, title, text)
        elif level in ("ERROR", "CRITICAL"):
            process.heading = RootError(text, title)
        elif level is None:
            self._plain(process, title, text)

    def settle(self, process: _Process) -> None:
        """What was held back until the next line, is what it seemed."""
        if process.heading is not None:
            heading, process.heading = process.heading, None
            self._keep("error_line", heading)

    def _plain(self, process: _Process, title: str | None, text: str) -> None:
        """A line without a level: printed, or from a library."""
        if _EXCEPTION.match(text) or _PYDANTIC.match(text):
            self._exception(process, title, text)
        elif _CRASH.search(text) and not _ORDINARY.match(text):
            self._keep("crash", RootError(text, title))
            self.crashed = RootError(text, title)
        elif self.crashed is not None and (place := _place(text)) is not None:
            self._placed(self.crashed, place)
            self.crashed = None
        elif not _ORDINARY.match(text) and not _CONSEQUENCE.search(text) and text[0] not in " \t":
            # The last line of a process that says why and exits, so a later one replaces it.
            self.found.bare = RootError(text, title)

    def _placed(self, crashed: RootError, place: str) -> None:
        for kind in ("cause", "crash"):
            if getattr(self.found, kind) == crashed:
                setattr(self.found, kind, replace(crashed, line=f"{crashed.line} (in {place})"))

    def _exception(self, process: _Process, title: str | None, text: str) -> None:
        if _PYDANTIC.match(text):
            process.unfinished = RootError(text, title)
            return
        self._keep("cause", RootError(text, title))

    def _continues(self, process: _Process, head: RootError, text: str) -> bool:
        """A validation error says what is wrong below its head: a field name perhaps, then an indented message."""
        if _FIELD.match(text):
            process.unfinished = RootError(f"{head.line}: {text}", head.process)
            return True
        process.unfinished = None
        if text.startswith("  "):
            self._keep("cause", RootError(f"{head.line}: {text.strip()}", head.process))
            return True
        self._keep("cause", head)
        return False

    def _keep(self, kind: str, found: RootError) -> None:
        if _CONSEQUENCE.search(found.line):
            kind = "consequence"
        # The first of each kind; and a crash is as good a cause as an exception, whichever comes first.
        if kind == "crash" and self.found.cause is None:
            kind = "cause"
        if getattr(self.found, kind) is None:
            setattr(self.found, kind, found)


def _place(text: str) -> str | None:
    """``vllm/file.py:12 function`` of a frame; None for any other line."""
    frame = _FRAME.match(text)
    if frame is None:
        return None
    path = frame["file"]
    shown = path[path.rindex("/vllm/") + 1 :] if "/vllm/" in path else path.rpartition("/")[2]
    return f"{shown}:{frame['line']} {frame['name']}"


def find_root(lines: Iterable[str]) -> RootError | None:
    """`root_error` on lines that are already read; pure."""
    search = _Search()
    last_was_quiet = False
    for line in lines:
        search.line(line)
        match = _PREFIX.match(line)
        if line.strip():
            quiet = match is not None and match["level"] in _QUIET_LEVELS
            last_was_quiet = quiet or _ORDINARY.match(line) is not None
    if last_was_quiet:
        # It went on working after that line, so the line explains nothing.
        search.found.bare = None
    for process in search.processes.values():
        search.settle(process)
        if process.unfinished is not None:
            search._keep("cause", process.unfinished)
    return search.found.best()


def _lines(raw: Iterator[bytes]) -> Iterator[str]:
    """Clean lines; the rest of a line that was cut is dropped."""
    continued = False
    for piece in raw:
        if not continued:
            yield _clean(piece.decode(errors="replace"))
        continued = not piece.endswith(b"\n")


def _clean(line: str) -> str:
    return _COLOURS.sub("", line).rstrip("\r\n")


def _read_end(path: Path, max_bytes: int) -> str:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - max_bytes))
        text = file.read(max_bytes).decode(errors="replace")
    # The first line is only a piece of one.
    return text.partition("\n")[2] if size > max_bytes and "\n" in text else text
