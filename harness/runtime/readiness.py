"""Waiting for servers: conditions are objects, and there is one loop, which notices a dead child at once.

    ready = all_of(HttpHealth("decode-0", url, log), ModelListed("decode-0", url, "m", log))
    wait([ready, ...], deadline, servers.check)

Readiness is not liveness: a vLLM API server whose engine died may go on answering /health. `Servers.watch` sees that.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx

from harness.errors import EngineFailed
from harness.runtime.deadline import Deadline
from harness.runtime.logs import root_error, tail

_ASK_TIMEOUT_S = 2.0
# A list of models is a few hundred bytes; an endless page must not fill the memory.
_PAGE_LIMIT_BYTES = 1 << 20
# What a ZeroMQ socket sends on every connection before it has heard anything: the signature, and not a byte more.
_ZMTP_SIGNATURE_BYTES = 10


@dataclass(frozen=True)
class Seen:
    """One look at a condition. ``what`` is the observation, for the message when time runs out."""

    ok: bool
    what: str


class Condition(Protocol):
    """Something to wait for. ``look`` may block for as long as a request takes and raises nothing."""

    @property
    def subject(self) -> str:
        """Whose condition this is, and what: ``decode-0: /health answers``."""

    @property
    def log(self) -> Path | None: ...

    def look(self, deadline: Deadline) -> Seen: ...


class NotReady(EngineFailed):
    """A condition did not hold in time. ``subject``: which; ``seen``: the last observation."""

    def __init__(self, subject: str, seen: str, budget_s: float, log: Path | None) -> None:
        root = root_error(log) if log is not None else None
        lines = tail(log, 5) if log is not None and root is None else []
        evidence = f"; its log says: {root.line}" if root else f"; its log ends: {' | '.join(lines)}" if lines else ""
        where = f"; read {log}" if log is not None else ""
        super().__init__(
            f"not ready after {budget_s:.0f} s: {subject}; last seen: {seen}{evidence}{where}",
            log=log,
            root_line=None if root is None else root.line,
        )
        self.subject = subject
        self.seen = seen


@dataclass(frozen=True)
class HttpHealth:
    """GET ``url``/health answers 2xx."""

    name: str
    url: str
    log: Path | None = None

    @property
    def subject(self) -> str:
        return f"{self.name}: {self.url}/health answers"

    def look(self, deadline: Deadline) -> Seen:
        return _get(f"{self.url}/health", deadline, lambda _: Seen(True, "healthy"))


@dataclass(frozen=True)
class RouterUp:
    """The router answers; it says nothing about its backends, which have conditions of their own."""

    name: str
    url: str
    log: Path | None = None
    path: str = "/health"

    @property
    def subject(self) -> str:
        return f"{self.name}: {self.url}{self.path} answers"

    def look(self, deadline: Deadline) -> Seen:
        return _get(f"{self.url}{self.path}", deadline, lambda _: Seen(True, "up"))


@dataclass(frozen=True)
class ModelListed:
    """GET /v1/models names ``model``: the server on this port is the one that was started."""

    name: str
    url: str
    model: str
    log: Path | None = None

    @property
    def subject(self) -> str:
        return f"{self.name}: {self.url}/v1/models names {self.model}"

    def look(self, deadline: Deadline) -> Seen:
        return _get(f"{self.url}/v1/models", deadline, self._judge)

    def _judge(self, response: httpx.Response) -> Seen:
        try:
            names = [entry["id"] for entry in response.json()["data"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return Seen(False, f"not a model list: {response.text[:200]}")
        return Seen(self.model in names, f"models {', '.join(map(str, names)) or 'none'}")


@dataclass(frozen=True)
class TcpAnswers:
    """The NIXL side channel of one rank, a ZeroMQ socket: it accepts and sends its greeting.

    ``greeting`` False: accepting is enough (any TCP server).
    """

    name: str
    host: str
    port: int
    log: Path | None = None
    greeting: bool = True

    @property
    def subject(self) -> str:
        return f"{self.name}: side channel {self.host}:{self.port} answers"

    def look(self, deadline: Deadline) -> Seen:
        timeout_s = max(0.05, min(_ASK_TIMEOUT_S, deadline.remaining()))
        first = b""
        try:
            with socket.create_connection((self.host, self.port), timeout=timeout_s) as connection:
                if not self.greeting:
                    return Seen(True, "accepts")
                connection.settimeout(timeout_s)
                while len(first) < _ZMTP_SIGNATURE_BYTES and (more := connection.recv(64)):
                    first += more
        except OSError as error:
            return Seen(False, f"{type(error).__name__}: {error}")
        # 0xFF, eight bytes of length, 0x7F.
        if len(first) >= _ZMTP_SIGNATURE_BYTES and first[0] == 0xFF and first[9] == 0x7F:
            return Seen(True, "greets")
        return Seen(False, f"is no ZeroMQ socket, sent {first[:16]!r}")


@dataclass(frozen=True)
class SmokeCompletion:
    """One completion through the whole path: ``send`` returns what it got, or raises what it likes from httpx.

    ``send`` gets the seconds it may take. An answer it judges wrong, it returns as ``Seen(False, ...)``.
    """

    name: str
    send: Callable[[float], Seen]
    log: Path | None = None

    @property
    def subject(self) -> str:
        return f"{self.name}: one completion"

    def look(self, deadline: Deadline) -> Seen:
        try:
            return self.send(max(0.05, deadline.remaining()))
        except httpx.HTTPError as error:
            return Seen(False, f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class _AllOf:
    parts: tuple[Condition, ...]

    @property
    def subject(self) -> str:
        return "; ".join(part.subject for part in self.parts)

    @property
    def log(self) -> Path | None:
        return self.parts[0].log

    def look(self, deadline: Deadline) -> Seen:
        seen = Seen(True, "")
        for part in self.parts:
            seen = part.look(deadline)
            if not seen.ok:
                return Seen(False, f"{part.subject}: {seen.what}")
        return seen


def all_of(*parts: Condition) -> Condition:
    """Every part holds, asked in this order; a later one is not asked before the earlier ones hold."""
    return _AllOf(parts)


def wait(
    conditions: Sequence[Condition], deadline: Deadline, alive: Callable[[], None], *, poll_s: float = 0.1
) -> None:
    """Until all ``conditions`` hold, each asked on its own so that a hanging one hides nothing.

    ``alive`` raises when a child has died, which ends the wait at once; it is called every ``poll_s``. Raises
    `NotReady` at the deadline.
    """
    budget_s = deadline.remaining()
    stop = threading.Event()
    changed = threading.Semaphore(0)
    watchers = [_Watcher(condition, deadline, stop, changed, poll_s) for condition in conditions]
    for watcher in watchers:
        watcher.start()
    try:
        while True:
            alive()
            pending = [watcher for watcher in watchers if not watcher.seen.ok]
            if not pending:
                return
            if deadline.expired:
                late = pending[0]
                raise NotReady(late.condition.subject, late.seen.what, budget_s, late.condition.log)
            for watcher in pending:
                # Asked in this order: one that ends in between has said its last word by then.
                if not watcher.is_alive() and not watcher.seen.ok and not deadline.expired:
                    raise RuntimeError(f"the check of {watcher.condition.subject} broke off; its traceback is above")
            changed.acquire(timeout=min(poll_s, deadline.remaining()))
    finally:
        stop.set()


class _Watcher(threading.Thread):
    """Asks one condition until it holds. A daemon: a request that hangs must not keep the runner from ending."""

    def __init__(
        self,
        condition: Condition,
        deadline: Deadline,
        stop: threading.Event,
        changed: threading.Semaphore,
        poll_s: float,
    ) -> None:
        super().__init__(daemon=True, name=f"ready? {condition.subject[:60]}")
        self.condition = condition
        self.seen = Seen(False, "nothing yet")
        self._deadline = deadline
        self._stop_asking = stop
        self._changed = changed
        self._poll_s = poll_s

    def run(self) -> None:
        while not self._stop_asking.is_set() and not self._deadline.expired:
            self.seen = self.condition.look(self._deadline)
            if self.seen.ok:
                self._changed.release()
                return
            self._stop_asking.wait(self._poll_s)


def _get(url: str, deadline: Deadline, judge: Callable[[httpx.Response], Seen]) -> Seen:
    """One GET, straight to the server: a proxy from the environment would answer in its place."""
    timeout_s = max(0.05, min(_ASK_TIMEOUT_S, deadline.remaining()))
    try:
        # Without verification no certificates are loaded, which would cost more CPU than the request. It is plain HTTP.
        with (
            httpx.Client(trust_env=False, verify=False, timeout=timeout_s) as client,
            client.stream("GET", url) as streamed,
        ):
            body = bytearray()
            # httpx bounds each read, not the answer: a byte now and then must not look like a healthy server for ever.
            until_s = time.monotonic() + timeout_s
            for chunk in streamed.iter_bytes():
                body += chunk
                if len(body) > _PAGE_LIMIT_BYTES:
                    return Seen(False, f"{url} sent more than {_PAGE_LIMIT_BYTES} bytes")
                if time.monotonic() > until_s:
                    return Seen(False, f"{url} did not end its answer within {timeout_s:.1f} s")
            response = httpx.Response(streamed.status_code, content=bytes(body))
    except httpx.HTTPError as error:
        return Seen(False, f"{type(error).__name__}: {error}")
    if not response.is_success:
        return Seen(False, f"HTTP {response.status_code}: {response.text[:200]}")
    return judge(response)
