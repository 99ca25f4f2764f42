"""Whose an exception is that came out of a part: the part's own, or that of a signal's handler which interrupted it."""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import ScriptedBackend
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.threads.user_code import from_signal_handler
from tests.support.messages import refused


def _from_handler(part: Callable[[], object]) -> bool:
    """Whether what a part raises is taken for a handler's."""
    try:
        part()
    except BaseException as error:
        return from_signal_handler(error)
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


@functools.wraps(_function)
def _wrapped(*given: Any) -> None:
    _function(*given)


def _calls_another(number: int, frame: FrameType | None) -> None:
    _function(number, frame)


HANDLERS: dict[str, Callable[[int, FrameType | None], Any]] = {
    "function": _function,
    "wrapped": _wrapped,
    "any number": _any_number,
    "calls another": _calls_another,
    "method": _Handler().method,
    "object": _Handler(),
    "partial": functools.partial(_with_more, "more", further=1),
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS.keys())
def test_handlers(handler: Callable[[int, FrameType | None], Any]) -> None:
    """They are known by their code, however they are written."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        assert _from_handler(lambda: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_function_that_is_called_as_a_handler_is() -> None:
    """With a number and its caller's frame: it is a part's unless it is set as a handler."""
    assert not _from_handler(lambda: _function(signal.SIGUSR1, inspect.currentframe()))
    assert not _from_handler(lambda: _any_number("text", 7, inspect.currentframe()))


def test_ctrl_c() -> None:
    """Python's own handler leaves no frame: on the main thread `KeyboardInterrupt` is taken for it, elsewhere for the part's."""

    def part() -> None:
        raise KeyboardInterrupt

    assert _from_handler(lambda: signal.default_int_handler(signal.SIGINT, None))
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(_from_handler, part).result()


class _Samples(ScriptedBackend):
    """Passes a number and a frame to a function of its own that fails, as sampling profilers do."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(thread_bound=True)
        self._error = error

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        super().transition(before, after, at)
        self._sample(7, inspect.currentframe())

    def _sample(self, depth: int, frame: FrameType | None) -> None:
        raise self._error


@pytest.mark.parametrize("error", [ValueError("a fault"), SystemExit("it gives up")])
def test_nothing_that_a_backend_raises_reaches_the_loop(error: BaseException, tmp_path: Path) -> None:
    """Also where the program has a handler that leaves no frame, as functions written in C."""
    handler: Callable[[int, FrameType | None], Any] = functools.partial(print)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        schedule = sc.schedule(wait=1, warmup=0, active=1)
        with sc.trace(backends=[_Samples(error)], schedule=schedule, output_dir=tmp_path) as profiler:
            for _ in range(6):
                profiler.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert any(type(error).__name__ in line for line in profiler.diagnostics())
    with refused(ExceptionGroup, "stepscope", "1 error"):
        profiler.raise_errors()
