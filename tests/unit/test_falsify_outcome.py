"""An outcome is right only with the declared word from the declared check; a weakened check is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.deployments import PD_CHECKS
from harness.errors import Misconfigured
from harness.facts import RunFacts
from harness.falsify.as_hub import as_hub
from harness.falsify.mutation import Mutation
from harness.falsify.outcome import NOTHING, Outcome, failures, judge_all, problem_of, rejudged
from harness.falsify.session import _OUTCOMES, BY_NAME, OUTCOMES_NAME, exit_code, read_again
from harness.falsify.weaken import weaken_each
from harness.run.judge import conclude
from harness.verdict import Verdict
from tests.unit import paired_facts as pf
from tests.unit.check_facts import passing, with_request, with_server


def outcome(name: str = "m", **changes: object) -> Outcome:
    values: dict[str, object] = {
        "name": name,
        "verdict": Verdict.REGRESSION,
        "reason": "r",
        "ended_in": None,
        "failed": ("kv_moved",),
        "hub_verdict": Verdict.REGRESSION,
        "hub_failed": ("kv_moved",),
        "seconds": 1.0,
        "run": "run",
    }
    return Outcome.model_validate(values | changes)


def mutation(caught_by: str = "kv_moved", **changes) -> Mutation:
    values = {"name": "m", "family": "transfer", "deployment": "eagle3-pd", "what": "w", "changes": ()}
    return Mutation(**{**values, "caught_by": caught_by, **changes})


def test_a_mutation_that_is_caught_by_its_check_with_its_word_is_right():
    assert problem_of(mutation(), outcome()) is None


@pytest.mark.parametrize(
    ("declared", "happened", "says"),
    [
        (mutation(), outcome(verdict=Verdict.PASS, failed=(), hub_failed=()), "pass instead of regression"),
        (mutation(), outcome(verdict=Verdict.INFRA), "infra instead of regression"),
        (mutation(), outcome(failed=("exact_counts",)), "kv_moved did not notice; exact_counts did"),
        (mutation(), outcome(failed=None, ended_in="ready"), "kv_moved did not notice; ready did"),
        (mutation("ready"), outcome(), "ready did not notice"),
        (mutation(), outcome(hub_failed=()), "as hub: kv_moved did not notice; nothing did"),
        (mutation(hub=""), outcome(), "below the tolerance"),
        (
            mutation("", verdict=Verdict.PASS),
            outcome(verdict=Verdict.PASS, failed=(), hub_failed=("one_bos",)),
            "on a clean run",
        ),
    ],
)
def test_every_other_outcome_is_reported_in_words(declared, happened, says):
    assert says in (problem_of(declared, happened) or "")


def test_a_phase_can_be_what_catches():
    assert problem_of(mutation("ready"), outcome(failed=None, hub_failed=None, ended_in="ready")) is None


def test_the_facts_of_a_clean_tiny_run_pass_as_those_of_a_hub_run_too():
    assert failures(judge_all(passing(), NOTHING)) == ()
    hub = as_hub(passing())
    assert failures(judge_all(hub, NOTHING)) == ()
    assert hub.expected_counts is None
    assert hub.baseline is not None
    # 14 drafts, 4 of them padding, 15 accepted.
    assert hub.baseline.acceptance_length == pytest.approx(2.5)


def stored(folder: Path, name: str, facts: RunFacts) -> Outcome:
    """A judged run on disk, as `harness falsify` leaves it."""
    run = folder / name
    run.mkdir()
    (run / "facts.json").write_text(facts.model_dump_json(), "utf-8")
    checks, hub = judge_all(facts, NOTHING), judge_all(as_hub(facts), NOTHING)
    return outcome(
        name,
        verdict=conclude(facts, checks).verdict,
        failed=failures(checks),
        hub_verdict=conclude(as_hub(facts), hub).verdict,
        hub_failed=failures(hub),
        run=name,
    )


def test_without_the_check_that_catches_it_a_mutation_is_missed_and_the_session_fails(tmp_path):
    wrong_text = with_request(passing(), 0, token_ids=(9, 9, 9))
    found = stored(tmp_path, "router-last-token-wrong", wrong_text)
    assert found.failed == ("output_matches_reference",)
    weaker = rejudged(found, tmp_path / found.run, frozenset({"output_matches_reference"}))
    assert weaker.verdict is Verdict.PASS
    assert problem_of(BY_NAME[found.name], weaker) is not None


def test_weakening_each_check_says_who_depends_on_it(tmp_path):
    facts = with_request(passing(), 0, completion_tokens=2)
    found = stored(tmp_path, "router-usage-wrong", facts)
    by_check = {one.check: one for one in weaken_each(BY_NAME, (found,), tmp_path)}
    assert set(by_check) >= set(PD_CHECKS)
    assert by_check["token_counts"].noticed == ("router-usage-wrong",)
    assert by_check["token_counts"].alone == ("router-usage-wrong",)
    assert by_check["kv_moved"].noticed == ()


OTHER = (*pf.TOKENS[:5], 7, *pf.TOKENS[6:])


def paired(main: tuple[int, ...], reference: tuple[int, ...]) -> RunFacts:
    """Every answer of a server, of its reference, and of the reference once more."""
    facts = pf.passing()
    for stage, tokens in (("reference", reference), ("control", reference), ("main", main)):
        answers = [pf.answer(i, stage, tokens, open_ended=False) for i in range(pf.PROMPTS)]
        facts = pf.with_answers(facts, stage, answers)
    return facts


@pytest.mark.parametrize(
    ("name", "facts", "check", "alone"),
    [
        ("diverged-from-reference", paired(OTHER, pf.TOKENS), "token_match", False),
        ("diverged-with-reference", paired(OTHER, OTHER), "output_as_computed", True),
        ("prompts-too-few", with_server(pf.passing(), "server-0", ranks=3), "more_prompts_than_ranks", True),
    ],
)
def test_a_mutation_of_a_server_with_a_reference_is_missed_without_its_check(tmp_path, name, facts, check, alone):
    found = stored(tmp_path, name, facts)
    assert problem_of(BY_NAME[name], found) is None
    by_check = {one.check: one for one in weaken_each(BY_NAME, (found,), tmp_path)}
    assert by_check[check].noticed == (name,)
    assert by_check[check].alone == ((name,) if alone else ())


def test_a_finished_folder_is_read_again_and_a_broken_one_is_named(tmp_path):
    found = stored(tmp_path, "router-usage-wrong", with_request(passing(), 0, completion_tokens=2))
    (tmp_path / OUTCOMES_NAME).write_bytes(_OUTCOMES.dump_json((found,)))
    (again,) = read_again([tmp_path], NOTHING)
    assert again.failed == ("token_counts",)
    assert exit_code((), (again,)) == 0
    (weaker,) = read_again([tmp_path], frozenset({"token_counts"}))
    assert exit_code((), (weaker,)) == 1
    with pytest.raises(Misconfigured, match="holds no outcomes"):
        read_again([tmp_path / "none"], NOTHING)


def test_a_catalogue_that_was_not_finished_is_no_success():
    assert exit_code((BY_NAME["kv-zeroed"],), ()) == 1
    assert exit_code((), ()) == 1
