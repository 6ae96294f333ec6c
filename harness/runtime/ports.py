"""Port runs: contiguous, below the ephemeral range, kept apart by a locked registry, checked again before launch."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from filelock import FileLock

from harness.errors import Infra, Misconfigured
from harness.files import LARGEST_DATA_BYTES, read_bounded, write_atomically
from harness.plan.types import PortRun
from harness.runtime.identity import ProcessId, alive, command_line, own_identity
from harness.runtime.leases import socket_name
from harness.runtime.record import record_path
from harness.runtime.state_folder import prepare

_LOWEST = 20000
_FEWEST = 1000
_DEFAULT_EPHEMERAL = 32768
_REGISTRY_TIMEOUT_S = 30.0
_HOSTS = ("127.0.0.1", "0.0.0.0")


@dataclass(frozen=True)
class Taken:
    """One entry of the registry: ``length`` ports from ``first`` belong to ``run_id`` while ``owner`` lives."""

    run_id: str
    owner: ProcessId
    purpose: str
    first: int
    length: int


def port_span(ephemeral_low: int) -> range:
    """The ports to choose from: below the range that the kernel gives to outgoing connections.

    On a host whose range starts so low that nothing is left, the usual span is used anyway: the bind check and the
    check before launch then have to find the collisions.
    """
    if ephemeral_low - _LOWEST >= _FEWEST:
        return range(_LOWEST, ephemeral_low)
    if ephemeral_low >= 1024 + 2 * _FEWEST:
        return range(ephemeral_low - _FEWEST, ephemeral_low)
    return range(_LOWEST, _DEFAULT_EPHEMERAL)


def choose(
    runs: Sequence[PortRun], span: range, start: int, taken: Sequence[Taken], is_free: Callable[[int], bool]
) -> dict[str, int]:
    """First port by purpose, or `Infra` when they do not fit; pure but for ``is_free``.

    Searched upwards from ``start`` and around, so two runs that start together rarely look at the same ports.
    """
    reserved = {port for entry in taken for port in range(entry.first, entry.first + entry.length)}
    chosen: dict[str, int] = {}
    candidate = span.start + start % len(span)
    for run in runs:
        for _ in range(len(span)):
            ports = range(candidate, candidate + run.length)
            if ports.stop > span.stop:
                candidate = span.start
            elif not reserved.isdisjoint(ports) or not all(is_free(port) for port in ports):
                candidate += 1
            else:
                chosen[run.purpose] = candidate
                reserved.update(ports)
                candidate = ports.stop
                break
        else:
            raise Infra(
                f"no {run.length} free ports in a row for {run.purpose} between {span.start} and {span.stop - 1}; "
                "see which programs listen there (`ss -ltnp`)"
            )
    return chosen


@contextlib.contextmanager
def lease_ports(runs: Sequence[PortRun], state_dir: Path, run_id: str) -> Iterator[dict[str, int]]:
    """Reserve every run of ports for the time of the block: first port by purpose.

    The registry keeps apart the runs of one state folder, a machine-wide name for each port those of different ones: a
    port that is chosen and not yet bound looks free to everybody else.
    """
    folder = prepare(state_dir)
    start = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4])
    span = port_span(_ephemeral_low())
    with contextlib.ExitStack() as names:
        named: set[int] = set()

        def is_free(port: int) -> bool:
            if port not in named and _bindable(port) and _take_name(port, names):
                named.add(port)
            return port in named

        with _registry(folder) as entries:
            chosen = choose(runs, span, start, entries, is_free)
            owner = own_identity()
            entries += [Taken(run_id, owner, run.purpose, chosen[run.purpose], run.length) for run in runs]
        try:
            yield chosen
        finally:
            with _registry(folder) as entries:
                entries[:] = [entry for entry in entries if entry.run_id != run_id]


def port_key(port: int) -> str:
    """What `harness.runtime.leases.socket_name` makes the machine-wide name of a reserved port of."""
    return f"port {port}"


def _take_name(port: int, names: contextlib.ExitStack) -> bool:
    """Bind the name of ``port`` until ``names`` ends; False when another run has it."""
    name = names.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    try:
        name.bind(socket_name(port_key(port)))
    except OSError:
        return False
    return True


def check_still_free(host: str, port: int) -> None:
    """Right before launch: raises `Infra` naming the stranger when something already uses ``port``.

    A server that is launched all the same would die late, or worse, the stranger would answer in its place.
    """
    hosts = tuple(dict.fromkeys((*_HOSTS, host)))
    if all(_can_bind(each, port) for each in hosts) and not _answers(host, port):
        return
    raise Infra(f"port {port} on {host} is already in use by {_stranger(port)}; end it or let it, and run again")


@contextlib.contextmanager
def _registry(folder: Path) -> Iterator[list[Taken]]:
    """The entries whose owner still lives, locked; what the block leaves in the list is written back."""
    path = folder / "ports.json"
    with FileLock(folder / "ports.lock", timeout=_REGISTRY_TIMEOUT_S, mode=0o666, thread_local=False):
        try:
            data = json.loads(read_bounded(path, LARGEST_DATA_BYTES))
        except FileNotFoundError:
            data = []
        except (ValueError, Misconfigured) as error:
            raise Infra(f"the port registry {path} cannot be read ({error}); remove it when no run is on") from error
        entries = [Taken(**{**entry, "owner": ProcessId(**entry["owner"])}) for entry in data]
        # A killed runner's servers may still hold its ports until its record is gone.
        entries = [entry for entry in entries if alive(entry.owner) or record_path(folder, entry.run_id).exists()]
        yield entries
        write_atomically(path, json.dumps([asdict(entry) for entry in entries], indent=1))


def _ephemeral_low() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def _bindable(port: int) -> bool:
    return all(_can_bind(host, port) for host in _HOSTS)


def _can_bind(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier run in TIME_WAIT are no obstacle, a listener is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def _stranger(port: int) -> str:
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        connections = []
    for connection in connections:
        listening = connection.status == psutil.CONN_LISTEN
        if listening and connection.laddr and connection.laddr.port == port and connection.pid is not None:
            return f"pid {connection.pid} ({command_line(connection.pid)[:120] or 'its command line is hidden'})"
    return "a process that this user may not see"
