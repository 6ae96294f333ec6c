from __future__ import annotations

import os
import signal

import pytest

from harness.errors import Interrupted
from harness.run.interrupts import Interrupts, listening

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_phase_with_its_name(number: signal.Signals) -> None:
    with listening(lambda _: None), pytest.raises(Interrupted, match=number.name):
        send(number)


def test_while_requests_are_in_flight_a_signal_waits_until_it_is_asked_for() -> None:
    reached: list[str] = []

    def drive(interrupts: Interrupts) -> None:
        with interrupts.polled():
            send(signal.SIGTERM)
            reached.append("the next request")
            interrupts.check()
            reached.append("never")

    with listening(lambda _: None) as interrupts, pytest.raises(Interrupted, match="SIGTERM"):
        drive(interrupts)
    assert reached == ["the next request"]


def test_a_signal_that_nobody_asked_about_ends_the_polled_block() -> None:
    reached: list[str] = []

    def drive(interrupts: Interrupts) -> None:
        with interrupts.polled():
            send(signal.SIGINT)
            reached.append("the end of the block")

    with listening(lambda _: None) as interrupts, pytest.raises(Interrupted, match="SIGINT"):
        drive(interrupts)
    assert reached == ["the end of the block"]


def test_teardown_is_not_cut_short_and_says_so() -> None:
    said: list[str] = []
    with listening(said.append) as interrupts, interrupts.ignored():
        send(signal.SIGINT)
        send(signal.SIGINT)
        interrupts.check()
    assert len(said) == 2
    assert "SIGINT: already ending everything" in said[0]


def test_a_second_signal_does_not_interrupt_the_way_out() -> None:
    with listening(lambda _: None):
        with pytest.raises(Interrupted):
            send(signal.SIGTERM)
        send(signal.SIGTERM)


def test_the_handlers_of_before_are_back_afterwards() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with listening(lambda _: None):
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
