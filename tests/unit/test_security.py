"""What can be shown of the gate's security without starting anything; the rest is in tests/faults."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from harness.deployments import DEPLOYMENTS, Deployment
from harness.drive.answers import read_answer
from harness.errors import GateError
from harness.plan.assign import propose
from harness.plan.build import build_plan, kv_buffers, model_set_of, requirements
from harness.plan.types import Device, Machine, Options, Plan
from harness.runtime.readiness import ModelListed
from tests.unit.plan_inputs import CPU_MACHINE, GPU_MACHINE, inputs

HARNESS = Path(__file__).resolve().parents[2] / "harness"
LOOPBACK = "127.0.0.1"

MANY_GPUS = dataclasses.replace(
    GPU_MACHINE, devices=tuple(Device(i, f"GPU-{i}", "NVIDIA H200", 143771 << 20) for i in range(8))
)


def plans() -> Iterator[tuple[str, Plan]]:
    """The plan of every deployment that can be planned, on a laptop and on a GPU host, with each router."""
    for deployment in DEPLOYMENTS.values():
        for machine in (CPU_MACHINE, MANY_GPUS):
            for options in (Options(), Options(router="direct"), Options(reference="beside")):
                try:
                    yield f"{deployment.name} {machine.platform}", planned(deployment, machine, options)
                except GateError:
                    # No tiny checkpoint, or too few devices: refused, so nothing of it listens anywhere.
                    continue


def planned(deployment: Deployment, machine: Machine, options: Options) -> Plan:
    values = inputs(deployment, machine=machine, options=options)
    model_set = model_set_of(options, machine)
    allocation = propose(requirements(deployment, options, model_set), machine, options, model_set)
    return build_plan(values, allocation, kv_buffers(deployment, options, machine)[0])


def test_every_server_router_and_side_channel_of_every_plan_is_on_loopback() -> None:
    seen = set()
    for name, plan in plans():
        seen.add(name.partition(" ")[0])
        for stage in plan.stages:
            for server in stage.servers:
                assert (server.host, server.argv[server.argv.index("--host") + 1]) == (LOOPBACK, LOOPBACK), name
                assert httpx.URL(server.metrics_url).host == httpx.URL(server.url).host == LOOPBACK
                assert server.environment["VLLM_HOST_IP"] == LOOPBACK
                if server.side_channel_ports:
                    assert server.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == LOOPBACK
            if stage.router is not None:
                router = stage.router
                assert router.host == router.argv[router.argv.index("--host") + 1] == LOOPBACK
                assert router.argv[router.argv.index("--prometheus-host") + 1] == LOOPBACK
    assert seen == set(DEPLOYMENTS)


def test_no_plan_names_another_address() -> None:
    for name, plan in plans():
        for stage in plan.stages:
            told = [(server.argv, server.environment) for server in stage.servers]
            told += [(stage.router.argv, stage.router.environment)] if stage.router else []
            for argv, environment in told:
                said = " ".join([*argv, *environment.values()])
                assert not re.search(r"\b0\.0\.0\.0\b|\[::\]|(?<![\w:])::(?![\w:])", said), name


SHELL_CALLS = frozenset(
    {
        "os.system",
        "os.popen",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
        "asyncio.create_subprocess_shell",
        "pickle.load",
        "pickle.loads",
        "marshal.loads",
        "eval",
        "exec",
    }
)


def shell_calls(source: str) -> list[str]:
    """Calls that hand a string to a shell or run what they read, by line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        shell = any(
            keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
            for keyword in node.keywords
        )
        if shell or name in SHELL_CALLS:
            found.append(f"{node.lineno}: {name}")
    return found


def test_nothing_hands_a_string_to_a_shell_or_runs_what_it_reads() -> None:
    files = sorted(HARNESS.rglob("*.py"))
    assert len(files) > 100
    assert {str(path): calls for path in files if (calls := shell_calls(path.read_text("utf-8")))} == {}


@pytest.mark.parametrize(
    "line",
    ["subprocess.run(f'ls {x}', shell=True)", "os.system(x)", "subprocess.Popen(x, shell=y)", "os.popen('ls')"],
)
def test_a_shell_would_be_found(line: str) -> None:
    assert shell_calls(f"import os, subprocess\n{line}\n")


