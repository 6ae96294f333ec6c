"""Every check passes on a good run and fails on the fault that it is for."""

from __future__ import annotations

import pytest

from harness.checks.registry import CHECKS, judge
from harness.deployments import PD_CHECKS
from harness.facts import CheckResult, ExpectedCounts, RouterFacts, RunFacts
from harness.measure.acceptance import Counts
from tests.unit import check_facts as cf

NO_DRAFTS: cf.Page = {
    ("spec_decode_num_drafts_total", ""): cf.PROMPTS,
    ("spec_decode_num_draft_tokens_total", ""): 3 * cf.PROMPTS,
    ("spec_decode_num_accepted_tokens_total", ""): 0,
    ("spec_decode_num_accepted_tokens_per_pos_total", "position=0"): 0,
    ("spec_decode_num_accepted_tokens_per_pos_total", "position=1"): 0,
    ("spec_decode_num_accepted_tokens_per_pos_total", "position=2"): 0,
}


def fails(name: str, facts: RunFacts, *words: str, verdict: str = "regression") -> CheckResult:
    result = judge(name, facts)
    told = " ".join((result.summary, *result.evidence))
    assert not result.ok
    assert result.verdict == verdict, told
    for word in words:
        assert word in told
    return result


def without_series(facts: RunFacts, server: str, metric: str) -> RunFacts:
    target = next(s for s in facts.servers if s.name == server)
    pages = tuple(
        page.model_copy(update={"samples": tuple(s for s in page.samples if s.name != f"vllm:{metric}")})
        for page in target.windows
    )
    return cf.with_server(facts, server, windows=pages)


@pytest.mark.parametrize("name", PD_CHECKS)
def test_a_good_tiny_run_passes_every_check(name: str) -> None:
    result = judge(name, cf.passing())
    assert result.ok, result.summary
    assert result.name == name
    assert result.verdict == "pass"


@pytest.mark.parametrize("name", PD_CHECKS)
def test_a_good_hub_run_passes_every_check(name: str) -> None:
    result = judge(name, cf.hub())
    assert result.ok, result.summary


def test_every_check_of_the_registry_of_deployments_exists() -> None:
    assert set(PD_CHECKS) <= set(CHECKS)


def test_an_unknown_check_is_a_failure() -> None:
    fails("all_is_well", cf.passing(), "no check is called all_is_well", verdict="misconfigured")


@pytest.mark.parametrize("name", PD_CHECKS)
def test_no_check_passes_over_a_run_that_observed_nothing(name: str) -> None:
    nothing = cf.passing().model_copy(update={"servers": (), "requests": (), "prompts": 0, "router": None})
    assert not judge(name, nothing).ok


def test_a_400_inside_a_200_fails_with_its_status_quoted() -> None:
    facts = cf.with_request(cf.passing(), 2, body_error="decode hop: http://d answered 200 but the body says 400 bad")
    fails("requests_succeeded", facts, "1 of 4", "p2", "400 bad")


def test_a_request_without_answer_fails() -> None:
    fails("requests_succeeded", cf.with_request(cf.passing(), 1, status=None, error="timed out"), "timed out")


def test_a_record_too_few_fails() -> None:
    facts = cf.passing().model_copy(update={"requests": cf.passing().requests[:3]})
    fails("requests_succeeded", facts, "3 requests were recorded for 4 prompts")


def test_a_failed_reference_request_fails_too() -> None:
    extra = cf.request(0).model_copy(update={"stage": "reference", "status": 500, "error": "answered 500"})
    facts = cf.passing().model_copy(update={"requests": (*cf.passing().requests, extra)})
    fails("requests_succeeded", facts, "reference p0")


def test_a_short_answer_fails() -> None:
    facts = cf.with_request(cf.passing(), 0, token_ids=(5, 6), completion_tokens=2, finish_reason="stop")
    fails("token_counts", facts, "p0: 2 of 3 tokens")


def test_a_hub_model_may_stop_early_but_not_be_cut_off() -> None:
    early = {"token_ids": (5, 6), "completion_tokens": 2}
    assert judge("token_counts", cf.with_request(cf.hub(), 0, **early, finish_reason="stop")).ok
    fails("token_counts", cf.with_request(cf.hub(), 0, **early, finish_reason="abort"), "'abort'")


def test_token_ids_that_do_not_add_up_fail() -> None:
    fails("token_counts", cf.with_request(cf.passing(), 0, token_ids=(5,)), "counts 3 tokens and lists 1")
    fails("token_counts", cf.with_request(cf.passing(), 0, token_ids=None), "no token ids")


