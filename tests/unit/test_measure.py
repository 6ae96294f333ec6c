"""Metrics pages, deltas, acceptance, matching and start-up logs; the pages are of real servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import EngineFailed
from harness.facts import Snapshot
from harness.measure.acceptance import Counts, acceptance, pool
from harness.measure.delta import CounterReset, delta, whole_run
from harness.measure.effective import parse_effective
from harness.measure.matching import TopLogprobs, match, pooled_ratio
from harness.measure.metrics import MissingMetric, UnreadablePage, by_label, fetch, has, parse_page, series, total
from harness.measure.router import router_facts
from harness.measure.windows import windows

DATA = Path(__file__).parent / "data"
URL = "http://127.0.0.1:21001/metrics"


def page(name: str, taken_at_s: float = 0.0) -> Snapshot:
    return parse_page((DATA / name).read_text(), URL, taken_at_s)


def text_page(*lines: str, taken_at_s: float = 0.0) -> Snapshot:
    return parse_page("\n".join(lines), URL, taken_at_s)


def test_acceptance_is_pooled_over_both_engines() -> None:
    found = acceptance(page("dp2.metrics"))
    assert found.pooled == Counts(drafts=30, draft_tokens=90, accepted=49, per_position=(26, 15, 8))
    assert found.pooled.length == pytest.approx(2.6333, abs=5e-5)
    assert found.pooled.rate == pytest.approx(0.5444, abs=5e-5)
    assert found.pooled.position_rates == pytest.approx((0.8667, 0.5, 0.2667), abs=5e-5)
    assert found.engines["0"] == Counts(10, 30, 16, (8, 5, 3))
    assert found.engines["1"] == Counts(20, 60, 33, (18, 10, 5))


def test_a_created_twin_is_not_the_counter() -> None:
    snapshot = text_page(
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        'vllm:spec_decode_num_drafts_created{engine="0"} 1.77692439403224e+09',
        'vllm:spec_decode_num_drafts_total{engine="0"} 6.491797e+06',
    )
    assert total(snapshot, "vllm:spec_decode_num_drafts_total") == 6491797


def test_a_counter_declared_without_its_suffix_keeps_the_name_it_shows() -> None:
    snapshot = text_page("# TYPE requests counter", "requests 3", "requests_total 4")
    assert [sample.name for sample in snapshot.samples] == ["requests", "requests_total"]


def test_a_page_without_the_series_is_an_error_that_names_url_and_series() -> None:
    with pytest.raises(MissingMetric, match=r"http://127\.0\.0\.1:21001/metrics does not show vllm:spec_decode_num_dr"):
        acceptance(text_page("vllm:other_total 1"))


def test_a_label_that_is_not_there_is_an_error_and_never_zero() -> None:
    with pytest.raises(MissingMetric, match='engine="7"'):
        series(page("dp2.metrics"), "vllm:spec_decode_num_drafts_total", {"engine": "7"})
    with pytest.raises(MissingMetric, match="'position'"):
        by_label(page("dp2.metrics"), "vllm:spec_decode_num_drafts_total", "position")


def test_an_error_page_is_not_a_metrics_page() -> None:
    with pytest.raises(UnreadablePage, match=r"127\.0\.0\.1:21001"):
        text_page("<html><body>Bad Gateway</body></html>")


def test_a_server_that_is_gone_is_named() -> None:
    with pytest.raises(UnreadablePage, match=r"http://127\.0\.0\.1:1/metrics did not answer"):
        fetch("http://127.0.0.1:1/metrics", timeout_s=2)


def test_without_drafts_acceptance_is_undefined() -> None:
    none = Counts(0, 0, 0, (0,))
    assert none.length is None
    assert none.rate is None
    assert none.position_rates is None


def test_a_gap_in_the_draft_positions_is_an_error() -> None:
    lines = [line for line in (DATA / "dp2.metrics").read_text().splitlines() if 'position="1"' not in line]
    with pytest.raises(EngineFailed, match="gap"):
        acceptance(text_page(*lines))


@given(st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=4), st.integers(0, 50))
def test_length_is_one_plus_the_sum_over_positions_and_padding_adds_only_rejected_drafts(
    engines: list[list[int]], requests: int
) -> None:
    parts = tuple(
        Counts(len(steps), 3 * len(steps), sum(steps), tuple(sum(n > i for n in steps) for i in range(3)))
        for steps in engines
    )
    pooled = pool(parts)
    assert pooled.consistent
    if pooled.length is not None and pooled.position_rates is not None:
        assert pooled.length == pytest.approx(1 + sum(pooled.position_rates))
    padded = Counts(pooled.drafts + requests, pooled.draft_tokens + 3 * requests, pooled.accepted, pooled.per_position)
    assert padded.without_padding(requests) == pooled


@pytest.mark.parametrize(
    ("model", "counts"), [("dense", Counts(29, 87, 14, (6, 4, 4))), ("hybrid", Counts(27, 27, 14, (14,)))]
)
def test_a_real_decode_server_counts_between_two_pages(model: str, counts: Counts) -> None:
    run = delta(page(f"{model}-decode-before.prom"), page(f"{model}-decode-after.prom", 5.0))
    assert acceptance(run).pooled == counts
    assert run.appeared == ()
    assert run.duration_s == 5.0
    assert total(run, "vllm:request_success_total") == 6
    assert (
        acceptance(delta(page(f"{model}-prefill-before.prom"), page(f"{model}-prefill-after.prom"))).pooled.drafts == 0
    )


def test_a_series_born_during_the_run_counts_from_zero_and_is_flagged() -> None:
    run = delta(text_page('vllm:a_total{engine="0"} 1'), text_page('vllm:a_total{engine="0"} 1', "vllm:nixl_sum 7"))
    assert total(run, "vllm:nixl_sum") == 7
    assert run.appeared == ("vllm:nixl_sum{}",)


def test_gauges_and_foreign_series_are_no_part_of_a_delta() -> None:
    run = delta(
        text_page("vllm:num_requests_running 3", "python_gc_objects_collected_total 9"),
        text_page("vllm:num_requests_running 1", "python_gc_objects_collected_total 1"),
    )
    assert not has(run, "vllm:num_requests_running")


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        (("vllm:a_total 5",), ("vllm:a_total 4",), "went from 5 back to 4"),
        (("vllm:a_total 5", "vllm:a_created 1"), ("vllm:a_total 9", "vllm:a_created 2"), "vllm:a_created"),
        (("vllm:a_total 5",), ("vllm:b_total 5",), "no longer shows vllm:a_total"),
    ],
)
def test_a_restarted_server_is_detected(before: tuple[str, ...], after: tuple[str, ...], word: str) -> None:
    with pytest.raises(CounterReset, match=word):
        delta(text_page(*before), text_page(*after))


def test_a_reset_between_inner_pages_is_detected_though_the_last_page_is_higher() -> None:
    pages = tuple(text_page(f"vllm:a_total {count}") for count in (5, 2, 9))
    with pytest.raises(CounterReset):
        whole_run(pages)


def test_one_page_is_no_run() -> None:
    with pytest.raises(EngineFailed, match="read 1 times"):
        whole_run((page("dp2.metrics"),))


def test_windows_add_up_to_the_run() -> None:
    pages = (
        page("dense-decode-before.prom"),
        page("dense-decode-before.prom", 1.0),
        page("dense-decode-after.prom", 2),
    )
    parts = windows(pages)
    assert [part.counts.drafts for part in parts] == [0, 29]
    assert [part.duration_s for part in parts] == [1.0, 1.0]
    assert windows(pages[:1]) == ()


def test_the_router_counts_hops_and_failures_per_worker() -> None:
    found = router_facts(page("dense-router-before.prom"), page("dense-router-after.prom"))
    assert found.served == 5
    assert found.failed == 2
    assert found.per_worker == {"http://127.0.0.1:18100": 5, "http://127.0.0.1:18200": 5}
    assert len(found.prefill_hops) == len(found.decode_hops) == 1
    assert found.prefill_hops | found.decode_hops == found.per_worker


def test_a_router_that_counts_nothing_is_an_error() -> None:
    with pytest.raises(MissingMetric, match="vllm_router_pd_prefill_requests_total"):
        router_facts(text_page(), text_page("vllm_router_worker_health 1"))


def test_identical_outputs_match_to_the_end() -> None:
    one = match((1, 2, 3), (1, 2, 3))
    assert one.identical
    assert (one.matched, one.length, one.common_prefix, one.ratio) == (3, 3, 3, 1.0)


def test_the_first_divergence_names_both_tokens() -> None:
    one = match((1, 2, 3, 4), (1, 9, 3, 4))
    assert str(one.divergence) == "at position 1: expected token 2, got token 9"
    assert (one.matched, one.common_prefix, one.ratio) == (3, 1, 0.75)


LIKELIEST = (((1, -0.1), (5, -2.5)), ((2, -0.25), (9, -1.75), (4, -3.0)), ((3, 0.0),))


@pytest.mark.parametrize(
    ("actual", "said"),
    [
        ((1, 9, 3), "expected token 2, got token 9; margin of the reference 1.5000 nats"),
        ((1, 8, 3), "expected token 2, got token 8; margin of the reference beyond the top 3, over 2.7500 nats"),
        ((5, 2, 3), "expected token 1, got token 5; margin of the reference 2.4000 nats"),
        ((1, 2), "expected token 3, got its end"),
        ((1, 2, 3, 4), "expected its end, got token 4"),
    ],
)
def test_a_divergence_says_how_much_the_reference_preferred_its_token(actual: tuple[int, ...], said: str) -> None:
    assert str(match((1, 2, 3), actual, LIKELIEST).divergence).partition(": ")[2] == said


@pytest.mark.parametrize("logprobs", [None, (), (((1, 0.0),),), (((1, 0.0),), ((9, -0.5),))])
def test_a_margin_that_the_reference_did_not_give_is_not_made_up(logprobs: TopLogprobs | None) -> None:
    assert str(match((1, 2, 3), (1, 9, 3), logprobs).divergence) == "at position 1: expected token 2, got token 9"


def test_a_short_output_is_a_divergence_at_its_end() -> None:
    one = match((1, 2, 3), (1, 2))
    assert str(one.divergence) == "at position 2: expected token 3, got its end"
    assert one.length == 3


def test_nothing_compared_has_no_ratio() -> None:
    assert pooled_ratio([]) is None
    assert pooled_ratio([match((1, 2), (1, 3)), match((1, 2), (1, 2))]) == 0.75


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_matching_is_symmetric_and_its_prefix_is_a_prefix(left: list[int], right: list[int]) -> None:
    one, other = match(left, right), match(right, left)
    assert (one.matched, one.common_prefix, one.ratio) == (other.matched, other.common_prefix, other.ratio)
    assert left[: one.common_prefix] == right[: one.common_prefix] or one.identical
    assert one.identical == (left == right)


def test_a_hybrid_decode_server_says_what_it_runs() -> None:
    found = parse_effective((DATA / "hybrid-decode.log").read_text(), "decode")
    assert found.model == found.drafter == "/models/cq"
    assert (found.method, found.k) == ("mtp", 1)
    assert (found.tensor_parallel, found.data_parallel, found.pipeline_parallel) == (1, 1, 1)
    assert found.expert_parallel is False
    assert (found.connector, found.kv_role, found.kv_buffer_device) == ("NixlConnector", "kv_consumer", "cpu")
    assert found.load_failure_policy == "fail"
    assert (found.block_size, found.max_model_len) == (384, 1024)
    assert found.block_enlarged


def test_a_dense_decode_server_names_its_drafter() -> None:
    found = parse_effective((DATA / "dense-decode.log").read_text(), "decode")
    assert (found.method, found.k, found.drafter) == ("eagle3", 3, "/models/ae3")
    assert found.block_size is None
    assert not found.block_enlarged


def test_a_connector_that_was_only_asked_for_is_not_effective() -> None:
    lines = (DATA / "dense-decode.log").read_text().splitlines()
    asked = "\n".join(line for line in lines if "Creating v1 connector" not in line)
    assert parse_effective(asked, "decode").connector is None


def test_a_log_that_says_nothing_gives_nothing() -> None:
    found = parse_effective("Traceback (most recent call last):\n", "decode")
    assert found.model is None
    assert found.k is None
    assert found.expert_parallel is None
    assert "no start-up line" in found.source


def test_lines_of_other_processes_in_between_do_not_matter() -> None:
    lines = (DATA / "hybrid-decode.log").read_text().splitlines()
    noisy = "\n".join(f"(Worker pid=1) INFO loading\n{line}\n(Worker pid=2) method='ngram'" for line in lines)
    assert parse_effective(noisy, "decode") == parse_effective((DATA / "hybrid-decode.log").read_text(), "decode")


def test_the_engines_of_a_dense_data_parallel_server_are_counted_by_their_names() -> None:
    # A dense model's engines share nothing, so each says data_parallel_size=1 of itself.
    log = (DATA / "dense-decode.log").read_text()
    assert parse_effective(log, "decode").data_parallel == 1
    lines = "".join(f"(EngineCore_DP{rank} pid={rank + 7}) INFO 11-30 17:00:00 [core.py:1] up\n" for rank in (0, 1, 0))
    assert parse_effective(lines + log, "decode").data_parallel == 2


def test_model_runner_v2_is_effective_where_the_worker_says_so() -> None:
    log = (DATA / "dense-decode.log").read_text()
    assert parse_effective(log, "decode").model_runner_v2 is False
    said = "(Worker pid=9) INFO 11-30 17:00:00 [gpu_worker.py:518] Using V2 Model Runner\n"
    assert parse_effective(log + said, "decode").model_runner_v2 is True
    assert parse_effective("", "decode").model_runner_v2 is None


def test_a_server_without_drafter_has_no_method() -> None:
    log = (DATA / "dense-decode.log").read_text()
    start, end = log.index("speculative_config=SpeculativeConfig("), log.index(", tokenizer=")
    found = parse_effective(log[:start] + "speculative_config=None" + log[end:], "decode")
    assert (found.method, found.k, found.drafter) == (None, None, None)
    assert found.tensor_parallel == 1
