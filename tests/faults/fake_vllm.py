"""A stand-in for the Python of an engine environment: says what it is, and is a server that counts right or goes wrong.

    PYTHON -S fake_vllm.py -c LOOK | .../probe.py | .../importer.py --commands-fd N | -m vllm.entrypoints... ARGV

Standard library only, so that a server is up in a tenth of a second. FAKE_FOLDER names a folder with ``answers.json``
(what every prompt must get of a prefill/decode pair, computed by the zoo), ``paired.json`` (the same of one server) and
``faults.json`` (what goes wrong, by role); every process that it starts is written to ``pids`` there.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("FAKE_FOLDER", "/nonexistent"))
MIB = 1 << 20
Counters = dict[str, float]


def note_pid() -> None:
    """Write down who this is, (pid, start time), so that a test finds it whatever it makes of itself."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    with (FOLDER / "pids").open("a") as pids:
        pids.write(f"{os.getpid()} {started}\n")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Fake:
    """One server: its options, what goes wrong with it, and what it has counted."""

    def __init__(self, argv: list[str]) -> None:
        values = dict(pairwise(argv))
        self.port = int(values["--port"])
        self.model = values["--model"]
        self.served = values["--served-model-name"]
        self.max_len = values["--max-model-len"]
        self.block_size = values.get("--block-size", "16")
        self.ranks = values.get("--tensor-parallel-size", "1")
        self.balanced, self.expert_parallel = "--enable-eplb" in argv, "--enable-expert-parallel" in argv
        self.transfer = json.loads(values.get("--kv-transfer-config", "{}"))
        self.speculation = json.loads(values.get("--speculative-config", "{}"))
        alone = "server" if self.speculation else "reference"
        self.role = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(self.transfer.get("kv_role", ""), alone)
        self.faults: dict[str, Any] = json.loads((FOLDER / "faults.json").read_text()).get(self.role, {})
        self.answers = json.loads((FOLDER / ("answers.json" if self.transfer else "paired.json")).read_text())
        self.k = int(self.speculation.get("num_speculative_tokens", 0))
        self.side_channel = int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT", 0))
        self.asked = 0
        self.counted = {"served": 0, "prompt": 0, "drafts": 0, "draft_tokens": 0, "accepted": 0, "failed": 0}
        self.positions = [0] * self.k
        self.lock = threading.Lock()
        self.children: list[int] = []

    def introduce(self) -> None:
        """The start-up lines that `harness.measure.effective` reads."""
        config = self.transfer
        moved = (
            f"'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector', "
            f"kv_buffer_device='{config['kv_buffer_device']}', kv_role='{config['kv_role']}', "
            f"kv_load_failure_policy='{config['kv_load_failure_policy']}')"
            if config
            else f"'enable_expert_parallel': {self.expert_parallel}"
        )
        say(
            f"(APIServer pid={os.getpid()}) INFO 11-30 12:00:00 [api_utils.py:1] non-default args: "
            f"{{'block_size': {self.block_size}, {moved}}}"
        )
        drafter = self.speculation.get("model")
        drafts = (
            f"SpeculativeConfig(method='{self.speculation['method']}', model={drafter and repr(drafter)}, "
            f"num_spec_tokens={self.k})"
            if self.speculation
            else "None"
        )
        engine = f"(EngineCore pid={os.getpid()}) INFO 11-30 12:00:00"
        say(
            f"{engine} [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='{self.model}', "
            f"speculative_config={drafts}, max_seq_len={self.max_len}, tensor_parallel_size={self.ranks}, "
            "pipeline_parallel_size=1, data_parallel_size=1"
        )
        if config:
            say(f"{engine} [factory.py:1] Creating v1 connector with name: NixlPullConnector")
            say(f"{engine} [worker.py:1] Registering KV_Caches. kv_buffer_device: {config['kv_buffer_device']}")

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self.answers.get(request["prompt"])
        tokens = int(request["max_tokens"])
        prompt_ids = answer["prompt_ids"] if answer else [1] * 8
        token_ids = answer["token_ids"][:tokens] if answer else [300] * tokens
        if request["prompt"] in self.faults.get("differs", ()):
            place = min(int(self.faults.get("differs_at", 0)), tokens - 1)
            token_ids = [*token_ids[:place], 1 + token_ids[place], *token_ids[place + 1 :]]
        with self.lock:
            self.counted["served"] += 1
            self.counted["prompt"] += len(prompt_ids)
            if self.balanced and self.counted["served"] == int(self.faults.get("rearranges_at", 6)):
                say("(EngineCore pid=1) INFO 11-30 12:00:00 [eplb_state.py:1] Rearranging experts sync mode ...")
            if self.role in ("decode", "server"):
                for name in ("drafts", "draft_tokens", "accepted"):
                    self.counted[name] += answer[name] if answer else 1
                if answer:
                    self.positions = [a + b for a, b in zip(self.positions, answer["per_position"], strict=True)]
        transfer = {"do_remote_prefill": True, "remote_block_ids": [0]} if self.role == "prefill" else None
        choice = {"index": 0, "text": "x", "token_ids": token_ids, "prompt_token_ids": prompt_ids}
        return {
            "model": self.served,
            "choices": [{**choice, "finish_reason": "length"}],
            "usage": {"prompt_tokens": len(prompt_ids), "completion_tokens": len(token_ids)},
            "kv_transfer_params": transfer,
        }

    def metrics(self) -> str:
        with self.lock:
            count, positions = dict(self.counted), list(self.positions)
        if self.faults.get("metrics_reset") and self.asked > int(self.faults["metrics_reset"]):
            count["served"] = 0
        decode = self.role == "decode"
        lines = {
            'request_success_total{engine="0",finished_reason="length"}': count["served"],
            'request_success_total{engine="0",finished_reason="stop"}': 0,
            'prompt_tokens_total{engine="0"}': count["prompt"],
            'prompt_tokens_by_source_total{engine="0",source="local_compute"}': 0 if decode else count["prompt"],
            'prompt_tokens_by_source_total{engine="0",source="local_cache_hit"}': 0,
            'prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"}': count["prompt"] if decode else 0,
            'nixl_bytes_transferred_sum{engine="0"}': 4096 * count["served"] if decode else 0,
            'nixl_bytes_transferred_count{engine="0"}': count["served"] if decode else 0,
            'nixl_num_failed_transfers_total{engine="0"}': 0,
            'nixl_num_failed_notifications_total{engine="0"}': 0,
            'nixl_num_kv_expired_reqs_total{engine="0"}': 0,
        }
        if self.k:
            for name in ("drafts", "draft_tokens"):
                lines[f'spec_decode_num_{name}_total{{engine="0"}}'] = count[name]
            lines['spec_decode_num_accepted_tokens_total{engine="0"}'] = count["accepted"]
        for position, accepted in enumerate(positions):
            name = f'spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{position}"}}'
            lines[name] = accepted
        return "".join(f"vllm:{name} {value}\n" for name, value in lines.items())


