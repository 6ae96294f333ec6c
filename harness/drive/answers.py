"""One POST and its answer: bounded, never raising for what a server may do wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx

ANSWER_LIMIT_BYTES = 32 * 1024 * 1024
_QUOTE_CHARS = 500

Body = dict[str, object]


@dataclass(frozen=True)
class Answer:
    """What came back. ``status`` None: no HTTP answer, ``error`` says why.

    ``body_error``: an error found inside a 2xx answer. ``first_hop_s``: duration of the prefill hop, where the harness
    made it itself.
    """

    status: int | None
    payload: Mapping[str, object] | None
    error: str | None
    body_error: str | None
    duration_s: float
    first_hop_s: float | None = None

    @property
    def ok(self) -> bool:
        return self.payload is not None and self.error is None and self.body_error is None


def open_client(connections: int, timeout_s: float) -> httpx.AsyncClient:
    """A client for loopback servers.

    No proxies from the environment, and no kept-alive connections: a server closes an idle one just when it is reused,
    which would read as a failed request.
    """
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=0)
    return httpx.AsyncClient(trust_env=False, timeout=timeout_s, limits=limits)


async def post(client: httpx.AsyncClient, url: str, body: Body) -> Answer:
    """Send ``body`` as JSON; every outcome is an `Answer`. Only cancellation passes through."""
    started_at_s = time.monotonic()
    # Not bytes: adding to those copies all that came before, seconds of it near the limit.
    content = bytearray()
    try:
        async with client.stream("POST", url, json=body) as response:
            status = response.status_code
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > ANSWER_LIMIT_BYTES:
                    return _failed(started_at_s, status, f"{url} sent more than {ANSWER_LIMIT_BYTES} bytes")
    except httpx.TimeoutException as error:
        return _failed(started_at_s, None, f"{url} did not answer in time ({type(error).__name__})")
    except httpx.HTTPError as error:
        return _failed(started_at_s, None, f"{url}: {type(error).__name__} {error}".rstrip())
    return read_answer(url, status, bytes(content), time.monotonic() - started_at_s)


def read_answer(url: str, status: int, content: bytes, duration_s: float) -> Answer:
    """Judge status and body of one answer; pure."""
    quoted = content[:_QUOTE_CHARS].decode(errors="replace").strip()
    if not 200 <= status < 300:
        return Answer(status, None, f"{url} answered {status}: {quoted}", None, duration_s)
    try:
        payload = json.loads(content)
    except (ValueError, RecursionError):
        # RecursionError: brackets in brackets, deeper than Python reads.
        return Answer(status, None, None, f"{url} answered {status} but the body is not JSON: {quoted}", duration_s)
    if not isinstance(payload, dict):
        return Answer(status, None, None, f"{url} answered {status} with a JSON {type(payload).__name__}", duration_s)
    inner = error_inside(payload)
    return Answer(
        status, payload, None, f"{url} answered {status} but the body says {inner}" if inner else None, duration_s
    )


def error_inside(payload: Mapping[str, object]) -> str | None:
    """The error that a 2xx body carries, its own status first; None when there is none."""
    error = payload.get("error")
    if error is None and payload.get("object") == "error":
        error = payload
    if error is None:
        return None
    if isinstance(error, Mapping):
        parts = [str(error[key]) for key in ("code", "type", "message") if error.get(key) is not None]
        return (" ".join(parts) or json.dumps(error, default=str))[:_QUOTE_CHARS]
    return str(error)[:_QUOTE_CHARS]


def _failed(started_at_s: float, status: int | None, error: str) -> Answer:
    return Answer(status, None, error, None, time.monotonic() - started_at_s)
