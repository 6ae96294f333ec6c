"""Baselines: no certificate, no entry; no entry, no pass."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.baselines import Entry, Provenance, Query, load, record, select
from harness.checks.registry import judge
from harness.errors import Misconfigured
from tests.unit import check_facts as cf

SHIPPED = Path(__file__).parents[2] / "baselines.toml"
HASH = "a" * 64
QUERY = Query("eagle3-pd", "hub", "cuda", "device", 80, 256, HASH)
PROVENANCE = Provenance(
    query=replace(QUERY, prompts=4, max_tokens=3),
    vllm_version="0.32.0",
    hardware="2 x H200",
    date="2026-11-30",
    source="runs/x",
    reason="first run on this host",
)
CERTIFICATE = """
[baseline.certificate]
workload = "named: some well known prompts"
vllm_version = "0.33.0"
hardware = "2 x H100"
date = "2026-11-30"
source = "a file"
reason = "because"
"""
ENTRY = """
[[baseline]]
key = "one"
deployment = "eagle3-pd"
models = "hub"
estimator = "standalone"
sided = "two"
acceptance_length = 2.6
rtol = 0.05
prompts = 80
max_tokens = 256
"""


def entries(tmp_path: Path, text: str) -> tuple[Entry, ...]:
    path = tmp_path / "baselines.toml"
    path.write_text(text)
    return load(path)


def test_the_shipped_file_holds_the_values_of_the_mission() -> None:
    shipped = load(SHIPPED)
    eagle = select(shipped, QUERY)
    assert (eagle.acceptance_length, eagle.per_position, eagle.rtol) == (2.60, (0.7296, 0.5208, 0.3545), 0.05)
    assert (eagle.sided, eagle.estimator, eagle.exact) == ("two", "standalone", False)
    assert "test_spec_decode_acceptance.py" in eagle.certificate["source"]
    mtp = select(shipped, replace(QUERY, deployment="mtp-pd"))
    assert (mtp.acceptance_length, mtp.per_position, mtp.rtol) == (1.798, None, 0.05)


@pytest.mark.parametrize("deployment", ["eagle3-pd", "mtp-pd"])
def test_tiny_entries_are_exact_whatever_the_workload(deployment: str) -> None:
    found = select(load(SHIPPED), Query(deployment, "tiny", "cpu", "host", 3, 7, HASH))
    assert found.exact
    assert found.acceptance_length is None


def test_an_entry_without_certificate_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"baseline one in .* lacks certificate"):
        entries(tmp_path, ENTRY)


def test_a_certificate_names_every_key_that_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"lacks certificate\.vllm_version, certificate\.date"):
        entries(
            tmp_path, ENTRY + CERTIFICATE.replace('vllm_version = "0.33.0"\n', "").replace('date = "2026-11-30"', "")
        )


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('workload = "named: some well known prompts"', 'workload = "unknown"', "certificate.workload"),
        ('reason = "because"', 'reason = ""', "certificate.reason"),
        ("rtol = 0.05", "", "missing rtol"),
        ("rtol = 0.05", "rtol = 5", "rtol"),
        ("acceptance_length = 2.6", "acceptance_length = 0.6", "acceptance_length"),
        ('key = "one"', 'key = "one"\ntolerance = 1', "tolerance"),
        ('sided = "two"', 'sided = "two"\nexact = true', "exact"),
    ],
)
def test_a_half_entry_is_refused(tmp_path: Path, old: str, new: str, word: str) -> None:
    with pytest.raises(Misconfigured, match=word):
        entries(tmp_path, (ENTRY + CERTIFICATE).replace(old, new))


def test_unreadable_toml_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"baselines\.toml is not TOML: .*line 3"):
        entries(tmp_path, '[[baseline]]\nkey = "x"\nrtol = = 1\n')


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"nowhere\.toml does not exist"):
        load(tmp_path / "nowhere.toml")


def test_two_entries_of_one_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="one more than once"):
        entries(tmp_path, 2 * (ENTRY + CERTIFICATE))


def test_no_entry_is_misconfigured_and_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"no baseline for mtp-pd .*entries: one"):
        select(entries(tmp_path, ENTRY + CERTIFICATE), replace(QUERY, deployment="mtp-pd"))


def test_the_more_specific_entry_wins_and_a_tie_is_refused(tmp_path: Path) -> None:
    host = ENTRY.replace('"one"', '"host"') + 'kv_buffers = ["host"]\n'
    cuda = ENTRY.replace('"one"', '"cuda"') + 'platforms = ["cuda"]\n'
    found = entries(tmp_path, ENTRY + CERTIFICATE + host + CERTIFICATE + cuda + CERTIFICATE)
    assert select(found, QUERY).key == "cuda"
    assert select(found, replace(QUERY, platform="rocm", kv_buffer="host")).key == "host"
    assert select(found, replace(QUERY, platform="rocm")).key == "one"
    with pytest.raises(Misconfigured, match="host, cuda"):
        select(found, replace(QUERY, kv_buffer="host"))


def test_a_run_of_another_size_or_data_set_is_not_comparable(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="80 prompts of 256 tokens, this run sends 4 of 256"):
        select(entries(tmp_path, ENTRY + CERTIFICATE), replace(QUERY, prompts=4))
    hashed = CERTIFICATE.replace("named: some well known prompts", f"sha256:{'b' * 64}")
    with pytest.raises(Misconfigured, match="another workload"):
        select(entries(tmp_path, ENTRY + hashed), QUERY)


def test_a_recorded_run_passes_its_own_baseline_and_keeps_comments(tmp_path: Path) -> None:
    path = tmp_path / "baselines.toml"
    path.write_text("# kept\n" + ENTRY + CERTIFICATE)
    record(path, "two", cf.hub(), PROVENANCE)
    record(path, "two", cf.hub(), replace(PROVENANCE, reason="again"))
    assert path.read_text().startswith("# kept")
    found = load(path)
    assert [entry.key for entry in found] == ["one", "two"]
    chosen = select(found[1:], PROVENANCE.query)
    assert chosen.acceptance_length == 2.5
    assert chosen.certificate["reason"] == "again"
    facts = cf.hub().model_copy(update={"baseline": chosen})
    assert judge("acceptance_length", facts).ok
    assert judge("acceptance_per_position", facts).ok


def test_a_first_record_makes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    record(path, "two", cf.hub(), PROVENANCE)
    assert [entry.key for entry in load(path)] == ["two"]


@pytest.mark.parametrize("case", ["tiny", "failed", "reason", "drafts"])
def test_a_run_that_proves_nothing_is_not_recorded(tmp_path: Path, case: str) -> None:
    facts, provenance = cf.hub(), PROVENANCE
    if case == "tiny":
        facts = cf.passing()
    elif case == "failed":
        facts = cf.with_request(facts, 0, error="answered 500")
    elif case == "reason":
        provenance = replace(provenance, reason=" ")
    else:
        facts = cf.passing(decode={("spec_decode_num_drafts_total", ""): cf.PROMPTS}).model_copy(
            update={"model_set": "hub"}
        )
    with pytest.raises(Misconfigured):
        record(tmp_path / "b.toml", "two", facts, provenance)
    assert not (tmp_path / "b.toml").exists()