# What goes wrong with a server's processes


def start(fake: Fake) -> None:
    """Be the server; returns only when the process is told to end."""
    note_pid()
    faults = fake.faults
    if (line := faults.get("say")) is not None:
        say(str(line).replace("$TOKEN", os.environ.get("HF_TOKEN", "")))
    if (code := faults.get("exit")) is not None:
        sys.exit(code)
    if (number := faults.get("signal")) is not None:
        os.kill(os.getpid(), number)
    if faults.get("silent"):
        _idle()
    if not faults.get("mute"):
        fake.introduce()
    stubborn = bool(faults.get("ignore_sigterm"))

    def terminate(*_: object) -> None:
        if faults.get("daemon_on_sigterm"):
            _orphan(clear=False)
        for child in fake.children:
            os.kill(child, signal.SIGTERM)
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else terminate)
    if faults.get("engine_process"):
        fake.children.append(_child(_idle))
    if faults.get("respawn"):
        fake.children.append(_child(_respawn))
    if faults.get("double_fork"):
        _orphan(clear=bool(faults.get("clear_environment")))
    if title := faults.get("title"):
        ctypes.CDLL(None).prctl(15, title.encode()[:15], 0, 0, 0)
    if faults.get("overwrite_environment"):
        _overwrite_environment()
    for name in faults.get("shared_memory", ()):
        _segment(name)
    if faults.get("semaphore"):
        import _multiprocessing  # type: ignore[import-not-found]

        globals()["_semaphore"] = _multiprocessing.SemLock(1, 1, 1, f"/{faults['semaphore']}", False)
    if megabytes := faults.get("log_mib"):
        _chat(int(megabytes))
    if fake.transfer:
        threading.Thread(target=_greet, args=(fake.side_channel, faults.get("side_channel")), daemon=True).start()
    if (delay_s := faults.get("delay_s")) is not None:
        time.sleep(delay_s)
    if (stolen := faults.get("steals")) is not None:
        fake.port = int(stolen)
    _listen(fake)


