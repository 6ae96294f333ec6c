"""Findings as text for a person and as JSON for a program."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from harness.ci.audit.model import Finding

# Raised when a field changes its meaning or goes away; a new field does not raise it.
SCHEMA = 1


def as_text(findings: Sequence[Finding], source: str, seconds: float) -> str:
    """One block per rule, one line per finding, each starting with ``file:line``; the summary comes last."""
    lines: list[str] = []
    counts = Counter(finding.rule for finding in findings)
    for rule in sorted(counts):
        lines.append(f"{rule} ({counts[rule]})")
        for finding in findings:
            if finding.rule == rule:
                lines.append(f"  {finding.where}: {finding.message}")
                if finding.detail:
                    lines.append(f"      {finding.detail}")
        lines.append("")
    lines.append(f"{source}: {len(findings)} findings in {seconds:.1f} s")
    lines += [f"  {counts[rule]:5d}  {rule}" for rule in sorted(counts)]
    return "\n".join(lines) + "\n"


def as_json(findings: Sequence[Finding], source: str, seconds: float) -> str:
    """``{schema, source, seconds, counts, findings: [{rule, path, line, message, detail, key}]}``."""
    document = {
        "schema": SCHEMA,
        "source": source,
        "seconds": round(seconds, 2),
        "counts": dict(sorted(Counter(finding.rule for finding in findings).items())),
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
