"""A stage over live servers: judged ones and reference each get the workload, and a control when they differ."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from harness.deployments import DEPLOYMENTS, Limits
from harness.drive.lm_eval import Evaluation
from harness.drive.workloads import Prompt
from harness.errors import EngineFailed
from harness.facts import EvaluationFacts, ExpectedText
from harness.plan.types import RouterPlan, ServerPlan, Stage
from harness.report.terminal import Progress
from harness.run import stage as stage_module
from harness.run.journal import Journal
from harness.run.stage import StageObservation, observe, smoke
from harness.run.workload import Workload

EP2_EPLB = DEPLOYMENTS["ep2-eplb"]
PROMPTS = tuple(Prompt(prompt_id=f"p{i}", text=f"prompt {i}", max_tokens=4, open_ended=False) for i in range(6))
EXACT = Workload(
    name="tiny",
    prompts=PROMPTS,
    smoke=Prompt(prompt_id="smoke", text="smoke", max_tokens=4),
    concurrency=2,
    ignore_eos=True,
    counts=None,
    texts=(ExpectedText(prompt_id="p0", token_ids=(1,), source="computed"),),
)
Tokens = Callable[[str, int], list[int]]


def same(prompt: str, asked: int) -> list[int]:
    del asked
    return [ord(character) for character in prompt[-4:]]


class Server:
    """One engine on a port of its own. ``tokens(prompt, how often that prompt came before)`` are its answers."""

    def __init__(self, tokens: Tokens, name: str, logs: Path) -> None:
        asked: dict[str, int] = {}
        log = logs / f"{name}.log"
        log.write_text("")

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def reply(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def do_GET(self) -> None:
                total = sum(asked.values())
                self.reply(200, f'vllm:request_success_total{{engine="0",finished_reason="length"}} {total}\n')

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                ids = tokens(body["prompt"], asked.get(body["prompt"], 0))
                asked[body["prompt"]] = asked.get(body["prompt"], 0) + 1
                if not ids:
                    log.write_text("RuntimeError: the layout is wrong\n")
                    self.reply(500, json.dumps({"error": {"message": "see the log"}}))
                    return
                with log.open("a") as stream:
                    stream.write("Rearranging experts sync mode ...\n")
                choice = {"text": "x", "token_ids": ids, "prompt_token_ids": [1], "finish_reason": "length"}
                usage = {"prompt_tokens": 1, "completion_tokens": len(ids)}
                self.reply(200, json.dumps({"choices": [choice], "usage": usage}))

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.plan = ServerPlan(
            name=name,
            role="reference" if name.startswith("reference") else "server",
            host="127.0.0.1",
            port=self.http.server_address[1],
            argv=("--enable-eplb",),
            environment={},
            removed={},
            devices=(),
            served_model="m",
            engines=1,
            ranks=1,
            side_channel_ports=(),
            metrics_url=f"http://127.0.0.1:{self.http.server_address[1]}/metrics",
            log_name=f"{name}.log",
        )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


@contextmanager
def running(run_dir: Path, **answers: Tokens) -> Iterator[dict[str, ServerPlan]]:
    servers = {name: Server(tokens, f"{name}-0", run_dir / "logs") for name, tokens in answers.items()}
    try:
        yield {name: server.plan for name, server in servers.items()}
    finally:
        for server in servers.values():
            server.http.shutdown()
            server.http.server_close()


def observed(stage: Stage, run_dir: Path, earlier: tuple[StageObservation, ...] = ()) -> tuple[StageObservation, ...]:
    with Progress(Console(file=io.StringIO())) as progress:
        journal = Journal(run_dir, progress)
        return observe(EP2_EPLB, stage, EXACT, run_dir, journal, lambda: None, lambda *_: None, earlier)


def test_both_parts_of_a_stage_get_every_prompt_and_equal_answers_need_no_control(run_dir: Path) -> None:
    with running(run_dir, server=same, reference=same) as plans:
        main, reference = observed(Stage("main", tuple(plans.values()), None), run_dir)
    assert (main.stage, reference.stage) == ("main", "reference")
    assert [request.stage for request in main.requests] == ["main"] * 6
    assert [request.token_ids for request in main.requests] == [request.token_ids for request in reference.requests]
    assert main.control == reference.control == ()
    assert all(server.answered_after_run for one in (main, reference) for server in one.servers)


def test_a_reference_that_differs_is_asked_a_second_time(run_dir: Path) -> None:
    def drifts(prompt: str, asked: int) -> list[int]:
        return [*same(prompt, 0)[:-1], 7 + asked]

    with running(run_dir, server=same, reference=drifts) as plans:
        _, reference = observed(Stage("main", tuple(plans.values()), None), run_dir)
    assert [request.stage for request in reference.control] == ["control"] * 6
    assert [(request.token_ids or ())[-1] for request in reference.requests] == [7] * 6
    assert [(request.token_ids or ())[-1] for request in reference.control] == [8] * 6


def test_a_reference_of_a_later_stage_is_compared_with_the_earlier_one(run_dir: Path) -> None:
    with running(run_dir, server=same, reference=lambda *_: [9, 9, 9, 9]) as plans:
        first = observed(Stage("main", (plans["server"],), None), run_dir)
        (later,) = observed(Stage("reference", (plans["reference"],), None), run_dir, first)
    assert later.stage == "reference"
    assert len(later.control) == 6


@pytest.mark.parametrize(("right", "asked_of"), [(60, ["main"]), (59, ["main", "reference"])])
def test_lm_eval_asks_after_the_last_page_and_the_reference_only_as_a_control(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, right: int, asked_of: list[str]
) -> None:
    found: list[str] = []

    def evaluated(_: Evaluation, url: str, model: str, stage: str, folder: Path, **__: object) -> EvaluationFacts:
        found.append(stage)
        assert folder == run_dir / "lm-eval" / stage
        for prompt in ("p", "q"):
            httpx.post(f"{url}/v1/completions", json={"prompt": prompt, "max_tokens": 1, "model": model})
        return EvaluationFacts(
            stage=stage,  # type: ignore[arg-type]
            task="t",
            right=right,
            asked=100,
            exact_match=right / 100,
            exact_match_strict=0.0,
            lm_eval_version="0",
            output="o",
        )

    monkeypatch.setattr(stage_module, "evaluate", evaluated)
    workload = replace(EXACT, evaluation=Evaluation(None, 100, 16, {}))
    deployment = replace(EP2_EPLB, limits=Limits(gsm8k=0.6))
    with running(run_dir, server=same, reference=same) as plans, Progress(Console(file=io.StringIO())) as progress:
        stage = Stage("main", tuple(plans.values()), None)
        journal = Journal(run_dir, progress)
        main, reference = observe(deployment, stage, workload, run_dir, journal, lambda: None, lambda *_: None)
    assert found == asked_of
    assert main.evaluation is not None
    assert (reference.evaluation is not None) is (len(asked_of) == 2)
    # The two requests of the evaluation are in no page.
    assert [round(page.samples[0].value) for page in (main.servers[0].pages[0], main.servers[0].pages[-1])] == [0, 6]


def test_rearrangements_are_counted_from_the_log_at_each_page(run_dir: Path) -> None:
    with running(run_dir, server=same) as plans:
        (main,) = observed(Stage("main", (plans["server"],), None), run_dir)
    counts = main.servers[0].rearranged
    assert counts is not None
    assert (counts[0], counts[-1]) == (0, 6)
    assert list(counts) == sorted(counts)
    assert len(counts) == len(main.servers[0].pages)


def test_a_server_without_load_balancing_has_no_rearrangements(run_dir: Path) -> None:
    with running(run_dir, server=same) as plans:
        (main,) = observed(Stage("main", (replace(plans["server"], argv=()),), None), run_dir)
    assert main.servers[0].rearranged is None


def test_a_smoke_request_that_fails_names_the_server_and_points_at_its_log(run_dir: Path) -> None:
    with running(run_dir, server=same, reference=lambda *_: []) as plans, pytest.raises(EngineFailed) as end:
        smoke(EXACT, Stage("main", tuple(plans.values()), None), EP2_EPLB, run_dir / "logs", lambda: None)
    assert "reference-0" in str(end.value)
    assert end.value.log == run_dir / "logs" / "reference-0.log"


def test_the_router_belongs_to_the_judged_servers_only() -> None:
    router = RouterPlan("router-0", (), {}, {}, "127.0.0.1", 1, 2, "router-0.log")
    server = ServerPlan("decode-0", "decode", "h", 1, (), {}, {}, (), "m", 1, 1, (), "", "")
    stage = Stage("main", (server, replace(server, name="reference-0", role="reference")), router)
    assert [(part.name, part.router) for part in stage.parts] == [("main", router), ("reference", None)]
