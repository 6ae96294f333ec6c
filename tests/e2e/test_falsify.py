"""The gate on the real engine: the smoke mutations are caught, and a weakened check makes falsify fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.gate import ROOT


def falsify(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness", "falsify", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def test_the_smoke_mutations_are_caught_and_a_weakened_check_is_not_overlooked(engine: str, tmp_path: Path) -> None:
    live = falsify("--smoke", "--engine", engine, "--runs-dir", tmp_path)
    assert live.returncode == 0, live.stdout
    (folder,) = tmp_path.iterdir()
    again = falsify("--replay", folder)
    assert "WRONG" not in again.stdout
    weaker = falsify("--replay", folder, "--weaken", "kv_moved")
    assert weaker.returncode == 1
    assert "kv_moved did not notice" in weaker.stdout
