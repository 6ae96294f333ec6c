"""Send a workload with bounded concurrency; one record per request, written the moment it is complete."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from harness.drive.answers import Answer, Body, open_client, post
from harness.drive.handoff import Route
from harness.drive.record import to_facts, without_secrets
from harness.drive.workloads import Prompt
from harness.errors import EngineFailed, Infra
from harness.facts import RequestFacts, RequestStage

# How often a running workload asks whether its servers still live: an early exit must be seen within 2 s.
_ALIVE_INTERVAL_S = 0.25


@dataclass(frozen=True)
class Sending:
    """How every request of a workload is made. ``ignore_eos`` only where the length is computed beforehand (tiny).

    ``secrets``: values that a record must not hold, should a server quote them in an error.
    """

    model: str
    stage: RequestStage
    ignore_eos: bool
    request_timeout_s: float
    concurrency: int = 1
    seed: int = 0
    secrets: frozenset[str] = frozenset()
    # How many of the likeliest tokens to list at each position; None: none.
    top_logprobs: int | None = None


@dataclass(frozen=True)
class Encoded:
    """A prompt as it is sent: text, or the token ids that the engine's own chat template made of its messages."""

    prompt: Prompt
    content: str | tuple[int, ...]


def encode(prompts: Sequence[Prompt], server_url: str, model: str, timeout_s: float = 60.0) -> tuple[Encoded, ...]:
    """Apply the chat template exactly once, by the engine (`/tokenize`), without a second BOS.

    The ids go to every server alike, so prefill, decode and reference cannot template differently. Raises
    `EngineFailed` naming the server when it cannot (no chat template, no endpoint).
    """
    return asyncio.run(_encode(prompts, server_url, model, timeout_s))


def ask(prompt: Encoded, route: Route, sending: Sending, alive: Callable[[], None]) -> RequestFacts:
    """One request outside the workload: the smoke request, and the one after the run. ``alive``: as in `drive`."""
    return asyncio.run(_ask(prompt, route, sending, alive))


def drive(
    prompts: Sequence[Encoded],
    route: Route,
    sending: Sending,
    *,
    records: Path,
    budget_s: float,
    alive: Callable[[], None],
    on_progress: Callable[[int, int], None],
) -> tuple[RequestFacts, ...]:
    """Send every prompt, in order, at most ``sending.concurrency`` at a time; records come back in prompt order.

    A request that fails is a record, not an exception. ``alive`` is called a few times a second and raises when a
    server died: the requests in flight are then cancelled and its error passes through. ``on_progress(done, total)`` is
    called after each record is on disk; the caller takes its metrics snapshots there (the loop waits meanwhile, so be
    brief). Raises `EngineFailed` after ``budget_s`` and `Infra` when ``records`` cannot be written.
    """
    return asyncio.run(_drive(prompts, route, sending, records, budget_s, alive, on_progress))


async def _drive(
    prompts: Sequence[Encoded],
    route: Route,
    sending: Sending,
    records: Path,
    budget_s: float,
    alive: Callable[[], None],
    on_progress: Callable[[int, int], None],
) -> tuple[RequestFacts, ...]:
    done: dict[int, RequestFacts] = {}
    gate = asyncio.Semaphore(sending.concurrency)
    deadline_s = time.monotonic() + budget_s
    async with open_client(sending.concurrency, sending.request_timeout_s) as client:

        async def one(index: int, prompt: Encoded) -> None:
            async with gate:
                facts = await _request(client, index, prompt, route, sending)
            _append(records, facts)
            done[index] = facts
            on_progress(len(done), len(prompts))

        pending = {asyncio.create_task(one(index, prompt)) for index, prompt in enumerate(prompts)}
        try:
            while pending:
                finished, pending = await asyncio.wait(
                    pending, timeout=_ALIVE_INTERVAL_S, return_when=asyncio.FIRST_EXCEPTION
                )
                for task in finished:
                    task.result()
                alive()
                if pending and time.monotonic() > deadline_s:
                    raise EngineFailed(
                        f"{len(done)} of {len(prompts)} requests were answered within the {budget_s:g} s allowed; "
                        f"see {records}"
                    )
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
    return tuple(done[index] for index in range(len(prompts)))


def _append(records: Path, facts: RequestFacts) -> None:
    # Opened for every record: what was answered before a crash is on disk, whole lines only.
    try:
        with records.open("a", encoding="utf-8") as log:
            log.write(facts.model_dump_json() + "\n")
    except OSError as error:
        raise Infra(f"{records} cannot be written ({error}); free some space there and repeat") from error


async def _ask(prompt: Encoded, route: Route, sending: Sending, alive: Callable[[], None]) -> RequestFacts:
    async with open_client(1, sending.request_timeout_s) as client:
        request = asyncio.create_task(_request(client, 0, prompt, route, sending))
        try:
            # An API server whose engine died can keep the connection open until the request's own time is over.
            while not (await asyncio.wait({request}, timeout=_ALIVE_INTERVAL_S))[0]:
                alive()
            return request.result()
        finally:
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)


async def _request(
    client: httpx.AsyncClient, index: int, prompt: Encoded, route: Route, sending: Sending
) -> RequestFacts:
    started_at_s = time.monotonic()
    try:
        # httpx bounds each read, not the request: a server that sends a byte now and then must not hold it for ever.
        async with asyncio.timeout(sending.request_timeout_s):
            answer = await route.complete(client, completion_body(prompt, sending))
    except TimeoutError:
        waited_s = time.monotonic() - started_at_s
        answer = Answer(None, None, f"no answer within {sending.request_timeout_s:g} s", None, waited_s)
    return to_facts(without_secrets(answer, sending.secrets), index, prompt.prompt, sending.stage, started_at_s)


def completion_body(prompt: Encoded, sending: Sending) -> Body:
    """The request, the same for a router, a server and both hops of a handoff."""
    content = prompt.content if isinstance(prompt.content, str) else list(prompt.content)
    body: Body = {
        "model": sending.model,
        "prompt": content,
        "max_tokens": prompt.prompt.max_tokens,
        "temperature": 0,
        "seed": sending.seed,
        "ignore_eos": sending.ignore_eos,
        "return_token_ids": True,
        "stream": False,
    }
    if sending.top_logprobs is not None:
        # By id: two tokens may have one text.
        body |= {"logprobs": sending.top_logprobs, "return_tokens_as_token_ids": True}
    return body


async def _encode(prompts: Sequence[Prompt], server_url: str, model: str, timeout_s: float) -> tuple[Encoded, ...]:
    async with open_client(1, timeout_s) as client:
        return tuple([Encoded(p, p.text or await _template(client, p, server_url, model)) for p in prompts])


async def _template(client: httpx.AsyncClient, prompt: Prompt, server_url: str, model: str) -> tuple[int, ...]:
    messages = [{"role": role, "content": content} for role, content in prompt.messages or ()]
    body: Body = {"model": model, "messages": messages, "add_generation_prompt": True, "add_special_tokens": False}
    answer = await post(client, server_url + "/tokenize", body)
    tokens = answer.payload.get("tokens") if answer.ok and answer.payload else None
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, int) for token in tokens):
        problem = (
            answer.error or answer.body_error or f"no token ids in {json.dumps(answer.payload, default=str)[:200]}"
        )
        raise EngineFailed(f"the chat template could not be applied to {prompt.prompt_id}: {problem}")
    return tuple(tokens)
