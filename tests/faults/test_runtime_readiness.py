"""What a wait says when a server is not what it should be; against a fake engine, over real sockets."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from harness.errors import EngineFailed
from harness.runtime.deadline import Deadline
from harness.runtime.readiness import (
    HttpHealth,
    ModelListed,
    NotReady,
    Seen,
    SmokeCompletion,
    TcpAnswers,
    all_of,
    wait,
)
from harness.runtime.supervised import ServerExited, Servers
from tests.faults.fake_run import FakeRun, free_port, new_run, ready, servers_of, soon


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    return new_run(tmp_path)


@pytest.fixture
def servers(run: FakeRun) -> Iterator[Servers]:
    with servers_of(run) as servers:
        yield servers


def for_a_moment() -> Deadline:
    """Long enough that a server that is up is asked once and answers, on a busy machine, too."""
    return Deadline.after(2.0)


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def completion(port: int) -> SmokeCompletion:
    def send(timeout_s: float) -> Seen:
        body = {"model": "m", "prompt": "x", "max_tokens": 4}
        response = httpx.post(f"{url(port)}/v1/completions", json=body, timeout=timeout_s, trust_env=False)
        return Seen(response.is_success, f"HTTP {response.status_code}: {response.text[:200]}")

    return SmokeCompletion("decode-0", send)


def test_a_healthy_server_with_its_model_side_channel_and_an_answer_is_ready(run: FakeRun, servers: Servers) -> None:
    port, side = free_port(), free_port()
    servers.start(run.server("decode-0", port, "--side-channel-port", str(side)), soon())
    conditions = (
        HttpHealth("decode-0", url(port)),
        ModelListed("decode-0", url(port), "m"),
        TcpAnswers("decode-0", "127.0.0.1", side),
        completion(port),
    )
    wait([all_of(*conditions)], soon(), servers.check, poll_s=0.02)


def test_a_server_that_never_gets_healthy_is_quoted_with_its_log(run: FakeRun, servers: Servers) -> None:
    port = free_port()
    spec = run.server("decode-0", port, "--never-healthy")
    servers.start(spec, soon())
    ready_port = TcpAnswers("decode-0", "127.0.0.1", port, greeting=False)
    wait([ready_port], soon(), servers.check, poll_s=0.02)
    with pytest.raises(NotReady, match=r"decode-0: .*/health answers; last seen: .*503.*serving on") as caught:
        wait([HttpHealth("decode-0", url(port), spec.log)], for_a_moment(), servers.check, poll_s=0.02)
    assert caught.value.log == spec.log


def test_a_server_with_another_model_is_not_ready(run: FakeRun, servers: Servers) -> None:
    port = free_port()
    servers.start(run.server("decode-0", port, "--served-model-name", "other"), soon())
    ready(servers, port)
    with pytest.raises(NotReady, match="models other"):
        wait([ModelListed("decode-0", url(port), "m")], for_a_moment(), servers.check, poll_s=0.02)


def test_an_http_port_is_no_side_channel(run: FakeRun, servers: Servers) -> None:
    port = free_port()
    servers.start(run.server("decode-0", port), soon())
    ready(servers, port)
    with pytest.raises(NotReady, match="side channel"):
        wait([TcpAnswers("decode-0", "127.0.0.1", port)], for_a_moment(), servers.check, poll_s=0.02)


def test_a_refused_completion_is_quoted(run: FakeRun, servers: Servers) -> None:
    port = free_port()
    servers.start(run.server("decode-0", port, "--status", "400"), soon())
    ready(servers, port)
    with pytest.raises(NotReady, match=r"HTTP 400.*asked to fail"):
        wait([completion(port)], for_a_moment(), servers.check, poll_s=0.02)


def test_a_death_is_seen_while_a_completion_hangs(run: FakeRun, servers: Servers) -> None:
    hanging, dying = free_port(), free_port()
    servers.start(run.server("prefill-0", hanging, "--hang"), soon())
    victim = servers.start(run.server("decode-0", dying), soon())
    ready(servers, hanging, dying)

    os.kill(victim.pid, signal.SIGKILL)
    with pytest.raises(ServerExited, match="decode-0"):
        wait([completion(hanging)], soon(), servers.check, poll_s=0.02)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_check_that_breaks_is_no_reason_to_wait() -> None:
    def send(_: float) -> Seen:
        raise EngineFailed("a bug")

    with pytest.raises(RuntimeError, match="broke off"):
        wait([SmokeCompletion("decode-0", send)], soon(), lambda: None)
