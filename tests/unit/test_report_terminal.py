from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import count

import pytest
from rich.console import Console

from harness.facts import CheckResult
from harness.report.terminal import Progress, console_for, render_summary
from harness.result import Result
from harness.verdict import Verdict
from tests.unit.report_inputs import CANARY, HOSTILE, RUN_DIR, failed_check, result

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def console(stream: io.StringIO, *, tty: bool = False, width: int = 80) -> Console:
    return Console(
        file=stream, width=width, force_terminal=tty, force_interactive=tty, color_system="truecolor" if tty else None
    )


def summary(of: Result, width: int = 80) -> str:
    stream = io.StringIO()
    render_summary(of, console(stream, width=width))
    return stream.getvalue()


def clock() -> Iterator[float]:
    return (float(second) for second in count())


def test_the_verdict_is_the_first_word_and_the_next_command_the_last_line() -> None:
    lines = summary(result()).strip().splitlines()
    assert lines[0].split()[:2] == ["REGRESSION", "eagle3-pd"]
    assert lines[-1].endswith(result().next_step or "")


def test_the_summary_names_everything_a_reader_needs() -> None:
    text = summary(result())
    for needed in (
        "11.2 % below the baseline",
        "> (EngineCore_DP0) ValueError: layer 78 weights missing from checkpoint",
        f"in {RUN_DIR}/logs/decode-0.log",
        "acceptance_length",
        "2.3100",
        "2.6000",
        "±5 %",
        "6 of 7 passed: requests_succeeded",
        "> decode-0: 12345 drafts, 16172 accepted",
        "ready 38.5 s",
        "drive 61.2 s (failed)",
        "vllm_version 0.33.0",
        "GPU A, GPU A",
        "decode-0: import trace",
        f"run      {RUN_DIR}",
    ):
        assert needed in text
    assert "f00d" not in text


def test_only_failing_checks_are_told_in_full() -> None:
    text = summary(result())
    assert "80 of 80" not in text
    assert "low from the first window" in " ".join(text.split())


def test_a_pass_says_what_each_check_showed_and_leaves_the_other_figures_to_the_files() -> None:
    checks = [CheckResult(name="kv_moved", ok=True, verdict="pass", summary="4096 bytes in 80 transfers")]
    figures = {"acceptance_length": 2.6, "per_position": [0.7296, 0.5208], "transfers": 80, "most_bos": 1}
    text = summary(result(verdict=Verdict.PASS, checks=checks, figures=figures))
    assert "✓ kv_moved  4096 bytes in 80 transfers" in text
    assert "per_position[1]" in text
    assert "most_bos" not in text
    assert "transfers  " not in text


def test_servers_with_the_same_adjustments_share_a_line() -> None:
    text = summary(result(adjustments={"prefill-0": ["delay"], "decode-0": ["delay"], "reference-0": []}))
    assert "adjusted prefill-0, decode-0: delay" in text
    assert "adjusted reference-0: nothing" in text


def test_what_the_plan_says_of_itself_is_printed() -> None:
    text = summary(result(notes=["batch-invariant kernels: on", "servers share devices (--share-devices)"]))
    assert "note     batch-invariant kernels: on" in text
    assert "servers share devices" in text


def test_a_workload_hash_is_cut_to_what_tells_two_apart() -> None:
    text = summary(result(workload={"name": "mt-bench", "hash": "0123456789abcdef" * 4}))
    assert "hash 0123456789ab" in text
    assert "0123456789abc" not in text


@pytest.mark.parametrize("width", [80, 60, 40])
def test_every_line_fits_but_the_ones_to_be_copied(width: int) -> None:
    long = "word " * 60
    run = result(reason=long, checks=[failed_check(summary=long + "x" * 200)], not_judged=["one_bos"] * 20)
    too_long = [line.strip() for line in summary(run, width).splitlines() if len(line) > width]
    assert all(line.startswith((">", "in ", "run ", "next ")) for line in too_long), too_long


def test_text_from_servers_is_shown_literally() -> None:
    run = result(
        reason=HOSTILE,
        root_line=HOSTILE,
        checks=[failed_check(name=HOSTILE, summary=HOSTILE, evidence=(HOSTILE,), figures={HOSTILE: HOSTILE})],
        figures={HOSTILE: HOSTILE},
        expected={HOSTILE: "y"},
        engine={HOSTILE: HOSTILE},
        adjustments={HOSTILE: [HOSTILE]},
    )
    text = summary(run)
    assert "[bold]x[/bold] [/nope]" in text
    assert not {c for c in text if ord(c) < 32 and c != "\n"} | {c for c in text if 0x7F <= ord(c) < 0xA0}