def test_a_second_bos_fails() -> None:
    fails("one_bos", cf.with_request(cf.passing(), 3, prompt_token_ids=(1, 1, 9)), "more than one BOS", "p3: 2 BOS")


def test_a_missing_bos_fails_only_where_one_is_expected() -> None:
    facts = cf.with_request(cf.hub(), 3, prompt_token_ids=(9, 1))
    fails("one_bos", facts, "lack the BOS")
    assert judge("one_bos", facts.model_copy(update={"add_bos_expected": False})).ok


def test_a_bos_in_front_of_a_tiny_prompt_fails_because_nobody_asked_for_it() -> None:
    facts = cf.passing().model_copy(update={"add_bos_expected": False})
    fails("one_bos", facts, "that nobody asked for", "p0: 1 BOS")
    bare = facts.model_copy(
        update={"requests": tuple(r.model_copy(update={"prompt_token_ids": (9,)}) for r in facts.requests)}
    )
    assert judge("one_bos", bare).ok


def test_unreported_prompt_ids_are_not_one_bos() -> None:
    fails("one_bos", cf.with_request(cf.passing(), 3, prompt_token_ids=None), "no prompt token ids")


def test_prefill_that_served_nothing_fails_with_correct_text() -> None:
    facts = cf.passing(prefill={("request_success_total", "finished_reason=length"): 0})
    fails("roles_served_all", facts, "prefill-0 served 0 of 4")
    assert judge("output_matches_reference", facts).ok


def test_an_aborted_request_is_not_served() -> None:
    facts = cf.passing(
        decode={
            ("request_success_total", "finished_reason=length"): 3,
            ("request_success_total", "finished_reason=abort"): 1,
        }
    )
    fails("roles_served_all", facts, "decode-0 served 3 of 4", "abort")


@pytest.mark.parametrize(
    ("router", "word"),
    [
        (None, "not known"),
        (
            RouterFacts(mode="vllm-router", served=3, failed=0, per_worker={cf.PREFILL: 4, cf.DECODE: 4}),
            "served 3 of 4",
        ),
        (
            RouterFacts(mode="vllm-router", served=4, failed=2, per_worker={cf.PREFILL: 4, cf.DECODE: 4}),
            "2 failed hops",
        ),
        (RouterFacts(mode="vllm-router", served=4, failed=0, per_worker={cf.DECODE: 4}), "sent 0 of 4"),
        (RouterFacts(mode="direct", served=None, failed=None, per_worker={}), "not known"),
        (
            RouterFacts(
                mode="vllm-router",
                served=4,
                failed=0,
                per_worker={cf.PREFILL: 4, cf.DECODE: 4},
                prefill_hops={cf.DECODE: 4},
                decode_hops={cf.PREFILL: 4},
            ),
            "sent 0 of 4 requests to prefill-0 as its prefill server",
        ),
    ],
)
def test_a_router_that_did_not_serve_all_fails(router: RouterFacts | None, word: str) -> None:
    fails("roles_served_all", cf.passing().model_copy(update={"router": router}), word)


def test_the_harness_own_hops_need_no_router() -> None:
    facts = cf.passing().model_copy(update={"router": None})
    for index in range(cf.PROMPTS):
        facts = cf.with_request(facts, index, first_hop_s=0.1)
    assert judge("roles_served_all", facts).ok


def test_a_drafter_that_stops_half_way_is_seen_by_the_tokens_that_no_draft_explains() -> None:
    facts = cf.hub()
    # 10 drafts and 15 accepted tokens explain 25 tokens after the first of each answer, and not 4 * 39.
    for index in range(cf.PROMPTS):
        facts = cf.with_request(facts, index, completion_tokens=40)
    fails("drafts_on_every_engine", facts, "did not fire all the time", "25 of 156")


def test_zero_drafts_with_perfect_text_is_a_regression_and_acceptance_undefined() -> None:
    none: cf.Page = dict.fromkeys(NO_DRAFTS, 0.0)
    facts = cf.passing(decode=none)
    fails("drafts_on_every_engine", facts, "drafter never fired", "undefined")
    fails("acceptance_identity", facts, "undefined")
    length = fails("acceptance_length", facts, "drafter never fired")
    assert length.figures["acceptance_length_raw"] is None
    fails("acceptance_per_position", facts, "undefined")
    assert judge("output_matches_reference", facts).ok


