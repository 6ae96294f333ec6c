"""The stand-in router does the one thing wrong that it was asked for, and nothing on the smoke request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from harness.falsify.standin_router import ANSWERS, BEHAVIOURS, REWRITES, ROUTES, Router


class Backend(BaseHTTPRequestHandler):
    """Answers like a vLLM server, and keeps what it was asked under its port."""

    seen: ClassVar[list[tuple[int, dict]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        port = self.server.server_address[1]
        self.seen.append((port, body))
        answer = {
            "choices": [{"text": "x", "token_ids": [260, 261], "finish_reason": "length"}],
            "usage": {"completion_tokens": 2},
            "kv_transfer_params": {"remote_engine_id": str(port)},
        }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        del code, size


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Backend) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield tuple(f"http://127.0.0.1:{server.server_address[1]}" for server in servers)  # type: ignore[misc]
    for server in servers:
        server.shutdown()
        server.server_close()


BODY = {"prompt": "abc", "max_tokens": 8, "temperature": 0}


def served(urls: tuple[str, str], behaviour: str, requests: int = 2) -> tuple[Router, list[tuple[int, dict]], list]:
    router = Router(*urls, behaviour)
    Backend.seen.clear()
    answers = [router.serve(dict(BODY)) for _ in range(requests)]
    return router, list(Backend.seen), answers


def port(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_the_honest_one_asks_prefill_for_one_token_and_hands_its_parameters_to_decode(urls):
    router, seen, answers = served(urls, "honest", 1)
    (first_port, first), (second_port, second) = seen
    assert (first_port, second_port) == (port(urls[0]), port(urls[1]))
    assert first["max_tokens"] == 1
    assert first["kv_transfer_params"]["do_remote_decode"]
    assert second["kv_transfer_params"] == {"remote_engine_id": str(port(urls[0]))}
    assert answers[0][0] == 200
    assert f'vllm_router_pd_decode_requests_total{{worker="{urls[1]}"}} 1' in router.page()


@pytest.mark.parametrize(
    ("behaviour", "hops"),
    [
        ("prefill-bypassed", "d"),
        ("all-to-prefill", "p"),
        ("swapped", "dp"),
        ("params-dropped", "pd"),
        ("prefill-twice", "ppd"),
        ("whole-request-twice", "pdpd"),
    ],
)
def test_each_wrong_way_makes_its_hops(urls, behaviour, hops):
    _, seen, _ = served(urls, behaviour)
    assert "".join("p" if asked == port(urls[0]) else "d" for asked, _ in seen) == "pd" + hops


@pytest.mark.parametrize("behaviour", sorted(REWRITES))
def test_a_rewritten_request_differs_and_the_smoke_request_does_not(urls, behaviour):
    _, seen, _ = served(urls, behaviour)
    sent = [{key: body.get(key) for key in BODY} for asked, body in seen if asked == port(urls[1])]
    assert sent[0] == BODY
    assert sent[1] != BODY


@pytest.mark.parametrize("behaviour", sorted(ANSWERS))
def test_a_changed_answer_differs_within_six_requests_and_the_smoke_answer_does_not(behaviour):
    router, changed = Router("p", "d", behaviour), []
    for number in range(1, 7):
        answer = {"choices": [{"token_ids": [260 + number]}], "usage": {"completion_tokens": 1}}
        whole = json.dumps(answer)
        changed.append(json.dumps(ANSWERS[behaviour](router, number, answer)[1]) != whole)
    assert any(changed)


def test_every_behaviour_is_listed_once():
    assert len(BEHAVIOURS) == 1 + len(ROUTES) + len(REWRITES) + len(ANSWERS)
