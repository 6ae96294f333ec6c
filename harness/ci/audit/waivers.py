"""Findings that somebody answers for, until a day: read from TOML, applied to a list of findings.

[[waiver]]
rule = "unselected-test"
key = "tests/v1/kv_connector/nixl_integration/test_accuracy.py"   # as the JSON form prints it; `*` matches any text
owner = "team-or-person"
reason = "one sentence"
link = "https://..."
expires = 2027-03-01
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.ci.audit.model import Finding
from harness.errors import Misconfigured
from harness.files import LARGEST_TABLE_BYTES, read_bounded

EXPIRED_RULE = "expired-waiver"
UNMATCHED_RULE = "unmatched-waiver"


class Waiver(BaseModel):
    """One promise. Every field is needed: a waiver that nobody owns, or that never ends, hides a finding for good."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str = Field(min_length=1)
    key: str = Field(min_length=1)
    owner: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    link: str = Field(pattern=r"^https?://")
    expires: date
    file: str = ""
    line: int = 1

    def covers(self, finding: Finding) -> bool:
        """``*`` and ``?`` match; brackets are plain characters, because test ids are full of them."""
        pattern = self.key.replace("[", "[[]")
        return finding.rule == self.rule and fnmatch.fnmatchcase(finding.key, pattern)


def read_waivers(path: Path) -> list[Waiver]:
    """The waivers of a TOML file; raises `Misconfigured` naming the entry and the field that is wrong."""
    try:
        text = read_bounded(path, LARGEST_TABLE_BYTES)
        entries = tomllib.loads(text).get("waiver", [])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Misconfigured(f"cannot read the waivers of {path}: {error}") from error
    lines = [number for number, line in enumerate(text.split("\n"), 1) if line.strip() == "[[waiver]]"]
    waivers = []
    for index, entry in enumerate(entries):
        line = lines[index] if index < len(lines) else 1
        try:
            waivers.append(Waiver(**entry, file=path.name, line=line))
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"]))
            raise Misconfigured(f"{path}:{line}: waiver {index + 1}: {field}: {problem['msg']}") from error
    return waivers


def apply_waivers(findings: Sequence[Finding], waivers: Sequence[Waiver], today: date) -> list[Finding]:
    """The findings that remain, with one more for each waiver that has expired or that nothing matches any more."""
    kept = [f for f in findings if not any(w.expires >= today and w.covers(f) for w in waivers)]
    for waiver in waivers:
        matched = any(waiver.covers(finding) for finding in findings)
        where = (waiver.file or "waivers", waiver.line)
        key = f"{waiver.rule}:{waiver.key}"
        if not matched:
            message = f"the waiver for {waiver.rule} {waiver.key} matches no finding: remove it"
            kept.append(Finding(UNMATCHED_RULE, *where, message, f"owner {waiver.owner}, {waiver.link}", key))
        elif waiver.expires < today:
            message = f"the waiver for {waiver.rule} {waiver.key} expired on {waiver.expires}"
            kept.append(Finding(EXPIRED_RULE, *where, message, f"owner {waiver.owner}, {waiver.link}", key))
    return kept