def test_padded_drafts_alone_do_not_count_as_a_drafter() -> None:
    facts = cf.passing(decode=NO_DRAFTS)
    fails("drafts_on_every_engine", facts, "drafter never fired", "4 drafts counted, 4 of them padding")
    hub = facts.model_copy(update={"model_set": "hub", "baseline": cf.baseline(), "expected_counts": None})
    assert fails("acceptance_length", hub, "undefined").figures["acceptance_length_corrected"] is None


def test_one_idle_engine_of_two_is_named() -> None:
    facts = cf.passing()
    decode = facts.servers[1]
    pages = tuple(
        page.model_copy(
            update={
                "samples": page.samples + cf.snapshot(cf.DECODE, dict.fromkeys(cf.DECODE_RUN, 0.0), engine="1").samples
            }
        )
        for page in decode.windows
    )
    facts = cf.with_server(facts, "decode-0", windows=pages, engines=2)
    fails("drafts_on_every_engine", facts, "decode-0 engine 1")


def test_an_engine_that_shows_no_counters_is_missed() -> None:
    fails("drafts_on_every_engine", cf.with_server(cf.passing(), "decode-0", engines=2), "1 engines, 2 were asked for")


@pytest.mark.parametrize(
    ("name", "metric", "server"),
    [
        ("drafts_on_every_engine", "spec_decode_num_drafts_total", "decode-0"),
        ("acceptance_identity", "spec_decode_num_accepted_tokens_per_pos_total", "decode-0"),
        ("acceptance_length", "spec_decode_num_accepted_tokens_total", "decode-0"),
        ("acceptance_windows", "spec_decode_num_draft_tokens_total", "decode-0"),
        ("exact_counts", "spec_decode_num_drafts_total", "prefill-0"),
        ("roles_served_all", "request_success_total", "prefill-0"),
        ("kv_moved", "nixl_bytes_transferred_sum", "decode-0"),
        ("kv_moved", "nixl_num_kv_expired_reqs_total", "prefill-0"),
    ],
)
def test_a_missing_metric_is_a_regression_that_names_url_and_metric(name: str, metric: str, server: str) -> None:
    url = cf.DECODE if server == "decode-0" else cf.PREFILL
    fails(name, without_series(cf.passing(), server, metric), f"{url}/metrics", f"vllm:{metric}")


def test_a_restart_in_the_middle_is_a_regression() -> None:
    facts = cf.passing()
    before, after = facts.servers[1].windows
    fails("acceptance_length", cf.with_server(facts, "decode-0", windows=(after, before)), "restarted")


def test_positions_that_do_not_add_up_fail() -> None:
    facts = cf.passing(decode={("spec_decode_num_accepted_tokens_per_pos_total", "position=2"): 2})
    fails("acceptance_identity", facts, "15/14", "14/14")


def test_a_missing_draft_position_fails() -> None:
    fails("acceptance_identity", with_requested_k(cf.passing(), 4), "3 draft positions for k = 4")


def with_requested_k(facts: RunFacts, k: int) -> RunFacts:
    return cf.with_server(facts, "decode-0", requested=facts.servers[1].requested.model_copy(update={"k": k}))


def test_acceptance_is_judged_corrected_and_two_sided() -> None:
    good = judge("acceptance_length", cf.hub())
    assert good.figures["judged"] == "corrected"
    assert good.figures["acceptance_length_corrected"] == pytest.approx(2.5)
    assert good.figures["acceptance_length_raw"] == pytest.approx(1 + 15 / 14)
    for length in (2.5 * 1.06, 2.5 / 1.06):
        facts = cf.hub().model_copy(update={"baseline": cf.baseline(length=length)})
        fails("acceptance_length", facts, "2.500 (corrected)", f"expected {length:.3f} ± 5 %")


def test_a_lower_bound_lets_better_acceptance_pass() -> None:
    low = cf.baseline(length=2.0, sided="lower")
    assert judge("acceptance_length", cf.hub().model_copy(update={"baseline": low})).ok


@pytest.mark.parametrize("name", ["acceptance_length", "acceptance_per_position"])
def test_no_baseline_is_misconfigured(name: str) -> None:
    facts = cf.hub().model_copy(update={"baseline": None, "baseline_error": "baseline x lacks certificate"})
    fails(name, facts, "baseline x lacks certificate", verdict="misconfigured")


def test_one_draft_position_out_of_tolerance_fails() -> None:
    facts = cf.hub()
    assert facts.baseline is not None
    moved = facts.baseline.model_copy(update={"per_position": (0.8, 0.4, 0.35)})
    fails("acceptance_per_position", facts.model_copy(update={"baseline": moved}), "position 2: 0.3000")


