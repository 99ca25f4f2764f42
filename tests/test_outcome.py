"""What one thread gives and others wait for, and who interrupts them."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from stepscope.runtime import outcome as module
from stepscope.runtime.outcome import Outcome


def test_a_value() -> None:
    """Everybody who waits gets it, before and after it is given."""
    outcome: Outcome[int] = Outcome()
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(outcome.result(30))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert not outcome.over
    outcome.give(7)
    outcome.give(8)
    outcome.fail(ValueError())
    for thread in threads:
        thread.join(30)
    assert got == [7] * 8
    assert (outcome.over, outcome.failed, outcome.wait(0), outcome.result(0)) == (True, False, True, 7)


def test_an_error() -> None:
    """It is raised to everybody who asks."""
    outcome: Outcome[int] = Outcome()
    outcome.fail(ValueError("why"))
    outcome.give(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="why"):
            outcome.result()
    assert outcome.over and outcome.failed


def test_nothing_in_time() -> None:
    """Who waits for a time only is told so."""
    outcome: Outcome[None] = Outcome()
    assert not outcome.wait(0.01)
    with pytest.raises(TimeoutError):
        outcome.result(0)


def test_interrupted_anywhere() -> None:
    """A handler that raises at any instruction of who waits holds up neither the giver nor others who wait."""
    at, raised = 0, True
    while raised:
        at, raised = at + 1, False
        left = at

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left, raised
            if frame.f_code.co_filename != module.__file__:
                return None
            frame.f_trace_opcodes = True
            left -= event == "opcode"
            if not left and not raised:
                raised = True
                raise KeyboardInterrupt
            return trace

        outcome: Outcome[int] = Outcome()
        other = threading.Thread(target=outcome.wait, daemon=True)
        other.start()
        giver = threading.Timer(0.002, outcome.give, (at,))
        giver.start()
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with suppress(KeyboardInterrupt):
                assert outcome.wait(30)
        finally:
            sys.settrace(before)
        giver.join(30)
        other.join(30)
        assert not giver.is_alive() and not other.is_alive()
        assert outcome.result(30) == at
    assert at > 20


@pytest.mark.timeout(method="thread")
def test_a_handler_waits_for_the_same() -> None:
    """It interrupts who waits, and waits as well."""
    outcome: Outcome[int] = Outcome()
    got: list[int] = []

    def handler(_: int, __: FrameType | None) -> None:
        threading.Timer(0.01, outcome.give, (5,)).start()
        got.append(outcome.result(30))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        got.append(outcome.result(30))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert got == [5, 5]
