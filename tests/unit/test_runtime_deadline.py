from __future__ import annotations

from harness.runtime.deadline import Deadline


def test_a_step_never_outlives_its_phase() -> None:
    phase = Deadline.after(10)
    assert phase.sooner(1000) == phase
    assert phase.sooner(1).at_s < phase.at_s


def test_what_is_left_is_never_negative() -> None:
    past = Deadline.after(-5)
    assert past.expired
    assert past.remaining() == 0
    assert not Deadline.after(100).expired