def test_a_secret_never_reaches_the_terminal() -> None:
    leak = f"token {CANARY}"
    run = result(
        reason=leak, root_line=leak, next_step=leak, engine={"a": leak}, checks=[failed_check(evidence=(leak,))]
    )
    assert "CANARY" not in summary(run)


def test_an_empty_result_still_has_its_verdict_and_reason() -> None:
    bare = Result(
        run_id="r",
        deployment="nope",
        verdict=Verdict.MISCONFIGURED,
        reason="No deployment is called nope.",
        started_at="now",
        harness_version="0",
        run_dir="/r",
    )
    text = summary(bare)
    assert text.split()[:2] == ["MISCONFIGURED", "nope"]
    assert "No deployment is called nope." in text
    assert "figure" not in text
    assert "checks" not in text


def test_an_ascii_stream_does_not_end_the_run() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    ascii_console = Console(file=stream, width=80, force_terminal=False)
    with Progress(ascii_console) as progress, progress.phase("ready"):
        progress.note("naïve ✓")
    render_summary(result(reason="naïve · ±5 %"), ascii_console)
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "ok ready" in text
    assert "na?ve - +-5 %" in text


def test_phases_off_a_terminal_are_plain_stable_lines() -> None:
    stream = io.StringIO()
    with Progress(console(stream), clock=clock().__next__) as progress:
        with progress.phase("lease"):
            pass
        with progress.phase("ready"):
            progress.detail("decode-0 ready (2.1 s)")
            progress.detail("decode-0 ready (2.1 s)")
        with progress.phase("drive"):
            for done in range(1, 81):
                progress.count(done, 80, "requests")
            progress.note("[red]router[/red] retries are off")
    assert stream.getvalue().splitlines() == [
        "✓ lease 1.0 s",
        "  decode-0 ready (2.1 s)",
        "✓ ready 1.0 s",
        "  20 of 80 requests",
        "  40 of 80 requests",
        "  60 of 80 requests",
        "  80 of 80 requests",
        "  [red]router[/red] retries are off",
        "✓ drive 1.0 s",
    ]


def test_a_long_path_in_a_note_is_not_broken() -> None:
    stream = io.StringIO()
    with Progress(console(stream)) as progress:
        progress.note("/long" * 40)
    assert "/long" * 40 in stream.getvalue()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_phase_left_by_an_exception_is_marked_and_the_terminal_given_back(error: type[BaseException]) -> None:
    stream = Terminal()

    def leave() -> None:
        with Progress(console(stream, tty=True)) as progress, progress.phase("ready"):
            progress.detail("decode-0 ready (2.1 s)")
            raise error

    with pytest.raises(error):
        leave()
    text = stream.getvalue()
    assert "✗" in text
    assert text.rfind(SHOW_CURSOR) > text.rfind(HIDE_CURSOR)


def test_the_cursor_is_never_left_hidden_while_a_phase_runs() -> None:
    stream = Terminal()
    with Progress(console(stream, tty=True)) as progress, progress.phase("ready"):
        text = stream.getvalue()
        assert HIDE_CURSOR in text
        assert text.rfind(SHOW_CURSOR) > text.rfind(HIDE_CURSOR)


def test_the_outer_phase_goes_on_after_an_inner_one() -> None:
    stream = Terminal()
    with Progress(console(stream, tty=True), clock=clock().__next__) as progress, progress.phase("reference"):
        with progress.phase("ready"):
            pass
        progress.detail("80 texts")
    text = stream.getvalue()
    assert text.index(" ready ") < text.rindex(" reference ")


def test_ci_gets_plain_lines_even_on_a_terminal() -> None:
    assert console_for(Terminal(), {"TERM": "xterm"}).is_interactive
    in_ci = console_for(Terminal(), {"TERM": "xterm", "CI": "true", "FORCE_COLOR": "1"})
    assert not in_ci.is_interactive
    stream = Terminal()
    render_summary(result(), console_for(stream, {"CI": "true"}))
    assert "\x1b" not in stream.getvalue()
