"""What one thread gives and others wait for, and who interrupts them."""

from __future__ import annotations

import itertools
import signal
import threading
from types import FrameType

import pytest

from stepscope.runtime.threads.one_shot import OneShot
from tests.support.interrupting import interrupting


def test_a_value() -> None:
    """Everybody who waits gets it, before and after it is given."""
    promise: OneShot[int] = OneShot()
    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(promise.result(30))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert not promise.done
    promise.set_result(7)
    promise.set_result(8)
    promise.set_exception(ValueError())
    for thread in threads:
        thread.join(30)
    assert got == [7] * 8
    assert (promise.done, promise.failed, promise.wait(0), promise.result(0)) == (True, False, True, 7)


def test_an_error() -> None:
    """It is raised to everybody who asks."""
    promise: OneShot[int] = OneShot()
    promise.set_exception(ValueError("why"))
    promise.set_result(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="why"):
            promise.result()
    assert promise.done and promise.failed


def test_nothing_in_time() -> None:
    """Who waits for a time only is told so."""
    promise: OneShot[None] = OneShot()
    assert not promise.wait(0.01)
    with pytest.raises(TimeoutError):
        promise.result(0)


@pytest.mark.timeout(method="thread")
def test_interrupted_anywhere() -> None:
    """A handler that raises at any point of who waits holds up neither the giver nor others who wait."""
    with interrupting() as interrupt:
        point = 0
        for point in itertools.count(1):
            promise: OneShot[int] = OneShot()
            other = threading.Thread(target=promise.wait, daemon=True)
            other.start()
            giver = threading.Timer(0.002, promise.set_result, (point,))
            giver.start()
            interrupted = interrupt(lambda: promise.wait(30), point)  # noqa: B023
            giver.join(30)
            other.join(30)
            assert not giver.is_alive() and not other.is_alive(), interrupt.where
            assert promise.result(30) == point
            if not interrupted:
                break
    assert point > 3


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
