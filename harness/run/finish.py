"""What a run leaves behind once its verdict is known: result.json first, then shorter logs and the report.

Every part is written on its own: whatever fails half-way, the verdict stands on disk and on the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from jinja2 import TemplateError

from harness.errors import Misconfigured
from harness.facts import RequestFacts
from harness.files import LARGEST_DATA_BYTES, read_bounded, write_atomically
from harness.report.html import render_html
from harness.report.redact import redact_json, secrets_in
from harness.result import Result, write_result
from harness.run.journal import Journal
from harness.runtime.logs import tail
from harness.verdict import Verdict

# What a passing run keeps of each log unless --keep-logs; a failing run keeps everything.
_KEPT_LOG_BYTES = 1 << 20
_REPORT_TAIL_LINES = 60

# Held from the start of a run and given back before its result is written, so that a disk that the run (or somebody
# else) fills up still takes the result.
_RESERVE_BYTES = 1 << 20
_RESERVE_NAME = ".reserve"

# Words of result.json that only these types may hold. A "secret" that is part of one is no secret, and masking it
# would make the result unreadable.
_OWN_WORDS = (*(verdict.value for verdict in Verdict), "device", "failed")


def reserve(folder: Path) -> None:
    """Take the disk space that the result will need. Raises OSError when there is none."""
    fd = os.open(folder / _RESERVE_NAME, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(fd, 0, _RESERVE_BYTES)
    finally:
        os.close(fd)


def finish(result: Result, journal: Journal, folder: Path, inherited: Mapping[str, str], *, keep_logs: bool) -> Result:
    """Complete ``result`` and write what is left behind; returns it as anybody may read it. Never raises."""
    result.phases = journal.phases
    result.wall_seconds = round(journal.wall_seconds, 3)
    result.next_step = next_step(result)
    secret = own_secrets(inherited)
    shown = Result.model_validate(redact_json(result.model_dump(mode="json"), secret))
    _attempt(journal, "the reserve", lambda: (folder / _RESERVE_NAME).unlink(missing_ok=True))
    _attempt(journal, "result.json", lambda: write_result(folder, shown))
    journal.event("verdict", verdict=shown.verdict.value, reason=shown.reason)
    if result.verdict is Verdict.PASS and not keep_logs:
        _attempt(journal, "shorter logs", lambda: shorten_logs(folder / "logs"))
    _attempt(journal, "report.html", lambda: write_report(folder, shown, secret))
    journal.close()
    return shown


def own_secrets(inherited: Mapping[str, str]) -> frozenset[str]:
    """The secret values of the harness's environment that can be masked in a result."""
    return frozenset(s for s in secrets_in(inherited) if not any(s in word for word in _OWN_WORDS))


def next_step(result: Result) -> str | None:
    """The command to type next. Pure."""
    match result.verdict:
        case Verdict.PASS | Verdict.MISCONFIGURED:
            # The reason of a mistake says what to change; a command that repeats the mistake would not help.
            return None
        case Verdict.REGRESSION | Verdict.UNSUPPORTED if result.log is not None:
            return f"less {result.log}"
        case Verdict.REGRESSION | Verdict.UNSUPPORTED:
            return f"python -m harness judge {result.run_dir}"
        case Verdict.INFRA | Verdict.INTERRUPTED:
            return "nox -s doctor"


def _attempt(journal: Journal, what: str, write: Callable[[], object]) -> None:
    try:
        write()
    except (OSError, ValueError, TemplateError, Misconfigured) as error:
        # The verdict is on the terminal and in the exit code; a full disk must not turn it into a traceback.
        journal.note(f"{what} could not be written: {error}")


def write_report(folder: Path, result: Result, secret: frozenset[str]) -> None:
    """The HTML view of a result, with its requests and the ends of its logs.

    Raises OSError or ValueError, and Misconfigured when the requests are too many to be read.
    """
    tails = {path.name: "\n".join(tail(path, _REPORT_TAIL_LINES)) for path in sorted((folder / "logs").glob("*.log"))}
    write_atomically(folder / "report.html", render_html(result, _requests(folder), tails, secrets=secret))


def _requests(folder: Path) -> list[RequestFacts]:
    path = folder / "requests.jsonl"
    if not path.is_file():
        return []
    # What follows the last line end is the record that was being written when the disk was full.
    lines = read_bounded(path, LARGEST_DATA_BYTES).split("\n")[:-1]
    return [RequestFacts.model_validate_json(line) for line in lines]


def shorten_logs(logs: Path) -> None:
    """Keep the first and last megabyte of each log."""
    for path in logs.glob("*.log"):
        size = path.stat().st_size
        if size > 2 * _KEPT_LOG_BYTES:
            with path.open("rb") as stream:
                head = stream.read(_KEPT_LOG_BYTES)
                stream.seek(size - _KEPT_LOG_BYTES)
                end = stream.read(_KEPT_LOG_BYTES)
            left_out = f"\n... {size - 2 * _KEPT_LOG_BYTES} bytes left out of a passing run (--keep-logs) ...\n"
            path.write_bytes(head + left_out.encode() + end)
