"""The loops that are timed. Every tool runs the same bytecode, with its own callable in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from benchmarks.cases.tools.timing import AsyncLoop, Loop

Span = Callable[..., AbstractContextManager[Any]]


def spans(span: Span) -> Loop:
    """A span around nothing."""

    def loop(n: int) -> None:
        for _ in range(n):
            with span("x"):
                pass

    return loop


def spans_with_argument(span: Span) -> Loop:
    """A span with a keyword argument."""

    def loop(n: int) -> None:
        for _ in range(n):
            with span("x", layer=3):
                pass

    return loop


def spans_with_text(span: Span) -> Loop:
    """A span with its arguments as text, as torch takes them."""

    def loop(n: int) -> None:
        for _ in range(n):
            with span("x", "layer=3"):
                pass

    return loop


def spans_with_attribute(span: Span) -> Loop:
    """A span with its arguments in a dict, as OpenTelemetry takes them."""

    def loop(n: int) -> None:
        for _ in range(n):
            with span("x", attributes={"layer": 3}):
                pass

    return loop


def spans_in_task(span: Span) -> AsyncLoop:
    """A span around nothing, in a coroutine."""

    async def loop(n: int) -> None:
        for _ in range(n):
            with span("x"):
                pass

    return loop


def reads(watched: Any) -> Loop:
    """A look at what a watched file says."""

    def loop(n: int) -> None:
        for _ in range(n):
            _ = watched.current

    return loop


def calls(function: Callable[[], object]) -> Loop:
    """A call without arguments."""

    def loop(n: int) -> None:
        for _ in range(n):
            function()

    return loop


def callbacks(monitor: Any, context: Any) -> Loop:
    """The callbacks of a step, with its number counted as a framework does."""

    def loop(n: int) -> None:
        for _ in range(n):
            context.cur_step_num += 1
            monitor.step_begin(context)
            monitor.step_end(context)

    return loop


def instants(instant: Callable[[str], object]) -> Loop:
    """An event without duration."""

    def loop(n: int) -> None:
        for _ in range(n):
            instant("x")

    return loop