def test_one_count_off_fails_on_tiny_checkpoints() -> None:
    off = ExpectedCounts(drafts=14, draft_tokens=42, accepted=16, per_position=(9, 4, 3))
    facts = cf.passing().model_copy(update={"expected_counts": off})
    for name in ("exact_counts", "acceptance_length", "acceptance_per_position"):
        fails(name, facts)
    fails("exact_counts", facts, "15 accepted", "16 accepted")


def test_tiny_without_computed_counts_is_misconfigured() -> None:
    facts = cf.passing().model_copy(update={"expected_counts": None})
    for name in ("exact_counts", "acceptance_length", "acceptance_per_position"):
        fails(name, facts, verdict="misconfigured")


def test_drafts_on_prefill_are_not_as_computed() -> None:
    facts = cf.passing(prefill={("spec_decode_num_drafts_total", ""): 1})
    fails("exact_counts", facts, "prefill-0", "computed 0 drafts")


def windows_of(facts: RunFacts, *accepted_per_window: int, drafts: int = 1000) -> RunFacts:
    """Decode pages of windows with ``drafts`` drafts each and the given accepted counts at position 0."""
    pages = []
    for index in range(len(accepted_per_window) + 1):
        accepted = sum(accepted_per_window[:index])
        pages.append(
            cf.snapshot(
                cf.DECODE,
                cf.DECODE_RUN
                | {
                    ("spec_decode_num_drafts_total", ""): drafts * index,
                    ("spec_decode_num_draft_tokens_total", ""): 3 * drafts * index,
                    ("spec_decode_num_accepted_tokens_total", ""): accepted,
                    ("spec_decode_num_accepted_tokens_per_pos_total", "position=0"): accepted,
                    ("spec_decode_num_accepted_tokens_per_pos_total", "position=1"): 0,
                    ("spec_decode_num_accepted_tokens_per_pos_total", "position=2"): 0,
                },
                taken_at_s=float(index),
            )
        )
    return cf.with_server(facts, "decode-0", windows=tuple(pages))


def test_a_collapse_in_the_middle_is_seen_though_the_mean_is_fair() -> None:
    fails("acceptance_windows", windows_of(cf.hub(), 900, 0, 900, 900), "window 2 of 4")


def test_prompts_that_differ_are_no_collapse() -> None:
    result = judge("acceptance_windows", windows_of(cf.hub(), 900, 600, 700, 950))
    assert result.ok
    assert result.figures["windows_judged"] == 4


def test_small_windows_are_not_judged_and_say_so() -> None:
    result = judge("acceptance_windows", windows_of(cf.hub(), 90, 0, 90, drafts=100))
    assert result.ok
    assert "not judged" in result.summary


def test_a_long_run_read_only_twice_is_infra() -> None:
    fails("acceptance_windows", windows_of(cf.hub(), 900), "read only 2 times", verdict="infra")


def test_the_collapse_rule_needs_more_than_chance() -> None:
    from harness.checks.stability import collapsed

    rest = Counts(3000, 3000, 2400, (2400,))
    assert collapsed(Counts(1000, 1000, 100, (100,)), rest)
    assert not collapsed(Counts(20, 20, 4, (4,)), rest)
    assert not collapsed(Counts(1000, 1000, 500, (500,)), rest)
    assert not collapsed(Counts(0, 0, 0, (0,)), rest)


def test_no_bytes_moved_fails_with_correct_text() -> None:
    facts = cf.passing(decode={("nixl_bytes_transferred_sum", ""): 0, ("nixl_bytes_transferred_count", ""): 0})
    fails("kv_moved", facts, "no KV was moved to decode-0: 0 bytes", cf.DECODE)
    assert judge("output_matches_reference", facts).ok


def test_a_silent_local_prefill_of_one_request_fails() -> None:
    facts = cf.passing(
        decode={
            ("prompt_tokens_by_source_total", "source=local_compute"): 20,
            ("prompt_tokens_by_source_total", "source=external_kv_transfer"): 60,
        }
    )
    fails("kv_moved", facts, "computed 20 of 80 prompt tokens itself")


def test_a_hybrid_model_may_compute_the_last_token_of_each_request() -> None:
    facts = cf.passing(
        decode={
            ("prompt_tokens_by_source_total", "source=local_compute"): 4,
            ("prompt_tokens_by_source_total", "source=external_kv_transfer"): 76,
        }
    )
    assert judge("kv_moved", facts).ok