def test_the_runtime_opens_no_socket_that_others_could_connect_to() -> None:
    """Supervisor and importer are told by inherited pipes; the only bound socket is the name of a lease."""
    listening = re.compile(r"\.listen\(|create_server\(|start_server\(|\bserve_forever\b|socketserver|http\.server")
    for folder in ("runtime", "run", "drive", "engine", "engine_side", "measure"):
        for path in (HARNESS / folder).rglob("*.py"):
            assert not listening.search(path.read_text("utf-8")), path


# Calls that look like a read of everything, each with the reason why nobody can make it large.
UNBOUNDED = {
    "ci/audit/marks.py: _Module(ast.parse(candidate)).read": "no file",
    "ci/deps.py: path.read_text": "this project's own lists",
    "engine/build.py: site.log.read_text": "what pip wrote into an environment that is being built",
    "engine/build.py: torch_version.read_text": "a program of that environment",
    "engine/probing.py: PROBE.read_text": "this project's own program",
    "falsify/checkpoints.py: path.read_text": "a tokenizer that the zoo has just written",
    "falsify/standin_router.py: response.read": "an answer of this project's own mutated engine",
    "falsify/standin_router.py: error.read": "the same",
    "runtime/supervised.py: reader.read": "a `LineReader`, which has its bound",
    "runtime/supervision.py: reader.read": "the same",
    "runtime/supervision.py: self._commands.read": "the same",
    "zoo/store.py: source.read_bytes": "this project's own sources",
}
OF_THE_KERNEL = re.compile(r"Path\(f?'/(proc|sys)/")


def unbounded_reads(source: str) -> set[str]:
    """Calls that read a whole file, whatever its size: `read_text`, `read` without a size, `json.load` and the like."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        whole = name.endswith((".read_text", ".read_bytes")) or name in ("json.load", "tomllib.load", "tomlkit.load")
        if whole or (name.endswith((".read", ".readlines")) and not node.args):
            found.add(name)
    return {name for name in found if not OF_THE_KERNEL.match(name)}


def test_every_file_that_somebody_else_can_write_is_read_up_to_a_bound() -> None:
    found = {
        f"{path.relative_to(HARNESS)}: {name}"
        for path in HARNESS.rglob("*.py")
        for name in unbounded_reads(path.read_text("utf-8"))
    }
    assert found == set(UNBOUNDED)


@pytest.mark.parametrize("line", ["Path(x).read_text()", "open(x).read()", "json.load(stream)", "tomllib.load(x)"])
def test_an_unbounded_read_would_be_found(line: str) -> None:
    assert unbounded_reads(line)


@pytest.mark.parametrize("line", ["stream.read(9)", "Path('/proc/self/stat').read_text()", "json.loads(text)"])
def test_a_bounded_read_is_none(line: str) -> None:
    assert not unbounded_reads(line)


def test_nothing_unpacks_an_archive() -> None:
    """An archive names its own paths and sizes; whoever starts to read one has to bound both."""
    unpacking = re.compile(r"\b(tarfile|zipfile|shutil\.unpack_archive|gzip|bz2|lzma|zlib)\b")
    assert [str(path) for path in HARNESS.rglob("*.py") if unpacking.search(path.read_text("utf-8"))] == []


DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    "body", [DEEP, b'{"choices": ' + DEEP, b'{"usage": ' + b"9" * 100_000 + b"}"], ids=["list", "inside", "number"]
)
def test_json_that_is_made_to_break_its_reader_is_an_answer_that_is_not_json(body: bytes) -> None:
    answer = read_answer("http://127.0.0.1:1/v1/completions", 200, body, 0.1)
    assert not answer.ok
    assert "not JSON" in str(answer.body_error)
    assert len(str(answer.body_error)) < 1000


def test_a_model_list_that_is_made_to_break_its_reader_is_no_model_list() -> None:
    seen = ModelListed("decode-0", "http://127.0.0.1:1", "m")._judge(httpx.Response(200, content=DEEP))
    assert not seen.ok
    assert len(seen.what) < 1000
