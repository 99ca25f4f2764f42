"""Whose an exception is that came out of a part: the part's own, or that of a signal's handler which interrupted it."""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from stepscope.runtime.outside import interrupts


def _raised(part: Callable[[], object]) -> bool:
    """Whether what a part raises is taken for a handler's."""
    try:
        part()
    except BaseException as error:
        return interrupts(error)
    raise AssertionError("nothing was raised")


class _Handler:
    def method(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError


def _function(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def _any_number(*given: object) -> None:
    raise TimeoutError


def _with_more(more: str, number: int, frame: FrameType | None, *, further: int = 0) -> None:
    raise TimeoutError


def _signal(number: int, frame: FrameType | None) -> None:
    number = signal.Signals(number)
    raise TimeoutError(number)


@pytest.mark.parametrize(
    "handler",
    [_function, _signal, _any_number, _Handler().method, _Handler(), functools.partial(_with_more, "more", further=1)],
    ids=["function", "signal", "any number", "method", "object", "partial"],
)
def test_handlers(handler: Callable[[int, FrameType | None], Any]) -> None:
    """They are known by what they are called with, however they are written."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert _raised(lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)


def here() -> FrameType:
    """The caller's frame."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back


def test_a_part_that_looks_at_its_callers() -> None:
    """It may hold their frames, in what it was given or found: what it raises is its own."""

    def looks() -> None:
        caller = here().f_back
        assert caller is not None
        callers = (caller, caller.f_back)
        raise ValueError(callers)

    def is_told(frame: FrameType, depth: int = 1) -> None:
        raise ValueError(depth)

    assert not _raised(looks)
    assert not _raised(lambda: is_told(here()))
    assert not _raised(lambda: _any_number("text", here()))