def test_a_request_without_transfer_fails() -> None:
    fails("kv_moved", cf.passing(decode={("nixl_bytes_transferred_count", ""): 3}), "4 requests with 3 transfers")


def test_expired_kv_on_prefill_fails() -> None:
    facts = cf.passing(prefill={("nixl_num_kv_expired_reqs_total", ""): 1})
    fails("kv_moved", facts, "prefill-0 counts vllm:nixl_num_kv_expired_reqs_total = 1")


def test_a_late_notification_fails_where_the_engine_counts_them() -> None:
    facts = cf.passing(prefill={("nixl_num_notifications_after_expiry_total", ""): 1})
    fails("kv_moved", facts, "after_expiry")


def test_one_wrong_token_fails_on_tiny_and_is_located() -> None:
    facts = cf.with_request(cf.passing(), 1, token_ids=(5, 9, 7))
    fails("output_matches_reference", facts, "p1 at position 1: expected token 6, got token 9")


def hub_outputs(diverging: int, position: int) -> RunFacts:
    facts = cf.hub().model_copy(update={"reference_mode": "server"})
    texts = tuple(
        text.model_copy(update={"token_ids": tuple(range(40)), "source": "reference"}) for text in facts.expected_text
    )
    facts = facts.model_copy(update={"expected_text": texts})
    for index in range(cf.PROMPTS):
        ids = [*range(40)]
        if index < diverging:
            ids[position:] = [99] * (40 - position)
        facts = cf.with_request(facts, index, token_ids=tuple(ids))
    return facts


def test_a_late_divergence_of_a_real_checkpoint_is_rounding() -> None:
    assert judge("output_matches_reference", hub_outputs(4, 20)).ok


def test_early_divergences_of_a_real_checkpoint_are_lost_state() -> None:
    fails("output_matches_reference", hub_outputs(2, 1), "2 of 4 answers agree")


def test_a_prompt_without_reference_is_not_judged_right() -> None:
    facts = cf.passing().model_copy(update={"expected_text": cf.passing().expected_text[1:]})
    fails("output_matches_reference", facts, "1 of 4", verdict="infra")


def test_an_unjudged_output_says_so() -> None:
    result = judge("output_matches_reference", cf.hub().model_copy(update={"reference_mode": "none"}))
    assert result.ok
    assert "not judged" in result.summary


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("method", "ngram"),
        ("method", None),
        ("k", 1),
        ("k", None),
        ("tensor_parallel", 2),
        ("tensor_parallel", None),
        ("connector", "SharedStorageConnector"),
        ("connector", None),
        ("kv_role", "kv_both"),
        ("block_size", 48),
    ],
)
def test_an_engine_that_runs_something_else_fails(field: str, says: object) -> None:
    facts = cf.passing()
    other = facts.servers[1].effective.model_copy(update={field: says})
    fails("effective_config", cf.with_server(facts, "decode-0", effective=other), "decode-0", field)


def test_what_the_engine_does_not_say_is_listed() -> None:
    facts = cf.passing()
    quiet = facts.servers[1].effective.model_copy(update={"kv_buffer_device": None})
    result = judge("effective_config", cf.with_server(facts, "decode-0", effective=quiet))
    assert result.ok
    assert "decode-0.kv_buffer_device" in result.summary


def test_blocks_enlarged_for_a_recurrent_state_are_as_requested() -> None:
    facts = cf.passing()
    larger = facts.servers[1].effective.model_copy(update={"block_size": 384, "block_enlarged": True})
    assert judge("effective_config", cf.with_server(facts, "decode-0", effective=larger)).ok


def test_blocks_that_are_larger_for_no_reason_are_not_as_requested() -> None:
    facts = cf.passing()
    larger = facts.servers[1].effective.model_copy(update={"block_size": 64})
    fails("effective_config", cf.with_server(facts, "decode-0", effective=larger), "block_size", "64")


def test_a_drafter_that_nobody_asked_for_fails() -> None:
    facts = cf.passing()
    plain = facts.servers[0].requested.model_copy(update={"method": None, "k": None})
    fails("effective_config", cf.with_server(facts, "prefill-0", requested=plain), "method", "eagle3")


def test_a_server_that_no_longer_answers_fails() -> None:
    facts = cf.with_server(cf.passing(), "decode-0", answered_after_run=False, after_error="answered 500: dead")
    fails("answers_after_run", facts, "decode-0", "answered 500: dead")
