"""The ways a request can go: through one URL (a router or a server), or prefill then decode by the harness itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import httpx

from harness.drive.answers import Answer, Body, post

_COMPLETIONS = "/v1/completions"
# What a prefill server needs to keep the KV for a decode server that it does not know yet.
_REMOTE_DECODE: Body = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class Route(Protocol):
    """Takes one completion request to its answer; never raises for what a server does wrong."""

    async def complete(self, client: httpx.AsyncClient, body: Body) -> Answer: ...


@dataclass(frozen=True)
class Through:
    """One hop to ``url``: the router, or a server on its own."""

    url: str

    async def complete(self, client: httpx.AsyncClient, body: Body) -> Answer:
        return await post(client, self.url + _COMPLETIONS, body)


@dataclass(frozen=True)
class Handoff:
    """``--router direct``: prefill one token, hand its transfer parameters to decode. Errors name the hop."""

    prefill_url: str
    decode_url: str

    async def complete(self, client: httpx.AsyncClient, body: Body) -> Answer:
        """The decode answer, its duration over both hops, or the prefill answer when that hop failed."""
        first = await post(
            client, self.prefill_url + _COMPLETIONS, body | {"max_tokens": 1, "kv_transfer_params": _REMOTE_DECODE}
        )
        if not first.ok or first.payload is None:
            return _named(first, "prefill hop", first)
        transfer = first.payload.get("kv_transfer_params")
        if not isinstance(transfer, dict) or not transfer:
            # Without them decode would compute the prompt itself and the text would still be right.
            missing = replace(
                first, body_error=f"{self.prefill_url} answered {first.status} without kv_transfer_params"
            )
            return _named(missing, "prefill hop", first)
        second = await post(client, self.decode_url + _COMPLETIONS, body | {"kv_transfer_params": transfer})
        return _named(replace(second, duration_s=first.duration_s + second.duration_s), "decode hop", first)


def _named(answer: Answer, hop: str, first: Answer) -> Answer:
    return replace(
        answer,
        error=f"{hop}: {answer.error}" if answer.error else None,
        body_error=f"{hop}: {answer.body_error}" if answer.body_error else None,
        first_hop_s=first.duration_s,
    )