def _child(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    note_pid()
    run()
    os._exit(0)


def _idle() -> None:
    while True:
        signal.pause()


def _respawn() -> None:
    """Whenever its child ends, start another one."""
    while True:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            note_pid()
            _idle()
        os.waitpid(child, 0)


def _orphan(*, clear: bool) -> None:
    """Fork twice: a process in a session of its own whose parent is gone."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    note_pid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    environment = {} if clear else dict(os.environ)
    os.execve(sys.executable, [sys.executable, "-S", "-c", "import signal; signal.pause()"], environment)


def _overwrite_environment() -> None:
    """What setproctitle does without SPT_NOENV: the block that /proc/PID/environ shows is written over."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    ctypes.memset(begin, ord("x"), end - begin)


def _segment(name: str) -> None:
    fd = os.open(f"/dev/shm/{name}", os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, 4096)
    globals().setdefault("_mappings", []).append(mmap.mmap(fd, 4096))


def _chat(megabytes: int) -> None:
    line = b"INFO 11-30 12:00:00 [loop.py:1] still here, and still talking, and still nothing to say about it\n"
    block = (line * (MIB // len(line) + 1))[:MIB]
    for _ in range(megabytes // 16):
        os.writev(1, [block] * 16)
    say("")


def _greet(port: int, mode: str | None) -> None:
    if mode == "absent":
        return
    listener = socket.create_server(("127.0.0.1", port))
    kept = []
    while True:
        connection, _ = listener.accept()
        if mode == "silent":
            kept.append(connection)
            continue
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" if mode == "http" else b"\xff" + bytes(8) + b"\x7f\x03")
        connection.close()


# What goes wrong over HTTP


def _listen(fake: Fake) -> None:
    listener = socket.create_server(("127.0.0.1", fake.port), backlog=64)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(fake, connection), daemon=True).start()


def _serve(fake: Fake, connection: socket.socket) -> None:
    with connection:
        try:
            received = b""
            while b"\r\n\r\n" not in received:
                piece = connection.recv(65536)
                if not piece:
                    return
                received += piece
            head, _, body = received.partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            path = lines[0].split()[1]
            headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
            while len(body) < int(headers.get("content-length", 0)):
                body += connection.recv(65536)
            _answer(fake, connection, path, body)
        except OSError:
            return


def _answer(fake: Fake, connection: socket.socket, path: str, body: bytes) -> None:
    kinds = {"/health": "health", "/v1/models": "models", "/metrics": "metrics", "/v1/completions": "completions"}
    kind = kinds.get(path, "other")
    if kind == "completions":
        with fake.lock:
            fake.asked += 1
            number = fake.asked
        time.sleep(float(fake.faults.get("slow_s", 0.0)))
        if number == fake.faults.get("dies_at"):
            _die(fake, str(fake.faults["dies"]))
    mode = fake.faults.get(kind)
    if mode is not None and fake.asked >= int(fake.faults.get("from", 0)):
        _misbehave(connection, str(mode), lambda: _right(fake, kind, body))
        return
    _send(connection, 200, _right(fake, kind, body))


def _right(fake: Fake, kind: str, body: bytes) -> bytes:
    match kind:
        case "models":
            return json.dumps({"data": [{"id": fake.served}]}).encode()
        case "metrics":
            return fake.metrics().encode()
        case "completions":
            return json.dumps(fake.complete(json.loads(body))).encode()
        case _:
            return b""


def _die(fake: Fake, how: str) -> None:
    match how:
        case "exit":
            say("ERROR 11-30 12:00:00 [core.py:1] RuntimeError: the engine gave up")
            os._exit(1)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "engine":
            os.kill(fake.children[0], signal.SIGKILL)


def _misbehave(connection: socket.socket, mode: str, right: Callable[[], bytes]) -> None:
    match mode:
        case "404" | "500" | "503":
            message = {"error": {"message": f"asked to fail {os.environ.get('HF_TOKEN', '')}"}}
            _send(connection, int(mode), json.dumps(message).encode())
        case "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        case "hang":
            threading.Event().wait()
        case "half":
            data = right() or b"not all of it"
            connection.sendall(_head(200, len(data) + 1000) + data[: len(data) // 2 + 1])
        case "endless":
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b" " * MIB)
        case "trickle":
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.2)
        case "20-mib":
            _send(connection, 200, right() + b" " * (20 * MIB))
        case "error-body":
            _send(connection, 200, b'{"object": "error", "message": "the engine is dead", "code": 500}')
        case "not-json":
            _send(connection, 200, b"<html>all is well</html>")
        case "empty":
            _send(connection, 200, b"")
        case "no-choices":
            _send(connection, 200, b'{"choices": []}')
        case "other-model":
            _send(connection, 200, b'{"data": [{"id": "another model"}]}')
        case "redirect":
            connection.sendall(b"HTTP/1.1 307 Away\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n")
        case "wrong-text":
            answer = json.loads(right())
            answer["choices"][0]["token_ids"] = [7 for _ in answer["choices"][0]["token_ids"]]
            _send(connection, 200, json.dumps(answer).encode())
        case other:
            raise ValueError(f"no fault is called {other}")


def _head(status: int, length: int) -> bytes:
    return f"HTTP/1.1 {status} Said\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n".encode()


def _send(connection: socket.socket, status: int, data: bytes) -> None:
    connection.sendall(_head(status, len(data)) + data)


def import_once(commands_fd: int, events_fd: int) -> None:
    """Play the importer: fork a server per command, report its start and its end."""
    note_pid()
    faults = json.loads((FOLDER / "faults.json").read_text()).get("importer", {})
    if (code := faults.get("exit")) is not None:
        say("ModuleNotFoundError: No module named 'vllm._C'")
        sys.exit(code)
    events = os.fdopen(events_fd, "w", buffering=1)
    lock = threading.Lock()

    def tell(**event: object) -> None:
        with lock:
            events.write(json.dumps(event) + "\n")

    def await_end(name: str, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        tell(event="exited", name=name, pid=pid, returncode=os.waitstatus_to_exitcode(status))

    if faults.get("hang"):
        _idle()
    tell(event="ready", seconds=0.1, threads=1, missing=[])
    with os.fdopen(commands_fd) as commands:
        for line in commands:
            command = json.loads(line)
            if command["op"] == "quit":
                break
            pid = os.fork()
            if pid == 0:
                os.setsid()
                log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.environ.update(command["env"])
                try:
                    start(Fake(command["argv"]))
                finally:
                    sys.stdout.flush()
                    os._exit(1)
            tell(event="started", name=command["name"], pid=pid)
            threading.Thread(target=await_end, args=(command["name"], pid), daemon=True).start()


def main(argv: list[str]) -> None:
    match argv:
        case ["-c", *_]:
            say(json.dumps([[3, 11, 7], [], "/fake/vllm/__init__.py"]))
        case [program, *_] if program.endswith("probe.py"):
            say((FOLDER / "probe.json").read_text().replace("\n", ""))
        case ["-m", "vllm.entrypoints.openai.api_server", *options]:
            start(Fake(options))
        case [program, *options] if program.endswith("importer.py"):
            values = dict(pairwise(options))
            import_once(int(values["--commands-fd"]), int(values["--events-fd"]))
        case other:
            sys.exit(f"this engine knows no {other}")


if __name__ == "__main__":
    main(sys.argv[1:])
