from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from harness.report.plaintext import one_line, plain
from tests.unit.report_inputs import CANARY


@given(text=st.text())
def test_nothing_is_left_that_could_steer_a_terminal_or_break_a_file(text: str) -> None:
    shown = plain(text)
    assert {unicodedata.category(c) for c in shown if c != "\n"} & {"Cc", "Cs", "Zl", "Zp"} == set()
    shown.encode("utf-8")


def test_escape_sequences_go_as_a_whole_and_text_stays() -> None:
    assert plain("\x1b[1;31mred\x1b[0m \x1b]0;title\x07t \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\ \x9b2Jend") == (
        "red t link end"
    )


def test_a_progress_bar_cannot_hide_what_it_rewound_over() -> None:
    assert plain("first\rsecond\r\nthird") == "first\nsecond\nthird"


def test_bidirectional_marks_are_removed() -> None:
    assert plain("a\u202eb\u2066c\u200b") == "abc"


def test_an_escape_sequence_inside_a_token_does_not_save_it() -> None:
    assert "CANARY" not in plain(f"{CANARY[:9]}\x1b[0m{CANARY[9:]}")


def test_one_line_joins_and_cuts() -> None:
    assert one_line("a\n\tb   c") == "a b c"
    assert one_line("abcdef", 4) == "abc…"
