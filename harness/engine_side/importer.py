"""Run by the engine's own Python: imports vLLM once, then forks an API server for each ``start`` command.

    python importer.py --commands-fd N --events-fd M [--architectures A,B]

Commands arrive as JSON lines on descriptor N, events leave as JSON lines on descriptor M; stdout and stderr are a log.

    <- {"event": "ready", "seconds": 8.9, "threads": 1, "missing": ["module or architecture: reason", ...]}
    -> {"op": "start", "name": "prefill-0", "argv": [...], "env": {...}, "unset": [...], "log": "/path"}
    <- {"event": "started", "name": "prefill-0", "pid": 123}
    <- {"event": "exited", "name": "prefill-0", "pid": 123, "returncode": -15}
    <- {"event": "error", "name": "prefill-0", "message": "..."}    nothing was started
    -> {"op": "quit"}, or the end of the commands: the importer exits 0. It never signals a server; they live on.

A server is the leader of its own session and differs from ``python -m vllm.entrypoints.openai.api_server ARGV`` only in
what it shares through the fork, so the environment that vLLM or its libraries read while they are imported must be the
importer's own: see `IMPORT_TIME_PREFIXES`. ``/proc/<pid>/environ`` of every server shows the importer's environment.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import json
import multiprocessing
import os
import selectors
import signal
import sys
import time
import traceback

# What an API server, its engine core and its CPU workers import, directly or lazily; those that this vLLM does not have
# are reported as missing and are no error. Forking after these, nothing above 0.1 s is left to import.
MODULES = (
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.api_server.app_state",
    "vllm.v1.engine.core",
    "vllm.v1.engine.async_llm",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.spec_decode.eagle",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector",
    "transformers.models.auto.tokenization_auto",
    "uvicorn",
    "uvloop",
)
# The API server's main function, newest layout first (0.32, 0.24).
ENTRY_MODULES = ("vllm.entrypoints.launchers.api_server.entry", "vllm.entrypoints.openai.api_server")

# Read once, at import or when a library loads: too late for a forked server, so a different value is refused.
IMPORT_TIME_PREFIXES = ("HF_", "OMP_", "KMP_", "GOMP_", "MKL_", "LD_", "PYTHON", "VLLM_LOGGING_", "TORCH_", "UCX_")
IMPORT_TIME_NAMES = frozenset(
    {
        "VLLM_CONFIGURE_LOGGING",
        "VLLM_CONFIG_ROOT",
        "VLLM_LOG_BATCHSIZE_INTERVAL",
        "VLLM_PLUGINS",
        "VLLM_PROCESS_NAME_PREFIX",
        "VLLM_RINGBUFFER_WARNING_INTERVAL",
        "VLLM_SERVER_DEV_MODE",
        "VLLM_TARGET_DEVICE",
        "VLLM_USE_MODELSCOPE",
        "TRANSFORMERS_OFFLINE",
    }
)


def preload(architectures: list[str]) -> list[str]:
    """Import what the servers need; what is missing, with the reason, is returned."""
    missing = []
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:
            missing.append(f"{name}: {type(error).__name__}: {error}")
    # Before the models, as in a server: the stand-in for torchvision must be there when they are imported.
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    missing += [reason for name in architectures if (reason := preload_model(name)) is not None]
    return missing


def preload_model(architecture: str) -> str | None:
    """Import a model and register its class, which spares each server a subprocess that inspects it (8 s when cold)."""
    from vllm.model_executor.models.registry import ModelRegistry

    try:
        model = ModelRegistry.models[architecture].load_model_cls()
        ModelRegistry.register_model(architecture, model)
    except Exception as error:
        return f"{architecture}: {type(error).__name__}: {error}"
    return None


def os_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def late_changes(own: dict[str, str], env: dict[str, str], unset: list[str]) -> list[str]:
    """Variables read at import that a server wants otherwise than the importer had them at its ``own`` start."""

    def at_import(name: str) -> bool:
        return name in IMPORT_TIME_NAMES or name.startswith(IMPORT_TIME_PREFIXES)

    changed = [name for name, value in env.items() if at_import(name) and own.get(name) != value]
    return sorted(changed + [name for name in unset if at_import(name) and name in own])


class Importer:
    """The loop: commands and ended children in, events out."""

    def __init__(self, commands_fd: int, events_fd: int) -> None:
        self.commands_fd = commands_fd
        self.events_fd = events_fd
        # As given, before vLLM sets variables of its own while it is imported.
        self.own_environment = dict(os.environ)
        self.names: dict[int, str] = {}
        self.pending = b""
        # A SIGCHLD must wake the selector at once; the C handler writes a byte to this pipe.
        self.wakeup_read, self.wakeup_write = os.pipe()
        for fd in (self.wakeup_read, self.wakeup_write):
            os.set_blocking(fd, False)

    def run(self, architectures: list[str]) -> None:
        started = time.monotonic()
        missing = preload(architectures)
        gc.collect()
        # Collections in the servers then leave the shared pages alone.
        gc.freeze()
        sys.stdout.flush()
        self.tell("ready", seconds=round(time.monotonic() - started, 3), threads=os_threads(), missing=missing)
        signal.set_wakeup_fd(self.wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self.commands_fd, selectors.EVENT_READ)
            selector.register(self.wakeup_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self.wakeup_read:
                        os.read(self.wakeup_read, 4096)
                        self.reap()
                    elif not self.read_commands():
                        return

    def tell(self, event: str, **fields: object) -> None:
        data = (json.dumps({"event": event, **fields}) + "\n").encode()
        while data:
            data = data[os.write(self.events_fd, data) :]

    def reap(self) -> None:
        while self.names:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            name = self.names.pop(pid, None)
            if name is not None:
                self.tell("exited", name=name, pid=pid, returncode=os.waitstatus_to_exitcode(status))

    def read_commands(self) -> bool:
        """Whether to go on: not after ``quit`` or when the other end has closed the commands."""
        data = os.read(self.commands_fd, 65536)
        if not data:
            return False
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in filter(None, lines):
            try:
                command = json.loads(line)
                op = command["op"]
            except (ValueError, KeyError, TypeError):
                self.tell("error", name=None, message=f"not a command: {line[:200]!r}")
                continue
            if op == "quit":
                return False
            self.start(command) if op == "start" else self.tell("error", name=None, message=f"unknown op {op!r}")
        return True

    def start(self, command: dict) -> None:
        name = command.get("name")
        try:
            argv, env, unset = list(command["argv"]), dict(command["env"]), list(command["unset"])
            log_fd = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except (KeyError, TypeError, ValueError, OSError) as error:
            self.tell("error", name=name, message=f"cannot start: {type(error).__name__}: {error}")
            return
        if late := late_changes(self.own_environment, env, unset):
            refusal = f"{', '.join(late)} must have the same value in the importer and in the server: read at import"
        elif (threads := os_threads()) != 1:
            # A lock that another thread holds at the fork is never released in the child.
            refusal = f"{threads} threads after the import: forking is not safe, use the spawn launch mode"
        else:
            refusal = ""
        if refusal:
            self.tell("error", name=name, message=refusal)
        else:
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                self.become_server(argv, env, unset, log_fd)
            self.names[pid] = name
            self.tell("started", name=name, pid=pid)
        os.close(log_fd)

    def become_server(self, argv: list[str], env: dict[str, str], unset: list[str], log_fd: int) -> None:
        """In the child: never returns."""
        code = 1
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            null_fd = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((null_fd, 0), (log_fd, 1), (log_fd, 2)):
                os.dup2(source, target)
            for fd in (null_fd, log_fd, self.commands_fd, self.events_fd, self.wakeup_read, self.wakeup_write):
                os.close(fd)
            code = serve(argv, env, unset)
        except BaseException:
            traceback.print_exc()
        finally:
            # What runs at the end of an interpreter runs here too: vLLM ends its engine processes in exit handlers.
            try:
                atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)


def serve(argv: list[str], env: dict[str, str], unset: list[str]) -> int:
    """Run the API server in this process; its exit code."""
    for name in unset:
        os.environ.pop(name, None)
    os.environ.update(env)
    fork_engine_processes()
    # The importer ran the plugins under its own environment; a server's asks for its own, and reports as its own.
    importlib.import_module("vllm.plugins").plugins_loaded = False
    sys.argv = ["api_server", *argv]
    try:
        entry_main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


def fork_engine_processes() -> None:
    """Let engine cores and workers be forked from this process instead of importing everything again.

    VLLM_WORKER_MULTIPROC_METHOD=fork alone does not do it: the CPU platform sets it back to spawn.
    """
    context = multiprocessing.get_context("fork")
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and "get_mp_context" in vars(module):
            module.get_mp_context = lambda: context


def entry_main() -> None:
    for name in ENTRY_MODULES:
        module = sys.modules.get(name)
        if hasattr(module, "main"):
            module.main()
            return
    # 0.24 has no main: what `python -m` runs is under its __main__ guard.
    import runpy

    sys.modules.pop(ENTRY_MODULES[-1], None)
    runpy.run_module(ENTRY_MODULES[-1], run_name="__main__", alter_sys=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands-fd", type=int, required=True)
    parser.add_argument("--events-fd", type=int, required=True)
    parser.add_argument("--architectures", default="")
    options = parser.parse_args()
    architectures = [name for name in options.architectures.split(",") if name]
    Importer(options.commands_fd, options.events_fd).run(architectures)


if __name__ == "__main__":
    main()
