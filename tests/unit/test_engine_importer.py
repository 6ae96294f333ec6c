"""The warm launcher's protocol, with a stand-in vllm package in place of the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.engine.interpreter import ENGINE_SIDE

ENTRY = """
import multiprocessing, os, signal, sys
from vllm.system_utils import get_mp_context
print("imported")

def main():
    match sys.argv[1]:
        case "exit": raise SystemExit(int(sys.argv[2]))
        case "say": raise SystemExit("a sentence")
        case "crash": raise RuntimeError("weights missing from checkpoint")
        case "killed": os.kill(os.getpid(), signal.SIGKILL)
        case "environment":
            print(os.environ.get("VLLM_PORT"), os.environ.get("GONE"), os.getsid(0) == os.getpid())
            print(get_mp_context().get_start_method(), __import__("vllm.plugins").plugins.plugins_loaded)
            for line in sys.stdin: print("stdin is open")
        case "wait": signal.pause()
"""

PLUGINS = """
plugins_loaded = False
def load_general_plugins():
    global plugins_loaded
    plugins_loaded = True
"""


class Client:
    """The harness's side of the two pipes."""

    def __init__(self, commands_fd: int, events_fd: int, folder: Path) -> None:
        self.commands_fd = commands_fd
        self.events = os.fdopen(events_fd)
        self.folder = folder

    def event(self) -> dict[str, Any]:
        line = self.events.readline()
        assert line, (self.folder / "importer.log").read_text()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def send(self, **command: object) -> None:
        os.write(self.commands_fd, json.dumps(command).encode() + b"\n")

    def start(self, *argv: str, env: dict[str, str] | None = None, unset: tuple[str, ...] = ()) -> None:
        self.send(op="start", name="server", argv=argv, env=env or {}, unset=unset, log=str(self.folder / "server.log"))

    def outcome(self, *argv: str) -> tuple[int, str]:
        """Return code and log of a server that ends by itself."""
        (self.folder / "server.log").unlink(missing_ok=True)
        self.start(*argv)
        started, exited = self.event(), self.event()
        assert (started["event"], exited["event"]) == ("started", "exited")
        assert started["pid"] == exited["pid"]
        return exited["returncode"], (self.folder / "server.log").read_text()


@contextmanager
def importer(folder: Path, *options: str, entry: str = ENTRY) -> Iterator[tuple[Client, subprocess.Popen[bytes]]]:
    files = {
        "vllm/plugins.py": PLUGINS,
        "vllm/system_utils.py": "import multiprocessing\nget_mp_context = multiprocessing.get_context\n",
        "vllm/entrypoints/launchers/api_server/entry.py": entry,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command_read, command_write = os.pipe()
    event_read, event_write = os.pipe()
    with (folder / "importer.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, str(ENGINE_SIDE / "importer.py")),
                *("--commands-fd", str(command_read), "--events-fd", str(event_write), *options),
            ],
            env={"PATH": os.defpath, "PYTHONPATH": str(folder), "GONE": "still here", "OMP_NUM_THREADS": "1"},
            pass_fds=(command_read, event_write),
            stdout=log,
            stderr=log,
        )
    os.close(command_read)
    os.close(event_write)
    client = Client(command_write, event_read, folder)
    try:
        yield client, process
    finally:
        process.kill()
        process.wait()
        client.events.close()
        if client.commands_fd >= 0:
            os.close(client.commands_fd)


def test_servers_report_how_they_ended_and_write_their_own_log(tmp_path: Path) -> None:
    with importer(tmp_path) as (client, _process):
        ready = client.event()
        assert (ready["event"], ready["threads"]) == ("ready", 1)
        assert any(line.startswith("uvloop: ModuleNotFoundError") for line in ready["missing"])
        assert client.outcome("exit", "0") == (0, "")
        assert client.outcome("exit", "3") == (3, "")
        assert client.outcome("say") == (1, "a sentence\n")
        assert client.outcome("killed") == (-9, "")
        returncode, log = client.outcome("crash")
        assert returncode == 1
        assert log.splitlines()[-1] == "RuntimeError: weights missing from checkpoint"
        assert (tmp_path / "importer.log").read_text() == "imported\n"


