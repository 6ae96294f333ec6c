"""A router for a prefill/decode pair that does one thing wrong, by name. Standard library only; run by its path.

It serves /v1/completions and, on its metrics port, the counters that vllm-router shows, kept honestly: it counts what
it really sent and where. ``honest`` does nothing wrong and must pass, or the other behaviours would prove nothing.
"""

from __future__ import annotations

import argparse
import json
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_HOP_TIMEOUT_S = 60
# Rare enough that the smoke request, which is number 0, is served right.
_EVERY = 5


@dataclass
class Router:
    """``number`` counts requests from 0, which is the smoke request."""

    prefill: str
    decode: str
    behaviour: str
    prefill_hops: Counter[str] = field(default_factory=Counter)
    decode_hops: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: int = 0
    last_answer: Body | None = None

    def serve(self, body: Body) -> tuple[int, Body]:
        with self.lock:
            number, self.seen = self.seen, self.seen + 1
        if number == 0:
            # The smoke request: a fault that it met would be found before the run that has to find it.
            return self.both_hops(body)
        body = REWRITES.get(self.behaviour, unchanged)(dict(body))
        status, answer = ROUTES.get(self.behaviour, Router.both_hops)(self, body)
        answer_edit = ANSWERS.get(self.behaviour)
        if answer_edit is None or status != 200:
            return status, answer
        return answer_edit(self, number, answer)

    def both_hops(self, body: Body) -> tuple[int, Body]:
        return self.hand_off(self.prefill, self.decode, body)

    def hand_off(self, first_url: str, second_url: str, body: Body) -> tuple[int, Body]:
        status, first = self.hop_prefill(first_url, body)
        if status != 200:
            return status, first
        return self.hop_decode(second_url, body | {"kv_transfer_params": first.get("kv_transfer_params")})

    def hop_prefill(self, url: str, body: Body) -> tuple[int, Body]:
        with self.lock:
            self.prefill_hops[url] += 1
        return post(url, body | {"max_tokens": 1, "kv_transfer_params": _REMOTE_DECODE})

    def hop_decode(self, url: str, body: Body) -> tuple[int, Body]:
        with self.lock:
            self.decode_hops[url] += 1
        return post(url, body)

    def page(self) -> str:
        lines = []
        for name, hops in (("prefill", self.prefill_hops), ("decode", self.decode_hops)):
            lines += [f'vllm_router_pd_{name}_requests_total{{worker="{url}"}} {n}' for url, n in sorted(hops.items())]
        return "\n".join(lines) + "\n"


def post(url: str, body: Body) -> tuple[int, Body]:
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_HOP_TIMEOUT_S) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, {"error": {"message": error.read().decode(errors="replace")[:500], "code": error.code}}


# Where the hops go.


def prefill_bypassed(router: Router, body: Body) -> tuple[int, Body]:
    return router.hop_decode(router.decode, body)


def params_dropped(router: Router, body: Body) -> tuple[int, Body]:
    status, first = router.hop_prefill(router.prefill, body)
    return (status, first) if status != 200 else router.hop_decode(router.decode, body)


def swapped(router: Router, body: Body) -> tuple[int, Body]:
    return router.hand_off(router.decode, router.prefill, body)


def all_to_prefill(router: Router, body: Body) -> tuple[int, Body]:
    return router.hop_decode(router.prefill, body)


def prefill_twice(router: Router, body: Body) -> tuple[int, Body]:
    # What a retry after a lost first answer looks like.
    router.hop_prefill(router.prefill, body)
    return router.both_hops(body)


def whole_request_twice(router: Router, body: Body) -> tuple[int, Body]:
    router.both_hops(body)
    return router.both_hops(body)


ROUTES: dict[str, Callable[[Router, Body], tuple[int, Body]]] = {
    "prefill-bypassed": prefill_bypassed,
    "params-dropped": params_dropped,
    "swapped": swapped,
    "all-to-prefill": all_to_prefill,
    "prefill-twice": prefill_twice,
    "whole-request-twice": whole_request_twice,
}


# What is sent.


def unchanged(body: Body) -> Body:
    return body


def template(text: str) -> str:
    return f"[user] {text}\n[assistant]"


REWRITES: dict[str, Callable[[Body], Body]] = {
    "double-bos": lambda body: body | {"prompt": "<s><s>" + body["prompt"]},
    "template-twice": lambda body: body | {"prompt": template(template(body["prompt"]))},
    "hot": lambda body: body | {"temperature": 1.0},
    "max-tokens-cut": lambda body: body | {"max_tokens": max(1, body["max_tokens"] // 2)},
    "prompt-cut": lambda body: body | {"prompt": body["prompt"][len(body["prompt"]) // 2 :]},
}


# What comes back.


def _error_body(_router: Router, number: int, answer: Body) -> tuple[int, Body]:
    if number % _EVERY:
        return 200, answer
    return 200, {"object": "error", "message": "KV transfer failed", "type": "BadRequestError", "code": 400}


def _error_beside_answer(_router: Router, number: int, answer: Body) -> tuple[int, Body]:
    return 200, answer if number % _EVERY else answer | {"error": {"message": "decode worker failed", "code": 400}}


def _refused(_router: Router, number: int, answer: Body) -> tuple[int, Body]:
    return (200, answer) if number % _EVERY else (503, {"error": {"message": "no worker available", "code": 503}})


def _usage_wrong(_router: Router, _number: int, answer: Body) -> tuple[int, Body]:
    answer["usage"]["completion_tokens"] -= 1
    return 200, answer


def _last_token_wrong(_router: Router, number: int, answer: Body) -> tuple[int, Body]:
    choice = answer["choices"][0]
    if number % _EVERY == 0 and choice["token_ids"]:
        choice["token_ids"][-1] ^= 1
    return 200, answer


def _answer_of_another(router: Router, number: int, answer: Body) -> tuple[int, Body]:
    with router.lock:
        previous, router.last_answer = router.last_answer, answer
    return 200, previous if previous is not None and number % 2 else answer


ANSWERS: dict[str, Callable[[Router, int, Body], tuple[int, Body]]] = {
    "error-in-200": _error_body,
    "error-beside-answer": _error_beside_answer,
    "refused": _refused,
    "usage-wrong": _usage_wrong,
    "last-token-wrong": _last_token_wrong,
    "answer-of-another": _answer_of_another,
}
BEHAVIOURS = frozenset({"honest", *ROUTES, *REWRITES, *ANSWERS})


def handler(router: Router) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = router.page() if self.path == "/metrics" else "{}"
            self._send(200, page.encode(), "text/plain")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                status, answer = router.serve(body)
            except (OSError, KeyError, TypeError, ValueError) as error:
                status, answer = 502, {"error": {"message": f"{type(error).__name__}: {error}", "code": 502}}
            self._send(status, json.dumps(answer).encode(), "application/json")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            del code, size

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--behaviour", required=True, choices=sorted(BEHAVIOURS))
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--metrics-port", type=int, required=True)
    parser.add_argument("--prefill", required=True)
    parser.add_argument("--decode", required=True)
    options = parser.parse_args()
    router = Router(options.prefill, options.decode, options.behaviour)
    metrics = ThreadingHTTPServer((options.host, options.metrics_port), handler(router))
    threading.Thread(target=metrics.serve_forever, daemon=True).start()
    ThreadingHTTPServer((options.host, options.port), handler(router)).serve_forever()


if __name__ == "__main__":
    main()
