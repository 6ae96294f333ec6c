"""The client against a small HTTP server that can misbehave in every way that was seen."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.drive.answers import read_answer
from harness.drive.client import Encoded, Sending, ask, completion_body, drive, encode
from harness.drive.handoff import Handoff, Through
from harness.drive.workloads import Prompt, load_mt_bench, workload_hash
from harness.errors import EngineFailed, Infra, Misconfigured
from harness.facts import RequestFacts

Body = dict[str, object]
Reply = Callable[[str, Body], tuple[int, bytes]]


def completion(body: Body, **extra: object) -> tuple[int, bytes]:
    count = body["max_tokens"]
    assert isinstance(count, int)
    answer = {
        "choices": [
            {
                "text": "x" * count,
                "token_ids": list(range(count)),
                "prompt_token_ids": [1, 2, 3],
                "finish_reason": "length",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": count},
        "metrics": {"speculative_decoding": {"per_step_accepted": [0, 1]}},
    }
    return 200, json.dumps(answer | extra).encode()


class FakeServer:
    """An HTTP server whose answer to a POST is ``reply(path, body)``; keeps what it was asked."""

    def __init__(self, reply: Reply) -> None:
        self.asked: list[tuple[str, Body]] = []
        self.release = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.asked.append((self.path, body))
                status, content = reply(self.path, body)
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Reply], FakeServer]]:
    servers: list[FakeServer] = []

    def start(reply: Reply) -> FakeServer:
        servers.append(FakeServer(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


Serve = Callable[[Reply], FakeServer]
SENDING = Sending(model="m", stage="main", ignore_eos=True, request_timeout_s=20, concurrency=2)


def prompts(count: int, max_tokens: int = 4) -> tuple[Encoded, ...]:
    return tuple(Encoded(Prompt(f"p{i}", max_tokens, text=f"text {i}"), f"text {i}") for i in range(count))


def one(url: str, sending: Sending = SENDING) -> RequestFacts:
    return ask(prompts(1)[0], Through(url), sending, lambda: None)


def run(url: str, count: int, records: Path, **changes: object) -> tuple[RequestFacts, ...]:
    options = {"budget_s": 30.0, "alive": lambda: None, "on_progress": lambda _done, _total: None} | changes
    return drive(prompts(count), Through(url), SENDING, records=records, **options)  # type: ignore[arg-type]


def test_records_come_in_prompt_order_and_lie_on_disk(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda _, body: completion(body))
    progress: list[tuple[int, int]] = []
    records = tmp_path / "requests.jsonl"
    found = run(server.url, 7, records, on_progress=lambda done, of: progress.append((done, of)))
    assert [record.prompt_id for record in found] == [f"p{i}" for i in range(7)]
    assert progress == [(i + 1, 7) for i in range(7)]
    written = [RequestFacts.model_validate_json(line) for line in records.read_text().splitlines()]
    assert sorted(written, key=lambda record: record.index) == list(found)
    first = found[0]
    assert (first.status, first.completion_tokens, first.finish_reason) == (200, 4, "length")
    assert first.token_ids == (0, 1, 2, 3)
    assert first.prompt_token_ids == (1, 2, 3)
    assert first.accepted_per_step == (0, 1)


def test_the_request_is_greedy_and_asks_for_ids(serve: Serve) -> None:
    server = serve(lambda _, body: completion(body))
    one(server.url)
    path, body = server.asked[0]
    assert path == "/v1/completions"
    assert (body["temperature"], body["ignore_eos"], body["return_token_ids"]) == (0, True, True)
    assert (body["prompt"], body["max_tokens"], body["model"]) == ("text 0", 4, "m")


def test_logprobs_are_asked_for_only_when_wanted_and_by_id(serve: Serve) -> None:
    listed = {"top_logprobs": [{"token_id:7": -2.5, "token_id:0": -0.1250000001}, {"token_id:1": 0.0}]}

    server = serve(lambda _, body: completion(body, choices=[{"text": "x", "logprobs": listed}]))
    assert one(server.url, replace(SENDING, top_logprobs=5)).top_logprobs == (((0, -0.125), (7, -2.5)), ((1, 0.0),))
    one(server.url)
    asked, plain = server.asked[0][1], server.asked[1][1]
    assert (asked["logprobs"], asked["return_tokens_as_token_ids"]) == (5, True)
    assert not {"logprobs", "return_tokens_as_token_ids"} & set(plain)


@pytest.mark.parametrize(
    "listed",
    [None, {}, {"top_logprobs": None}, {"top_logprobs": [{"at:5": -1.0}]}, {"top_logprobs": [{"token_id:1": None}]}],
)
def test_logprobs_that_are_not_by_id_are_none(serve: Serve, listed: object) -> None:
    server = serve(lambda _, body: completion(body, choices=[{"text": "x", "logprobs": listed}]))
    assert one(server.url).top_logprobs is None


def test_ignore_eos_is_off_for_real_checkpoints() -> None:
    body = completion_body(Encoded(Prompt("p", 4, text="t"), (1, 2)), replace(SENDING, ignore_eos=False))
    assert body["ignore_eos"] is False
    assert body["prompt"] == [1, 2]


def test_no_more_requests_than_allowed_are_in_flight(serve: Serve, tmp_path: Path) -> None:
    lock = threading.Lock()
    flying: list[int] = [0]
    most: list[int] = [0]

    def reply(_: str, body: Body) -> tuple[int, bytes]:
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        answer = completion(body)
        with lock:
            flying[0] -= 1
        return answer

    run(serve(reply).url, 12, tmp_path / "r.jsonl")
    assert most[0] <= 2


def test_a_status_of_400_is_a_record_with_the_answer_quoted(serve: Serve) -> None:
    record = one(serve(lambda *_: (400, b'{"error": {"message": "too long"}}')).url)
    assert record.status == 400
    assert "answered 400" in (record.error or "")
    assert "too long" in (record.error or "")
    assert record.token_ids is None


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b'{"error": {"message": "no KV", "type": "BadRequestError", "code": 400}}', "400 BadRequestError no KV"),
        (b'{"object": "error", "message": "no KV", "code": 400}', "400 no KV"),
        (b'{"error": "broken"}', "broken"),
        (b'{"choices": []}', "no choices"),
        (b"data: [DONE]", "not JSON"),
        (b"[1]", "JSON list"),
    ],
)
def test_an_error_behind_a_200_is_found_and_quoted(serve: Serve, content: bytes, word: str) -> None:
    record = one(serve(lambda *_: (200, content)).url)
    assert record.status == 200
    assert word in (record.body_error or "")


def test_a_null_error_field_is_no_error() -> None:
    assert read_answer("u", 200, b'{"error": null, "choices": [{}]}', 0.1).body_error is None


def test_no_server_is_a_record_without_status() -> None:
    record = one("http://127.0.0.1:1")
    assert record.status is None
    assert "127.0.0.1:1" in (record.error or "")


def test_a_server_that_never_answers_is_a_record_too(serve: Serve) -> None:
    server: FakeServer = serve(lambda _, body: (server.release.wait(20), completion(body))[1])
    record = one(server.url, replace(SENDING, request_timeout_s=0.2))
    assert record.status is None
    assert record.error


def test_proxies_of_the_environment_do_not_touch_loopback(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    assert one(serve(lambda _, body: completion(body)).url).status == 200


def test_a_server_that_died_ends_the_run_and_cancels_what_is_in_flight(serve: Serve, tmp_path: Path) -> None:
    server: FakeServer = serve(lambda _, body: (server.release.wait(20), completion(body))[1])

    def alive() -> None:
        if server.asked:
            raise EngineFailed("decode-0 exited with 1")

    with pytest.raises(EngineFailed, match="decode-0 exited"):
        run(server.url, 5, tmp_path / "r.jsonl", alive=alive)
    assert not server.release.is_set()


def test_a_run_over_its_budget_says_how_far_it_came(serve: Serve, tmp_path: Path) -> None:
    server: FakeServer = serve(lambda _, body: (server.release.wait(20), completion(body))[1])
    with pytest.raises(EngineFailed, match="0 of 3 requests"):
        run(server.url, 3, tmp_path / "r.jsonl", budget_s=0.0)


def test_records_that_cannot_be_written_are_infra(serve: Serve, tmp_path: Path) -> None:
    server = serve(lambda _, body: completion(body))
    with pytest.raises(Infra, match=r"missing/r\.jsonl"):
        run(server.url, 1, tmp_path / "missing" / "r.jsonl")


def test_an_error_of_the_progress_callback_passes_through(serve: Serve, tmp_path: Path) -> None:
    def progress(_done: int, _total: int) -> None:
        raise EngineFailed("no metrics page")

    with pytest.raises(EngineFailed, match="no metrics page"):
        run(serve(lambda _, body: completion(body)).url, 3, tmp_path / "r.jsonl", on_progress=progress)


def test_a_handoff_gives_decode_what_prefill_returned(serve: Serve) -> None:
    transfer = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]]}
    prefill = serve(lambda _, body: completion(body, kv_transfer_params=transfer))
    decode = serve(lambda _, body: completion(body))
    record = ask(prompts(1)[0], Handoff(prefill.url, decode.url), SENDING, lambda: None)
    first, second = prefill.asked[0][1], decode.asked[0][1]
    assert first["max_tokens"] == 1
    assert isinstance(first["kv_transfer_params"], dict)
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert second["max_tokens"] == 4
    assert second["kv_transfer_params"] == transfer
    assert first["prompt"] == second["prompt"]
    assert record.completion_tokens == 4
    assert record.first_hop_s is not None
    assert record.first_hop_s <= record.duration_s


def test_a_prefill_without_transfer_parameters_does_not_reach_decode(serve: Serve) -> None:
    prefill = serve(lambda _, body: completion(body))
    decode = serve(lambda _, body: completion(body))
    record = ask(prompts(1)[0], Handoff(prefill.url, decode.url), SENDING, lambda: None)
    assert "prefill hop" in (record.body_error or "")
    assert "without kv_transfer_params" in (record.body_error or "")
    assert decode.asked == []


def test_the_hop_that_failed_is_named_with_its_status(serve: Serve) -> None:
    good = serve(lambda _, body: completion(body, kv_transfer_params={"a": 1}))
    bad = serve(lambda *_: (503, b"overloaded"))
    first = ask(prompts(1)[0], Handoff(bad.url, good.url), SENDING, lambda: None)
    second = ask(prompts(1)[0], Handoff(good.url, bad.url), SENDING, lambda: None)
    assert "prefill hop" in (first.error or "")
    assert "503" in (first.error or "")
    assert "decode hop" in (second.error or "")
    assert second.status == 503


def test_the_engine_applies_its_chat_template_once(serve: Serve) -> None:
    server = serve(lambda *_: (200, b'{"tokens": [128000, 5, 6]}'))
    chat = Prompt("q", 4, messages=(("user", "hello"),))
    plain = Prompt("t", 4, text="as it is")
    encoded = encode((chat, plain), server.url, "m")
    assert [one.content for one in encoded] == [(128000, 5, 6), "as it is"]
    path, body = server.asked[0]
    assert path == "/tokenize"
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert (body["add_generation_prompt"], body["add_special_tokens"]) == (True, False)
    assert len(server.asked) == 1


def test_an_engine_without_chat_template_is_quoted(serve: Serve) -> None:
    server = serve(lambda *_: (400, b'{"error": {"message": "default chat template is no longer allowed"}}'))
    with pytest.raises(EngineFailed, match=r"mt-bench-0: .*default chat template"):
        encode((Prompt("mt-bench-0", 4, messages=(("user", "hi"),)),), server.url, "m")


def write_questions(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_the_first_turn_of_each_question_is_sent_as_a_chat_message(tmp_path: Path) -> None:
    path = write_questions(
        tmp_path / "q.jsonl",
        {"category": "writing", "prompt": ["first\u2028turn", "second"]},
        {"prompt": "only"},
        {"turns": ["a", "b"]},
        {"prompt": ["not sent"]},
    )
    found = load_mt_bench(path, prompts=3, max_tokens=9)
    assert [prompt.messages for prompt in found] == [(("user", text),) for text in ("first\u2028turn", "only", "a")]
    assert [prompt.prompt_id for prompt in found] == ["mt-bench-0", "mt-bench-1", "mt-bench-2"]
    assert {prompt.max_tokens for prompt in found} == {9}


def test_a_missing_data_set_is_misconfigured_and_names_path_and_shape(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r'no\.jsonl does not exist.*"prompt"'):
        load_mt_bench(tmp_path / "no.jsonl")


@pytest.mark.parametrize("line", ["{", "[]", '{"prompt": []}', '{"question": "x"}', '{"prompt": [7]}'])
def test_a_malformed_line_is_named_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": ["fine"]}\n\n' + line + "\n")
    with pytest.raises(Misconfigured, match=r"q\.jsonl line 3"):
        load_mt_bench(path, prompts=2)


def test_too_few_questions_are_misconfigured(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="holds 1 questions, the workload needs 80"):
        load_mt_bench(write_questions(tmp_path / "q.jsonl", {"prompt": ["one"]}))


def test_a_directory_in_place_of_the_file_is_misconfigured(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot be read"):
        load_mt_bench(tmp_path)


def test_the_data_set_is_read_from_a_hub_cache_without_network(tmp_path: Path) -> None:
    commit = "c" * 40
    repo = tmp_path / "datasets--philschmid--mt-bench"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit).mkdir(parents=True)
    write_questions(repo / "snapshots" / commit / "question.jsonl", {"prompt": ["cached"]})
    assert load_mt_bench(None, tmp_path, prompts=1)[0].messages == (("user", "cached"),)
    assert load_mt_bench(None, tmp_path, revision=commit, prompts=1)


def test_a_data_set_that_is_not_cached_is_misconfigured(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="philschmid/mt-bench is not in the hub cache"):
        load_mt_bench(None, tmp_path)


def test_a_prompt_is_text_or_messages() -> None:
    with pytest.raises(ValueError, match="text or messages"):
        Prompt("p", 4)
    with pytest.raises(ValueError, match="asks for 0"):
        Prompt("p", 0, text="t")


def test_the_workload_hash_changes_with_content_length_and_order() -> None:
    first, second = Prompt("a", 4, text="x"), Prompt("b", 4, text="y")
    base = workload_hash([first, second])
    assert base == workload_hash([Prompt("a", 4, text="x"), second])
    others = [
        [second, first],
        [replace(first, max_tokens=5), second],
        [replace(first, text="z"), second],
        [first],
    ]
    assert len({base, *map(workload_hash, others)}) == 5
