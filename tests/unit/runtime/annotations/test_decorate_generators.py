"""Spans as decorators of generator functions: one span per resumption, and everything passes through."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Any

import pytest

from stepscope.runtime._core import span
from stepscope.runtime.events.record import Flag
from tests.support.recording import Log, recording


def flags(log: Log, name: str) -> list[Flag]:
    """Flags of the spans of a name, in the order in which they ended."""
    return [row.flags for row in log.spans if row.name == name]


@span("counting")
def counting(stop: int) -> Generator[int, str, str]:
    """Counts; answers what it is sent, survives ValueError, and says how it ended."""
    got = ""
    for number in range(stop):
        try:
            answer = yield number
        except ValueError as error:
            answer = f"caught {error}"
        got += answer or "-"
    return got


def test_a_generator_function() -> None:
    """Each resumption is a span; nothing of what lies between belongs to it, and its end is no error."""
    assert inspect.isgeneratorfunction(counting)
    with recording() as log:
        for _ in counting(3):
            with span("between"):
                pass
    assert [row.name for row in log.spans] == ["counting", "between"] * 3 + ["counting"]
    assert not any(row.flags or row.parent for row in log.spans)


def test_generators_take_what_they_are_given() -> None:
    """`send`, `throw`, `close` and the value of `return` pass through."""
    with recording() as log:
        talk = counting(3)
        assert (next(talk), talk.send("a"), talk.throw(ValueError("b"))) == (0, 1, 2)
        with pytest.raises(StopIteration) as end:
            talk.send("c")
        assert end.value.value == "acaught bc"
        assert flags(log, "counting") == []
        failing = counting(3)
        next(failing)
        with pytest.raises(KeyError):
            failing.throw(KeyError("no"))
        unstarted = counting(1)
        with pytest.raises(KeyError):
            unstarted.throw(KeyError("early"))
        closed = counting(1)
        next(closed)
        closed.close()
        counting(1).close()
    assert flags(log, "counting") == [Flag(0)] * 5 + [Flag.ERROR] + [Flag(0)] * 2


def test_closing_a_generator_runs_its_end() -> None:
    """Also one that is dropped half way; one that refuses to end is told so."""
    ended: list[str] = []

    @span("careful")
    def careful(name: str) -> Iterator[int]:
        try:
            yield 1
        finally:
            ended.append(name)

    @span("stubborn")
    def stubborn() -> Iterator[int]:
        for _ in range(2):
            with contextlib.suppress(GeneratorExit):
                yield 1

    next(careful("dropped"))
    first: Any = careful("closed")
    next(first)
    first.close()
    assert ended == ["dropped", "closed"]
    second: Any = stubborn()
    next(second)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        second.close()


def test_a_generator_keeps_nothing() -> None:
    """An exception that it handled is gone, with what it refers to, without the garbage collector."""

    class Large(ValueError):
        pass

    talk = counting(5)
    next(talk)
    gone: list[weakref.ref[Large]] = []

    def throw() -> None:
        error = Large("large")
        gone.append(weakref.ref(error))
        talk.throw(error)

    throw()
    assert gone[0]() is None


def test_context_managers_and_iteration_helpers_work() -> None:
    """`contextlib.contextmanager` around a decorated generator function."""

    @contextlib.contextmanager
    @span("managed")
    def managed() -> Generator[int]:
        try:
            yield 1
        except ValueError:
            yield_nothing.append(True)

    yield_nothing: list[bool] = []
    with recording() as log:
        with managed() as value:
            assert value == 1
        with managed():
            raise ValueError
    assert yield_nothing == [True]
    assert flags(log, "managed") == [Flag(0)] * 4


@span("answering")
async def answering(stop: int) -> AsyncGenerator[int, str]:
    """The same as `counting`, waiting in between."""
    for number in range(stop):
        await asyncio.sleep(0)
        try:
            heard.append((yield number) or "-")
        except ValueError as error:
            heard.append(f"caught {error}")


heard: list[str] = []


async def test_an_async_generator_function() -> None:
    """Each resumption is a span, its waiting included; `asend`, `athrow` and `aclose` pass through."""
    heard.clear()
    assert inspect.isasyncgenfunction(answering)
    with recording() as log:
        async for _ in answering(2):
            with span("between"):
                pass
        talk = answering(4)
        assert [await anext(talk), await talk.asend("a"), await talk.athrow(ValueError("b"))] == [0, 1, 2]
        await talk.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(talk)
        failing = answering(1)
        await anext(failing)
        with pytest.raises(KeyError):
            await failing.athrow(KeyError("no"))
    assert heard == ["-", "-", "a", "caught b"]
    assert [row.name for row in log.spans[:5]] == ["answering", "between", "answering", "between", "answering"]
    assert not any(row.parent for row in log.spans)
    assert flags(log, "answering") == [Flag(0)] * 8 + [Flag.ERROR]


async def test_an_async_generator_is_closed_in_its_task() -> None:
    """One that is left half way is ended by the loop, as if it were not decorated."""
    ended = asyncio.Event()

    @span("left")
    async def left() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            ended.set()

    async for _ in left():
        break
    await asyncio.wait_for(ended.wait(), 10)
