"""`stepscope.nvtx`: annotations written for NVTX are spans and instants."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from typing import Any

import pytest

from stepscope import nvtx
from stepscope.runtime.events.record import Flag, Kind
from tests.support.basics import require
from tests.support.messages import refused
from tests.support.recording import Log, recording


def names(log: Log) -> list[str]:
    """Names of the spans, in the order in which they ended."""
    return [row.name for row in log.spans]


def test_annotations() -> None:
    """The domain is the category; color, category and payload are arguments, of spans and marks alike. An exception is a flag."""
    with recording() as log:
        with nvtx.annotate("plain"):
            pass
        with nvtx.annotate("all", color="red", domain="loading", category="io", payload=3):
            pass
        with nvtx.annotate(message="keywords", color=0xFF0000, category=2, payload=0):
            pass
        for annotation in (nvtx.annotate("named"), nvtx.annotate()):
            with pytest.raises(KeyError), annotation:
                raise KeyError
        nvtx.mark("here", color="red", domain="d", category="c", payload=1.5)
        nvtx.mark()
    assert [(row.name, row.category, row.arguments) for row in log.spans[:3]] == [
        ("plain", "user_annotation", {}),
        ("all", "loading", {"color": "red", "nvtx_category": "io", "payload": 3}),
        ("keywords", "user_annotation", {"color": 0xFF0000, "nvtx_category": 2, "payload": 0}),
    ]
    assert [(row.name, bool(row.flags & Flag.ERROR)) for row in log.spans[2:]] == [
        ("keywords", False),
        ("named", True),
        ("", True),
    ]
    assert [(row.name, row.category, row.arguments) for row in log.of(Kind.INSTANT)] == [
        ("here", "d", {"color": "red", "nvtx_category": "c", "payload": 1.5}),
        ("", "user_annotation", {}),
    ]


def test_annotate_as_a_decorator() -> None:
    """Named by its message, or else by the function; of methods, coroutine functions and generators, too."""

    @nvtx.annotate("named")
    def one(number: int) -> int:
        return number

    @nvtx.annotate(domain="d")
    def two() -> int:
        """Two."""
        return 2

    class Model:
        @nvtx.annotate()
        def method(self) -> int:
            return 3

        @nvtx.annotate()
        @staticmethod
        def static() -> int:
            return 4

    @nvtx.annotate()
    async def coroutine() -> int:
        await asyncio.sleep(0)
        return 5

    with recording() as log:
        assert (one(1), two(), Model().method(), Model.static(), asyncio.run(coroutine())) == (1, 2, 3, 4, 5)
    assert names(log) == ["named", "two", "method", "static", "coroutine"]
    assert log.spans[1].category == "d" and two.__doc__ == "Two."
    assert inspect.iscoroutinefunction(coroutine)


def test_misuse_is_an_error() -> None:
    """A name that is none."""
    wrong: Any
    for wrong in (3, b"x", len):
        for call in (nvtx.annotate, nvtx.mark, nvtx.push_range, nvtx.start_range):
            with refused(TypeError):
                call(wrong)
    with refused(TypeError, "category", "3"):
        nvtx.annotate("x", domain=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with refused(TypeError, "end_range()", "start_range()", "3"):
        nvtx.end_range(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_pushed_ranges_nest() -> None:
    """Each domain has a stack of its own; a missing range cannot be ended, which is reported and harmless."""
    with recording() as log:
        assert [nvtx.push_range("a"), nvtx.push_range("b", payload=1), nvtx.push_range("c", domain="d")] == [0, 1, 0]
        assert [nvtx.pop_range(), nvtx.pop_range("d"), nvtx.pop_range(), nvtx.pop_range(), nvtx.pop_range("e")] == [
            1, 0, 0, -1, -1,
        ]  # fmt: skip
    assert names(log) == ["b", "c", "a"]
    a, b = log.span("a"), log.span("b")
    assert b.parent == a.id and b.arguments == {"payload": 1} and log.span("c").category == "d"


def test_names_of_torch() -> None:
    """The functions of `torch.cuda.nvtx`, with the depths that they return."""
    torch_nvtx = require("torch.cuda.nvtx")
    for name in torch_nvtx.__all__:
        ours = inspect.signature(getattr(nvtx, name)).parameters
        theirs = inspect.signature(getattr(torch_nvtx, name)).parameters
        assert list(ours)[: len(theirs)] == list(theirs) or name == "mark"
    with recording() as log:
        assert (nvtx.range_push("outer"), nvtx.range_push("inner")) == (0, 1)
        assert (nvtx.range_pop(), nvtx.range_pop(), nvtx.range_pop()) == (1, 0, -1)
        number = nvtx.range_start("started")
        nvtx.mark("mark")
        nvtx.range_end(number)
        with nvtx.range("batch {} of {total}", 3, total=4):
            pass
    assert names(log) == ["inner", "outer", "started", "batch 3 of 4"]


def test_names_of_the_nvtx_package() -> None:
    """Every parameter of theirs is one of ours."""
    package = require("nvtx")
    for name in ("annotate", "mark", "push_range", "pop_range", "start_range", "end_range", "get_domain", "enabled"):
        theirs = inspect.signature(getattr(package, name)).parameters
        ours = [
            each.name
            for each in inspect.signature(getattr(nvtx, name)).parameters.values()
            if each.kind != each.VAR_KEYWORD
        ]
        assert ours == list(theirs), name
    domain = nvtx.get_domain("x")
    methods = {name for name in dir(package.get_domain("x")) if not name.startswith("_")}
    assert methods - {name for name in dir(domain)} == {"get_counter", "get_timestamp"}
    assert list(inspect.signature(nvtx.Profile).parameters) == ["linenos", "annotate_cfuncs"]


async def test_tasks_and_threads_have_stacks_of_their_own() -> None:
    """A range that one pushes, another does not pop, however their turns mix."""

    async def work(name: str, turns: int) -> None:
        nvtx.push_range(name)
        for _ in range(turns):
            await asyncio.sleep(0)
        nvtx.pop_range()

    with recording() as log:
        await asyncio.gather(work("a", 3), work("b", 1), work("c", 2))
        nvtx.push_range("main")
        thread = threading.Thread(target=nvtx.pop_range)
        thread.start()
        thread.join()
        assert "main" not in names(log)
        nvtx.pop_range()
    assert sorted(names(log)) == ["a", "b", "c", "main"]
    assert all(not row.flags & Flag.ASYNC for row in log.spans)


def test_started_ranges_end_anywhere() -> None:
    """In any order, in another thread, once; they have numbers of their own."""
    with recording() as log:
        first, second = nvtx.start_range("first", domain="d", payload=2), nvtx.start_range("second")
        assert isinstance(first, int) and first != second
        nvtx.end_range(first)
        thread = threading.Thread(target=nvtx.end_range, args=[second])
        thread.start()
        thread.join()
        nvtx.end_range(first)
    assert sorted(names(log)) == ["first", "second"]
    assert (log.span("first").category, log.span("first").arguments) == ("d", {"payload": 2})


def test_domains() -> None:
    """One object for each name, with the methods of NVTX's."""
    domain = nvtx.get_domain("training")
    assert domain is nvtx.get_domain("training") and domain is not nvtx.get_domain()
    assert (repr(domain), domain.get_registered_string("s"), domain.get_category_id("c")) == (
        "Domain('training')",
        "s",
        "c",
    )
    attributes = domain.get_event_attributes(message="step", color="green", category="c", payload=7)
    with recording() as log:
        assert domain.push_range(attributes) == 0
        domain.mark(attributes)
        started = domain.start_range("text alone")
        domain.end_range(started)
        assert (domain.pop_range(), domain.pop_range()) == (0, -1)
    assert names(log) == ["text alone", "step"]
    assert {row.category for row in log.rows} == {"training"}
    assert log.span("step").arguments == {"color": "green", "nvtx_category": "c", "payload": 7}
    with pytest.raises(TypeError):
        nvtx.get_domain(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_attributes_of_a_domain_may_change() -> None:
    """From one event to the next, by assignment or by keywords, which also do without attributes."""
    domain = nvtx.get_domain("changing")
    attributes = domain.get_event_attributes("first", payload=1)
    with recording() as log:
        domain.mark(attributes)
        attributes.payload = 2
        domain.mark(attributes, message="second")
        domain.push_range(message="range", color="red")
        domain.end_range(domain.start_range(message="started", category="c"))
        domain.pop_range()
    marks = [(row.name, row.arguments) for row in log.of(Kind.INSTANT)]
    assert marks == [("first", {"payload": 1}), ("second", {"payload": 2})]
    assert names(log) == ["started", "range"] and log.span("range").arguments == {"color": "red"}
    with refused(TypeError, "messages", "'message'"):
        domain.mark(messages="x")
    nvtx.end_range(None)


def inner() -> int:
    return len(str(3))


def outer(profile: nvtx.Profile) -> None:
    inner()
    thread = threading.Thread(target=inner)
    thread.start()
    thread.join()
    profile.disable()


@pytest.mark.parametrize("linenos", [True, False])
def test_every_call_can_be_annotated(linenos: bool) -> None:
    """As NVTX does it, with the same names; a call that is open at the end ends there."""
    profile = nvtx.Profile(linenos=linenos)
    with recording() as log:
        profile.enable()
        outer(profile)
        inner()
    first = inner.__code__.co_firstlineno
    name = f"test_nvtx.py:{first}(inner)" if linenos else "inner"
    assert names(log).count(name) == 2 and {row.category for row in log.spans} == {"nvtx.py"}
    (open_at_the_end,) = [row for row in log.spans if row.name.endswith("outer)") or row.name == "outer"]
    assert open_at_the_end.id in {row.parent for row in log.spans if row.name == name} and "len" in names(log)
    with recording() as log:
        nvtx.Profile(annotate_cfuncs=False).enable()
        inner()
        sys.setprofile(None)
        threading.setprofile(None)
    assert len(names(log)) == 1


def test_it_says_whether_anything_records() -> None:
    """So that a program may leave out what costs it something."""
    assert not nvtx.enabled()
    with recording():
        assert nvtx.enabled()
    with nvtx.annotate("not recorded"):
        nvtx.mark("nor this")


def test_numbers_of_ranges_are_never_given_twice() -> None:
    """Also not when a range was ended and freed: programs keep them in dictionaries."""
    numbers: set[int] = set()
    for _ in range(100):
        number = nvtx.start_range("again")
        numbers.add(int(number))
        nvtx.end_range(number)
        del number
    assert len(numbers) == 100
