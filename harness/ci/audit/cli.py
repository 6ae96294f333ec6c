"""``harness audit``: read a checkout, print the findings, say by the exit code whether there are any."""

from __future__ import annotations

import sys
import time
from datetime import date
from pathlib import Path

from harness.ci.audit import audit
from harness.ci.audit.checkout import quiet_collector, read_checkout, run_rules_in_parallel
from harness.ci.audit.render import as_json as render_json
from harness.ci.audit.render import as_text as render_text
from harness.ci.audit.waivers import read_waivers

EXIT_CLEAN = 0
EXIT_FINDINGS = 1


def run_audit(vllm: Path, waivers: Path | None, as_json: bool) -> int:
    """Audits the source tree ``vllm`` and prints to stdout. 0 when nothing is found, 1 when something is.

    Raises `Misconfigured` for a folder that is no checkout and for a waiver file that cannot be used.
    """
    started = time.monotonic()
    known = read_waivers(waivers) if waivers is not None else []
    with quiet_collector():
        findings = audit(read_checkout(vllm), date.today(), known, run_rules_in_parallel)
    render = render_json if as_json else render_text
    sys.stdout.write(render(findings, str(vllm), time.monotonic() - started))
    return EXIT_FINDINGS if findings else EXIT_CLEAN
