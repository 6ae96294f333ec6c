"""What a reference server answered, kept for later sessions of the same invocation that would start an equal one.

Only what the *reference* said is ever reused, never what is judged, and only to pass: a run that would fail against
kept answers starts its own reference (`harness.run.execute`). An invocation is a process, usually nox; what was kept
for one that has ended is removed by the next run that looks.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.drive.client import Encoded, Sending, completion_body
from harness.errors import Misconfigured
from harness.facts import Fact, RequestFacts, RunFacts, ServerFacts
from harness.files import read_bounded, write_atomically
from harness.plan.reference import reference_of
from harness.plan.types import Plan, ServerPlan
from harness.run.request import Prepared, Request
from harness.runtime.identity import ProcessId, alive, host_identity

# Half a megabyte is usual; pages of an engine that counts by request could be any size, and the state folder is small.
_LARGEST_BYTES = 16 << 20
_MOST_KEPT = 16
# An invocation of another pid namespace cannot be seen to have ended.
_OLDEST_S = 24 * 3600.0

# Of this run alone: the ports it leased, and the name under which the model is served.
_OF_THIS_RUN = frozenset({"--port", "--served-model-name", "--data-parallel-rpc-port"})
# The devices of the lease; their kind counts.
_DEVICES = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"})
# Different in each session of one nox, and no matter to an engine that is started by its full path.
_OF_THIS_SESSION = frozenset({"PATH", "PWD", "OLDPWD", "SHLVL", "_"})


class KeptReference(Fact):
    """The reference part of run ``run_id``: what ``facts.json`` of that run holds of it."""

    run_id: str
    servers: tuple[ServerFacts, ...]
    requests: tuple[RequestFacts, ...]


def key_of(server: ServerPlan, plan: Plan, prepared: Prepared, inherited: Mapping[str, str]) -> str:
    """One hash over everything that decides what the reference ``server`` answers and counts. Pure.

    Only hashed, never stored: the environment may hold secrets.
    """
    workload = prepared.workload
    kept = {name: value for name, value in inherited.items() if _bends(name) and name not in server.removed}
    decides = {
        "engine": [str(prepared.engine.python), prepared.engine.fingerprint],
        "argv": _argv(server),
        "environment": {name: value for name, value in (kept | server.environment).items() if name not in _DEVICES},
        "models": plan.models.provenance,
        "launch": plan.launch,
        "devices": [[device.name, device.total_bytes, device.capability] for device in server.devices],
        "workload": [workload.hash, workload.concurrency],
        # The sampling of every request, as this harness words it; the prompts are in the hash above.
        "sampling": completion_body(
            Encoded(workload.smoke, ""),
            Sending("", "reference", workload.ignore_eos, 0.0, top_logprobs=workload.top_logprobs),
        ),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


def _argv(server: ServerPlan) -> list[str]:
    before = ("", *server.argv)
    return [argument for option, argument in zip(before, server.argv, strict=False) if option not in _OF_THIS_RUN]


def _bends(name: str) -> bool:
    return name not in _OF_THIS_SESSION and not name.startswith(("NOX_", "SPEC_GATE_"))


@dataclass(frozen=True)
class Shelf:
    """Where one invocation keeps what the reference of one key answered."""

    folder: Path
    invocation: ProcessId
    key: str

    @property
    def path(self) -> Path:
        boot, namespace = _here()
        return self.folder / f"{boot}_{namespace}_{self.invocation.pid}_{self.invocation.create_time}_{self.key}.json"

    def find(self) -> KeptReference | None:
        """What was kept; None when there is nothing, or nothing that can be read."""
        try:
            return KeptReference.model_validate_json(read_bounded(self.path, _LARGEST_BYTES))
        except (OSError, ValueError, Misconfigured):
            return None

    def keep(self, run_id: str, facts: RunFacts) -> None:
        """Keep the reference part of ``facts``, of a run that passed. A failed write only costs later sessions time."""
        kept = KeptReference(
            run_id=run_id,
            servers=tuple(server for server in facts.servers if server.stage == "reference"),
            requests=tuple(request for request in facts.requests if request.stage == "reference"),
        )
        text = kept.model_dump_json()
        if len(text) > _LARGEST_BYTES:
            return
        # Answers of a private model are nobody else's business.
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            write_atomically(self.path, text)
            self.path.chmod(0o600)
        _sweep(self.folder)


def shelf_of(request: Request, prepared: Prepared, plan: Plan) -> Shelf | None:
    """None where nothing is shared: no reference server, no invocation, or a trace of what the reference imports."""
    reference = reference_of(plan)
    if reference is None or request.invocation is None or request.extra_environment:
        return None
    key = key_of(reference, plan, prepared, request.inherited)
    return Shelf(_folder(request.locations.state), request.invocation, key)


def _here() -> tuple[str, str]:
    """This boot and this pid namespace, as words of a file name."""
    boot, _, namespace = host_identity().partition("/")
    return boot, "".join(character for character in namespace if character.isalnum())


def _folder(state: Path) -> Path:
    return state / "references"


def sweep(state: Path) -> None:
    """Remove what no session will ask for again; every run does, whether it shares a reference or not."""
    _sweep(_folder(state))


def _sweep(folder: Path) -> None:
    """Remove what was kept for invocations that have ended, what is old, and the oldest beyond the most."""
    left: list[tuple[float, Path]] = []
    # Another run may sweep at the same time.
    with suppress(OSError):
        for path in folder.glob("*.json"):
            written = path.stat().st_mtime
            if _ended(path.stem) or time.time() - written > _OLDEST_S:
                path.unlink()
            else:
                left.append((written, path))
        # A writer that was killed left these.
        for path in folder.glob(".*.new"):
            if time.time() - path.stat().st_mtime > _OLDEST_S:
                path.unlink()
        for _, path in sorted(left)[:-_MOST_KEPT]:
            path.unlink()


def _ended(stem: str) -> bool:
    words = stem.split("_")
    boot, namespace = _here()
    if len(words) != 5 or not (words[2].isdigit() and words[3].isdigit()):
        return True
    if words[0] != boot:
        return True
    return words[1] == namespace and not alive(ProcessId(int(words[2]), int(words[3])))
