"""Spans as decorators: the function behaves as before, and each call or resumption is a span."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

from stepscope.runtime._core import span
from stepscope.runtime.events.record import Flag
from tests.support.messages import refused
from tests.support.recording import Log, check_self_times, recording


def flags(log: Log, name: str) -> list[Flag]:
    """Flags of the spans of a name, in the order in which they ended."""
    return [row.flags for row in log.spans if row.name == name]


def test_a_function() -> None:
    """Arguments, result, metadata and arguments of the span are unchanged."""

    @span("square", category="math", unit="m")
    def square(number: int, *, more: int = 0) -> int:
        """Squares."""
        return number * number + more

    with recording() as log:
        assert square(3, more=1) == 10
    assert (log.rows[0].name, log.rows[0].category, log.rows[0].arguments) == ("square", "math", {"unit": "m"})
    assert (square.__name__, square.__doc__, square.__module__) == ("square", "Squares.", __name__)
    assert str(inspect.signature(square)) == "(number: 'int', *, more: 'int' = 0) -> 'int'"


def test_recursion_and_errors() -> None:
    """Each call has its own span; an exception marks those that it leaves."""

    @span("factorial")
    def factorial(number: int) -> int:
        if number < 0:
            raise ValueError("negative")
        return number * factorial(number - 1) if number else 1

    with recording() as log:
        assert factorial(5) == 120
        with pytest.raises(ValueError, match="negative"):
            factorial(-1)
    assert flags(log, "factorial") == [Flag(0)] * 6 + [Flag.ERROR]
    assert [log.rows[at].parent for at in range(6)] == [row.id for row in log.rows[1:6]] + [0]
    check_self_times(log.spans)


def test_methods() -> None:
    """Of an instance, of a class and static ones, decorated after they have become such; and those of properties."""

    class Model:
        factor = 2

        @span("method")
        def method(self, number: int) -> int:
            return self.factor * number

        @span("class outside")
        @classmethod
        def of_class(cls, number: int) -> int:
            return cls.factor * number

        @span("static outside")
        @staticmethod
        def static(number: int) -> int:
            return 2 * number

        @property
        @span("property")
        def half(self) -> float:
            return self.factor / 2

    model: Any = Model()
    with recording() as log:
        assert [model.method(3), model.of_class(3), Model.of_class(3), model.static(3), Model.static(3)] == [6] * 5
        assert model.half == 1
    assert [row.name for row in log.spans] == [
        "method", "class outside", "class outside", "static outside", "static outside", "property",
    ]  # fmt: skip


def test_other_callables() -> None:
    """Anything that can be called; nothing else."""
    with recording() as log:
        assert span("partial")(functools.partial(max, 3))(5) == 5
        assert span("built in")(len)("four") == 4
        assert span("class")(dict)(a=1) == {"a": 1}
    assert [row.name for row in log.spans] == ["partial", "built in", "class"]
    wrong: Any = 3
    with refused(TypeError, "wrong", "3"):
        span("wrong")(wrong)
    decorator: Any = span("wrong")
    for arguments in ((), (len, len)):
        with refused(TypeError):
            decorator(*arguments)
    with refused(TypeError):
        decorator(function=len)


async def test_a_coroutine_function() -> None:
    """Concurrent calls have a span each, which lasts until the call ends, waiting included."""

    @span("work")
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        if number == 2:
            raise ValueError(number)
        return number

    assert inspect.iscoroutinefunction(work)
    with recording() as log:
        results = await asyncio.gather(*(work(number) for number in range(3)), return_exceptions=True)
    assert results[:2] == [0, 1] and isinstance(results[2], ValueError)
    assert flags(log, "work") == [Flag(0), Flag(0), Flag.ERROR]
    assert len({row.track for row in log.spans}) == 3


def test_decorating_costs_no_depth() -> None:
    """A deep recursion of decorated functions still ends in RecursionError, and what was open is closed."""

    @span("endless")
    def endless() -> None:
        endless()

    limit: Callable[[], int] = sys.getrecursionlimit
    with recording() as log:
        with pytest.raises(RecursionError):
            endless()
        with span("after"):
            pass
    assert limit() // 4 < len(flags(log, "endless")) <= limit()
    assert log.span("after").parent == 0


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


def test_generators_get_values_and_exceptions() -> None:
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
    """Also one that is dropped half way; one that refuses to end gets the error."""
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
