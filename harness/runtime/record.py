"""The run record: what a later process needs to finish the job if this run cannot. One JSON file per live run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from harness.errors import Misconfigured
from harness.files import LARGEST_DATA_BYTES, read_bounded, remove_with_scratch, write_atomically
from harness.runtime.identity import ProcessId, host_identity


@dataclass(frozen=True)
class ServerEntry:
    """``process`` None: about to be started. It leads its own session, so its pid is the session id, too."""

    name: str
    process: ProcessId | None


@dataclass(frozen=True)
class RunRecord:
    """One live run. ``host``: see `host_identity`. ``started_at``: Unix time, for people.

    ``descendants`` are processes seen below the servers; one stays ours when its parents are gone and it has cleared
    its environment.
    """

    run_id: str
    marker: str
    runner: ProcessId
    host: str
    user: str
    run_dir: str
    started_at: float
    deployment: str = ""
    leases: tuple[str, ...] = ()
    supervisor: ProcessId | None = None
    servers: tuple[ServerEntry, ...] = ()
    descendants: tuple[ProcessId, ...] = ()

    def with_server(self, name: str, process: ProcessId | None) -> RunRecord:
        """The record with one server added, or its process filled in.

        An earlier process of that name is kept as a descendant: it may have left children in its session.
        """
        earlier = tuple(
            entry.process for entry in self.servers if entry.name == name and entry.process not in (None, process)
        )
        servers = (*(entry for entry in self.servers if entry.name != name), ServerEntry(name, process))
        kept = tuple(sorted({*self.descendants, *(process for process in earlier if process is not None)}))
        return dataclasses.replace(self, servers=servers, descendants=kept)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        """Raises ``ValueError``, ``TypeError`` or ``KeyError`` for anything that `to_json` did not write."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise TypeError("a run record is a JSON object")
        supervisor = data.pop("supervisor")
        return cls(
            runner=ProcessId(**data.pop("runner")),
            supervisor=None if supervisor is None else ProcessId(**supervisor),
            servers=tuple(
                ServerEntry(entry["name"], None if entry["process"] is None else ProcessId(**entry["process"]))
                for entry in data.pop("servers")
            ),
            descendants=tuple(ProcessId(**process) for process in data.pop("descendants")),
            leases=tuple(data.pop("leases")),
            **data,
        )


@dataclass(frozen=True)
class LiveRecords:
    """``unreadable``: files that hold no record; they are reported, never ignored or deleted."""

    records: tuple[RunRecord, ...]
    unreadable: tuple[Path, ...]


def record_path(state_dir: Path, run_id: str) -> Path:
    return state_dir / "live" / f"{run_id}.json"


def save(state_dir: Path, record: RunRecord) -> None:
    path = record_path(state_dir, record.run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, record.to_json())


def read(path: Path) -> RunRecord | None:
    """None when the file is gone; raises like `RunRecord.from_json` when it holds something else."""
    try:
        return RunRecord.from_json(read_bounded(path, LARGEST_DATA_BYTES))
    except FileNotFoundError:
        return None
    except Misconfigured as error:
        raise ValueError(str(error)) from error


def read_all(state_dir: Path) -> LiveRecords:
    """Every record of ``state_dir``, by run id."""
    records: list[RunRecord] = []
    unreadable: list[Path] = []
    for path in sorted((state_dir / "live").glob("*.json")):
        try:
            record = read(path)
        except (ValueError, TypeError, KeyError, OSError):
            unreadable.append(path)
            continue
        if record is not None:
            records.append(record)
    return LiveRecords(tuple(records), tuple(unreadable))


def remove(state_dir: Path, run_id: str) -> None:
    remove_with_scratch(record_path(state_dir, run_id))


def from_another_boot(record: RunRecord) -> bool:
    """Its processes ended with the machine."""
    return record.host.partition("/")[0] != host_identity().partition("/")[0]


def from_here(record: RunRecord) -> bool:
    """Whether its pids mean anything in this pid namespace."""
    return record.host == host_identity()
