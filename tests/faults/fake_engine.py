"""A stand-in for one vLLM API server: same HTTP surface, up in a fraction of a second, misbehaves on request.

    python fake_engine.py --port 8100 --served-model-name m [--engine-process] [--ignore-sigterm] [--double-fork] ...

Standard library only. Given ``--commands-fd`` it is a stand-in for the importer, which forks such servers.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PR_SET_NAME = 15


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--served-model-name", default="m")
    parser.add_argument("--exit-at-once", metavar="LINE", help="print LINE and exit 1")
    parser.add_argument("--exit-after-s", type=float, help="exit 1 after so long")
    parser.add_argument("--engine-process", action="store_true", help="have a child that plays the engine core")
    parser.add_argument("--ignore-sigterm", action="store_true", help="and so do the children")
    parser.add_argument("--double-fork", action="store_true", help="leave an orphan in a session of its own")
    parser.add_argument("--clear-environment", action="store_true", help="the orphan has no environment")
    parser.add_argument("--helper", action="store_true", help="run a short program below, as a compiler would be")
    parser.add_argument("--title", help="process name, as setproctitle would set it")
    parser.add_argument("--never-healthy", action="store_true")
    parser.add_argument("--status", type=int, default=200, help="answer completions with this status")
    parser.add_argument("--slow-s", type=float, default=0.0, help="each completion takes so long")
    parser.add_argument("--hang", action="store_true", help="accept completions and never answer")
    parser.add_argument("--side-channel-port", type=int, help="greet there as a ZeroMQ socket does")
    parser.add_argument("--shared-memory", metavar="NAME", help="map /dev/shm/NAME and leave it behind")
    parser.add_argument("--commands-fd", type=int)
    parser.add_argument("--events-fd", type=int)
    return parser.parse_args(argv)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def serve(options: argparse.Namespace) -> None:
    """Be the server; returns only when the process is told to end."""
    if options.exit_at_once is not None:
        say(options.exit_at_once)
        sys.exit(1)
    if options.exit_after_s is not None:
        threading.Timer(options.exit_after_s, lambda: os._exit(1)).start()
    if options.title:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, options.title.encode()[:15], 0, 0, 0)
    children: list[int] = []
    if options.engine_process:
        children.append(_child(options, _idle))
    if options.double_fork:
        os.waitpid(_child(options, lambda: _orphan(options)), 0)
    if options.helper and os.fork() == 0:
        os.execv("/bin/sh", ["/bin/sh", "-c", "read line < /dev/zero & sleep 1"])
    if options.shared_memory:
        _map(options.shared_memory)
    if options.side_channel_port is not None:
        threading.Thread(target=_greet, args=(options.side_channel_port,), daemon=True).start()

    def terminate(*_: object) -> None:
        for child in children:
            os.kill(child, signal.SIGTERM)
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_sigterm else terminate)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), _handler(options))
    server.daemon_threads = True
    say(f"serving on {server.server_address[1]}")
    server.serve_forever()


def _child(options: argparse.Namespace, run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    if options.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run()
    os._exit(0)


def _idle() -> None:
    while True:
        signal.pause()


def _orphan(options: argparse.Namespace) -> None:
    """Fork once more and let the middle process end: the orphan's parent is then whoever reaps orphans."""
    if os.fork():
        return
    os.setsid()
    environment = {} if options.clear_environment else dict(os.environ)
    os.execve(sys.executable, [sys.executable, "-S", "-c", "import signal; signal.pause()"], environment)


def _map(name: str) -> None:
    import mmap

    fd = os.open(f"/dev/shm/{name}", os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, 4096)
    globals()["_mapping"] = mmap.mmap(fd, 4096)


def _greet(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03")
        connection.close()


def _handler(options: argparse.Namespace) -> type[BaseHTTPRequestHandler]:
    counts = {"requests": 0}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: object) -> None:
            data = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            match self.path:
                case "/health":
                    self.answer(503 if options.never_healthy else 200, "")
                case "/v1/models":
                    self.answer(200, {"data": [{"id": options.served_model_name}]})
                case "/metrics":
                    self.answer(200, _metrics(counts["requests"]))
                case _:
                    self.answer(404, {"error": {"message": f"no {self.path}"}})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if options.hang:
                threading.Event().wait()
            time.sleep(options.slow_s)
            if options.status != 200:
                self.answer(options.status, {"error": {"message": "asked to fail"}})
                return
            counts["requests"] += 1
            self.answer(200, _completion(options, request))

    return Handler


def _completion(options: argparse.Namespace, request: dict[str, object]) -> dict[str, object]:
    tokens = int(str(request.get("max_tokens", 16)))
    asked = request.get("kv_transfer_params")
    remote = isinstance(asked, dict) and asked.get("do_remote_decode")
    return {
        "model": options.served_model_name,
        "choices": [{"index": 0, "text": "x" * tokens, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": tokens},
        "kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [0]} if remote else None,
    }


def _metrics(requests: int) -> str:
    lines = ["# TYPE vllm:request_success_total counter", f'vllm:request_success_total{{engine="0"}} {requests}']
    for name, value in (
        ("num_drafts", requests),
        ("num_draft_tokens", 3 * requests),
        ("num_accepted_tokens", requests),
    ):
        lines += [f"# TYPE vllm:spec_decode_{name} counter", f'vllm:spec_decode_{name}_total{{engine="0"}} {value}']
    return "\n".join(lines) + "\n"


def import_once(options: argparse.Namespace) -> None:
    """Play the importer: fork a server per command, report its start and its end."""
    events = os.fdopen(options.events_fd, "w", buffering=1)
    lock = threading.Lock()

    def tell(event: dict[str, object]) -> None:
        with lock:
            events.write(json.dumps(event) + "\n")

    def await_end(name: str, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        tell({"event": "exited", "name": name, "pid": pid, "returncode": os.waitstatus_to_exitcode(status)})

    tell({"event": "ready"})
    with os.fdopen(options.commands_fd) as commands:
        for line in commands:
            command = json.loads(line)
            if command["op"] == "quit":
                break
            pid = os.fork()
            if pid == 0:
                os.setsid()
                commands.close()
                log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.environ.update(command["env"])
                try:
                    serve(parse(command["argv"]))
                finally:
                    sys.stdout.flush()
                    os._exit(1)
            tell({"event": "started", "name": command["name"], "pid": pid})
            threading.Thread(target=await_end, args=(command["name"], pid), daemon=True).start()


if __name__ == "__main__":
    parsed = parse(sys.argv[1:])
    if parsed.commands_fd is not None:
        import_once(parsed)
    else:
        serve(parsed)
