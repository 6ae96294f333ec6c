"""What a whole run shows to others: secrets, open ports, folders. Issue 4, part 4."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psutil
import pytest

from harness.verdict import Verdict
from tests.faults.whole_run import Whole

pytestmark = pytest.mark.whole_run

CANARIES = {
    "HF_TOKEN": "hf_CanaryCanaryCanaryCanary0001",
    "OPENAI_API_KEY": "sk-canarycanarycanarycanary0002",
    "VLLM_API_KEY": "canary-of-the-engine-0003",
    "AWS_SECRET_ACCESS_KEY": "canary/of/the/cloud/0004",
    "BUILDKITE_AGENT_ACCESS_TOKEN": "canary-of-the-agent-0005",
    "DB_PASSWORD": "canary=of the:database@0006",
}
URLS = {
    "https_proxy": "http://user:canary-of-the-proxy-0007@proxy.invalid:3128",
    "PIP_INDEX_URL": "https://canary-of-the-index-0008@index.invalid/simple",
}
SECRETS = (*CANARIES.values(), "canary-of-the-proxy-0007", "canary-of-the-index-0008")


def files_with_secrets(folder: Path) -> dict[str, list[str]]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if seen := [secret for secret in SECRETS if secret.encode() in content]:
                found[str(path.relative_to(folder))] = seen
    return found


@pytest.mark.parametrize("launch", ["spawn", "warm"])
def test_no_secret_of_the_environment_is_in_any_file_of_a_passing_run(whole: Whole, launch: str) -> None:
    whole.extra = {**CANARIES, **URLS}
    with whole.started(launch=launch) as command:
        code, result = command.finish()
        assert (code, result.verdict) == (0, Verdict.PASS), result.reason
        assert files_with_secrets(command.folder) == {}
        assert not any(secret in command.out.read_text() for secret in SECRETS)
    assert files_with_secrets(whole.locations.state) == {}


@pytest.mark.parametrize("at", [0, 9], ids=["smoke", "mid-run"])
def test_a_secret_that_the_engine_itself_prints_stays_in_its_own_log(whole: Whole, at: int) -> None:
    whole.extra = {**CANARIES, **URLS}
    whole.faults(decode={"say": "ValueError: bad token $TOKEN", "completions": "500", "from": at})
    with whole.started() as command:
        _, result = command.finish()
        assert result.verdict is Verdict.REGRESSION
        assert files_with_secrets(command.folder).keys() == {"logs/decode-0.log"}
        assert not any(secret in command.out.read_text() for secret in SECRETS)


def test_the_run_folder_is_its_users_own(whole: Whole) -> None:
    before = os.umask(0)
    try:
        outcome = whole.run()
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(outcome.shown.run_dir).stat().st_mode) == 0o700


def test_runner_and_supervisor_listen_nowhere_and_servers_on_loopback_only(whole: Whole) -> None:
    whole.faults(decode={"slow_s": 0.4})
    with whole.started() as command:
        record = command.reach("drive")
        assert record.supervisor is not None
        for process in (record.runner, record.supervisor):
            sockets = psutil.Process(process.pid).net_connections("inet")
            assert [one for one in sockets if one.status == psutil.CONN_LISTEN] == []
        for entry in record.servers:
            assert entry.process is not None
            listening = [
                one.laddr.ip
                for one in psutil.Process(entry.process.pid).net_connections("inet")
                if one.status == psutil.CONN_LISTEN
            ]
            assert listening
            assert set(listening) == {"127.0.0.1"}
