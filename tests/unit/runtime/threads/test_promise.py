"""A value that one thread sets and others wait for, and interrupted waits."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import pytest

from stepscope.runtime.threads.one_shot import OneShot
from tests.support.interrupting import interrupting


def test_a_promise_is_set_once() -> None:
    """To a value, or to an error, which every later call returns or raises; until then a wait with a timeout ends without it."""
    promise, failed = OneShot[int](), OneShot[int]()
    assert not promise.wait(0.01) and not promise.done
    with pytest.raises(TimeoutError):
        promise.result(0)
    promise.set_result(7)
    failed.set_exception(ValueError("why"))
    for each in (promise, failed):
        each.set_result(8)
        each.set_exception(KeyError())
    assert (promise.done, promise.failed, promise.result(0), failed.failed) == (True, False, 7, True)
    for _ in range(2):
        with pytest.raises(ValueError, match="why"):
            failed.result()


@pytest.mark.timeout(method="thread")
def test_interrupted_anywhere() -> None:
    """A handler that raises at any point of who waits holds up neither the giver nor others who wait."""
    with interrupting() as interrupt:
        for point in interrupt.everywhere(least=3):
            promise: OneShot[int] = OneShot()
            other = threading.Thread(target=promise.wait, daemon=True)
            other.start()
            giver = threading.Timer(0.002, promise.set_result, (point,))
            giver.start()
            interrupt(lambda: promise.wait(30), point)  # noqa: B023
            giver.join(30)
            other.join(30)
            assert not giver.is_alive() and not other.is_alive(), interrupt.where
            assert promise.result(30) == point


@pytest.mark.timeout(method="thread")
def test_a_handler_waits_for_the_same() -> None:
    """It interrupts who waits, and waits as well."""
    promise: OneShot[int] = OneShot()
    got: list[int] = []

    def handler(_: int, __: FrameType | None) -> None:
        threading.Timer(0.01, promise.set_result, (5,)).start()
        got.append(promise.result(30))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        got.append(promise.result(30))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert got == [5, 5]