def test_a_server_has_its_own_session_environment_and_forks_its_engine(tmp_path: Path) -> None:
    with importer(tmp_path) as (client, _process):
        client.event()
        client.start("environment", env={"VLLM_PORT": "8100"}, unset=("GONE",))
        assert [client.event()["event"], client.event()["event"]] == ["started", "exited"]
        assert (tmp_path / "server.log").read_text().split() == ["8100", "None", "True", "fork", "False"]


@pytest.mark.parametrize(
    ("env", "unset", "named"),
    [({"OMP_NUM_THREADS": "2"}, (), "OMP_NUM_THREADS"), ({}, ("PYTHONPATH",), "PYTHONPATH")],
)
def test_a_variable_that_was_read_at_import_cannot_be_changed(
    tmp_path: Path, env: dict[str, str], unset: tuple[str, ...], named: str
) -> None:
    with importer(tmp_path) as (client, _process):
        client.event()
        client.start("exit", "0", env=env, unset=unset)
        refusal = client.event()
        assert (refusal["event"], refusal["name"]) == ("error", "server")
        assert refusal["message"].startswith(f"{named} must have the same value")
        client.start("exit", "0", env={"OMP_NUM_THREADS": "1"})
        assert client.event()["event"] == "started"


def test_forking_is_refused_when_the_import_left_a_thread(tmp_path: Path) -> None:
    entry = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n" + ENTRY
    with importer(tmp_path, entry=entry) as (client, _process):
        assert client.event()["threads"] == 2
        client.start("exit", "0")
        assert client.event()["message"].startswith("2 threads after the import: forking is not safe")


def test_nonsense_is_answered_and_survived(tmp_path: Path) -> None:
    with importer(tmp_path) as (client, _process):
        client.event()
        os.write(client.commands_fd, b"nonsense\n[]\n")
        client.send(op="stop")
        client.send(op="start", name="server")
        client.send(op="start", name="server", argv=[], env={}, unset=[], log=str(tmp_path / "absent" / "log"))
        messages = [client.event()["message"] for _ in range(5)]
        assert [message.split(":")[0] for message in messages] == [
            "not a command",
            "not a command",
            "unknown op 'stop'",
            "cannot start",
            "cannot start",
        ]
        assert client.outcome("exit", "0") == (0, "")


@pytest.mark.parametrize("how", ["quit", "end"])
def test_the_importer_leaves_without_touching_its_servers(tmp_path: Path, how: str) -> None:
    with importer(tmp_path) as (client, process):
        client.event()
        client.start("wait")
        pid = client.event()["pid"]
        try:
            if how == "quit":
                client.send(op="quit")
            else:
                os.close(client.commands_fd)
                client.commands_fd = -1
            assert process.wait() == 0
            assert client.events.read() == ""
            os.kill(pid, 0)
        finally:
            os.kill(pid, 9)


def test_an_architecture_that_the_engine_does_not_have_is_reported_not_fatal(tmp_path: Path) -> None:
    registry = tmp_path / "vllm" / "model_executor" / "models" / "registry.py"
    registry.parent.mkdir(parents=True)
    registry.write_text(
        "class Lazy:\n    def load_model_cls(self): return int\n"
        "class ModelRegistry:\n    models = {'Known': Lazy()}\n"
        "    register_model = staticmethod(lambda name, model: print('registered', name, model.__name__))\n"
    )
    with importer(tmp_path, "--architectures", "Known,Unknown") as (client, _process):
        missing = client.event()["missing"]
        assert "Unknown: KeyError: 'Unknown'" in missing
        assert not any(line.startswith("Known") for line in missing)
        assert "registered Known int" in (tmp_path / "importer.log").read_text()
