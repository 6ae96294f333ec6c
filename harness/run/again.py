"""A finished run judged again, or recorded as a baseline, from the facts it left behind."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from harness.baselines import Provenance, Query, load, record, select
from harness.errors import Misconfigured
from harness.facts import RunFacts
from harness.files import LARGEST_DATA_BYTES, read_bounded
from harness.result import Result, read_result, write_result
from harness.run.finish import next_step, write_report
from harness.run.judge import FACTS_NAME, conclude, run_assertions
from harness.run.summary import expected_of, figures_of

# What a first run fails for want of the value that is recorded from it.
_JUDGED_BY_BASELINE = frozenset({"acceptance_length", "acceptance_per_position"})


def read_run(run_dir: Path) -> tuple[Result, RunFacts]:
    """Result and facts of a finished run. Raises Misconfigured naming the file that is missing or broken."""
    try:
        result = read_result(run_dir)
        facts = RunFacts.model_validate_json(read_bounded(run_dir / FACTS_NAME, LARGEST_DATA_BYTES))
    except FileNotFoundError as error:
        raise Misconfigured(
            f"{error.filename} does not exist; give the folder of a run that was driven to its end."
        ) from error
    except (OSError, ValidationError) as error:
        raise Misconfigured(f"{run_dir} holds no readable run: {str(error).splitlines()[0]}") from error
    return result, facts


def judge_again(run_dir: Path, baselines: Path | None) -> Result:
    """Run the assertions over a run's facts once more and rewrite its result; with other baselines if given."""
    result, facts = read_run(run_dir)
    if baselines is not None and "acceptance_length" in facts.checks:
        chosen = select(load(baselines), _query(result, facts))
        facts = facts.model_copy(update={"baseline": chosen, "baseline_error": None})
        result.baseline = chosen.model_dump(mode="json")
    checks = run_assertions(run_dir, facts)
    judgement = conclude(facts, checks)
    result.checks = list(checks)
    result.figures, result.expected = figures_of(facts, checks), expected_of(facts)
    result.verdict, result.reason = judgement.verdict, judgement.reason
    result.next_step = next_step(result)
    write_result(run_dir, result)
    # The environment of that run, and so its secrets, are not known here; the shapes of tokens still are.
    write_report(run_dir, result, frozenset())
    return result


def record_baseline(run_dir: Path, baselines: Path, key: str | None, reason: str) -> str:
    """Write the run's acceptance into ``baselines``; returns one sentence that says what was written."""
    result, facts = read_run(run_dir)
    failed = [check.name for check in result.checks if not check.ok and check.name not in _JUDGED_BY_BASELINE]
    if failed:
        raise Misconfigured(
            f"{run_dir} failed {', '.join(failed)}; a value measured while that was wrong is no baseline, "
            "record a run that fails nothing else."
        )
    entry = record(
        baselines,
        key or f"{result.deployment}/{result.model_set}",
        facts,
        Provenance(
            query=_query(result, facts),
            vllm_version=str(result.engine.get("vllm")),
            hardware="; ".join(str(device) for device in result.hardware.get("devices", [])),
            date=datetime.now(UTC).date().isoformat(),
            source=f"run {result.run_id}",
            reason=reason,
        ),
    )
    return f"{baselines}: {entry.key} written."


def _query(result: Result, facts: RunFacts) -> Query:
    main = [request for request in facts.requests if request.stage == "main"]
    return Query(
        deployment=result.deployment,
        models=facts.model_set,
        platform=facts.platform,
        kv_buffer=result.kv_buffer,
        prompts=facts.prompts,
        max_tokens=max((request.max_tokens for request in main), default=0),
        workload_hash=str(result.workload.get("hash", "")),
    )
