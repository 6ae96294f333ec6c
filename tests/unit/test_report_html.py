from __future__ import annotations

import re
from html.parser import HTMLParser

from harness.report.html import render_html
from harness.verdict import Verdict
from tests.unit.report_inputs import CANARY, HOSTILE, RUN_DIR, failed_check, request, result

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tags and attributes of a page; fails on a tag that is closed out of order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_holds_what_the_terminal_says_and_more() -> None:
    html = render_html(result(), [request(), request(index=1, status=None, error="refused")], {"decode-0.log": "boom"})
    Page(html)
    for needed in (
        '<body class="regression">',
        "11.2 % below the baseline",
        "layer 78 weights missing",
        "2.6000",
        "✗ outside",
        "decode-0: 12345 drafts",
        "61.2 s",
        "GPU A, GPU A",
        "import trace",
        "--launch spawn",
        "2 requests, 1 failed",
        "refused",
        "2.33",
        "boom",
    ):
        assert needed in html


def test_the_page_needs_nothing_from_outside_and_runs_nothing() -> None:
    page = Page(render_html(result(), [request()], {"decode-0.log": "x"}))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    links = [value or "" for name, value in page.attributes if name in ("src", "href")]
    assert links
    assert all(not re.match(r"(?i)[a-z]+:|//", link) for link in links)


def test_hostile_text_is_shown_literally_everywhere() -> None:
    hostile = HOSTILE + '"><img src=x onerror=y>'
    run = result(
        deployment=hostile,
        reason=hostile,
        root_line=hostile,
        log=hostile,
        next_step=hostile,
        engine={hostile: hostile},
        figures={hostile: hostile},
        expected={hostile: "y"},
        adjustments={hostile: [hostile]},
        checks=[failed_check(name=hostile, summary=hostile, evidence=(hostile,), figures={hostile: hostile})],
    )
    rows = [request(prompt_id=hostile, error=hostile, text=hostile, finish_reason=hostile)]
    html = render_html(run, rows, {hostile: hostile})
    page = Page(html)
    assert not {"script", "img"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "{{ 7 * 7 }}" in html
    assert not {c for c in html if ord(c) < 32 and c != "\n"} | {c for c in html if 0x7F <= ord(c) < 0xA0}


def test_a_secret_never_reaches_the_page() -> None:
    leak = f"HF {CANARY}"
    html = render_html(
        result(reason=leak, root_line=leak, log=leak, hardware={"a": leak}, cleanup={"b": [leak]}),
        [request(text=leak, body_error=leak)],
        {"decode-0.log": leak},
    )
    assert "CANARY" not in html
    assert "***" in html


def test_a_known_secret_of_no_known_shape_is_masked_everywhere() -> None:
    leak = "it is tulips-at-dawn here"
    html = render_html(result(reason=leak), [request(text=leak)], {"a.log": leak}, secrets={"tulips-at-dawn"})
    assert "tulips" not in html
    assert html.count("it is *** here") == 3


def test_a_log_is_linked_inside_the_run_folder_only() -> None:
    assert 'href="./logs/decode-0.log"' in render_html(result(), [], {})
    assert 'href="./logs/a%20b.log"' in render_html(result(log="logs/a b.log"), [], {})
    for outside in ("/etc/passwd", f"{RUN_DIR}/../x.log", "javascript:alert(1)/../../x"):
        assert "x.log" not in "".join(re.findall('href="[^"]*"', render_html(result(log=outside), [], {})))
        assert "passwd" not in "".join(re.findall('href="[^"]*"', render_html(result(log=outside), [], {})))
    assert 'href="./javascript%3Aalert%281%29"' in render_html(result(log="javascript:alert(1)"), [], {})


def test_the_log_to_blame_is_the_one_that_is_open() -> None:
    html = render_html(result(), [], {"prefill-0.log": "a", "decode-0.log": "b"})
    assert re.findall(r"<details open><summary>([^<]*)", html) == ["decode-0.log"]


def test_a_run_that_measured_nothing_still_has_a_page() -> None:
    html = render_html(
        result(verdict=Verdict.INFRA, figures={}, expected={}, checks=[], phases=[], root_line=None, log=None), [], {}
    )
    Page(html)
    assert "No request was sent." in html
    assert "<h2>Figures" not in html


def test_a_flood_of_requests_is_cut_and_says_so() -> None:
    html = render_html(result(), [request(index=i) for i in range(1003)], {})
    assert "3 more are in requests.jsonl" in html
    assert "1003 requests, 0 failed" in html
