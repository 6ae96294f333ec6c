"""A server that cannot start, and a stranger on a port: named at once, and nothing left."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
from pathlib import Path

from harness.engine.resolve import resolve
from harness.locations import locate
from harness.runtime.identity import identify
from tests.e2e.gate import Gate, harness

MISSING = "MTP speculative decoding layer 78 weights missing from checkpoint"
# The promise of issue 2: from the exit of the server to the verdict, teardown of the others included.
VERDICT_WITHIN_S = 2.0

# The real engine, but its decode server says what no real checkpoint at hand can make it say, and exits 1.
BROKEN_PYTHON = """\
#!/bin/sh
case "$*" in
*api_server*kv_consumer*)
  echo "INFO loading weights"
  echo "ValueError: {line}" >&2
  echo "INFO shutting down"
  date +%s.%N > {exited}
  exit 1;;
esac
exec {python} "$@"
"""


def engine_python(gate: Gate) -> Path:
    info = resolve(
        gate.engine,
        locate(os.environ, None).cache,
        lambda _: None,
        host_python=None,
        gpu_visible=False,
        environ=os.environ,
    )
    return info.python


def test_a_server_that_exits_at_once_is_judged_at_once_with_its_own_words(gate: Gate, tmp_path: Path) -> None:
    exited = tmp_path / "exited"
    python = tmp_path / "python"
    python.write_text(BROKEN_PYTHON.format(line=MISSING, exited=exited, python=engine_python(gate)))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    broken = Gate(str(python), tmp_path)
    with broken.start(harness("run", "mtp-pd", "--launch", "spawn")) as started:
        assert started.finish() == 1, started.output
    (verdict,) = started.events("verdict")
    after_s = verdict["wall"] - float(exited.read_text())
    result = started.result
    print(json.dumps({name: result[name] for name in ("verdict", "reason", "root_line")}), f"{after_s:.2f} s")  # noqa: T201
    assert result["verdict"] == "regression"
    assert MISSING in result["root_line"]
    assert MISSING in result["reason"]
    assert "decode-0" in result["reason"]
    assert MISSING in started.output
    assert after_s < VERDICT_WITHIN_S


def test_a_stranger_that_answers_on_a_leased_port_is_named_before_anything_is_launched(gate: Gate) -> None:
    with gate.start([sys.executable, "-m", "tests.e2e.stranger", "run", "eagle3-pd"]) as started:
        code = started.finish()
        found = re.search(r"^stranger (\d+)$", started.output, re.MULTILINE)
        assert found is not None, started.output
        stranger = identify(int(found[1]))
        assert stranger is not None, "the stranger was ended"
        try:
            result = started.result
            print(f"{result['verdict']}: {result['reason']}")  # noqa: T201
            assert code == 3
            assert result["verdict"] == "infra"
            named = rf"port \d+ on 127.0.0.1 is already in use by pid {stranger.pid} .*http\.server"
            assert re.search(named, result["reason"])
            assert not started.events("started")
            assert not list((started.folder / "logs").iterdir()), "something was launched"
        finally:
            os.kill(stranger.pid, signal.SIGKILL)
