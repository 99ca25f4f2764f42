"""Tasks, frames, events, counters, markers, scopes and operators of `stepscope.mxnet`."""

from __future__ import annotations

import asyncio
import csv
import re
import threading
import time
from typing import Any

import pytest

from stepscope import mxnet
from tests.support.basics import require
from tests.support.messages import refused
from tests.support.mxnets import begin, load, slices, statistics


@pytest.mark.checklist("E7", "E20")
def test_objects_are_made_without_recording() -> None:
    """By themselves and by their domain; their text is their name; those of one name are one row."""
    domain = mxnet.Domain("d")
    made = [
        mxnet.Task(domain, "t"), domain.new_task("t"), mxnet.Frame(domain, "f"), domain.new_frame("f"),
        mxnet.Event("e"), mxnet.Counter(domain, "c"), domain.new_counter("c", 2), mxnet.Marker(domain, "m"),
        domain.new_marker("m"),
    ]  # fmt: skip
    assert [str(one) for one in (domain, *made)] == ["d", "t", "t", "f", "f", "e", "c", "c", "m", "m"]
    assert [repr(one) for one in made[3:7]] == [
        "Frame('f')",
        "Event('e')",
        "Counter('c', value=0)",
        "Counter('c', value=2)",
    ]
    begin()
    for task in (mxnet.Task(mxnet.Domain("d"), "t"), mxnet.Domain("d").new_task("t")):
        with task:
            pass
    assert statistics()["Time"]["d"]["t"]["Count"] == 2
    wrong: Any
    for wrong in ("d", None, 3):
        for kind in (mxnet.Task, mxnet.Frame, mxnet.Counter, mxnet.Marker):
            with refused(TypeError, "domain", "Domain('name')"):
                kind(wrong, "name")
    for wrong in (None, 3, b"name"):
        with refused(TypeError):
            mxnet.Event(wrong)
        with refused(TypeError):
            mxnet.Domain(wrong)


@pytest.mark.checklist("E8")
async def test_tasks_in_every_form() -> None:
    """Started and stopped, sync and async context managers, decorators; an exception marks the pass."""
    begin()
    domain = mxnet.Domain("forms")
    task = domain.new_task("task", layer=3)
    task.start()
    task.stop()
    with task:
        pass
    async with task:
        await asyncio.sleep(0)

    @domain.new_task("function")
    def function(number: int) -> int:
        return number + 1

    @domain.new_task("coroutine")
    async def coroutine() -> int:
        await asyncio.sleep(0)
        return 3

    assert function(1) == 2 and await coroutine() == 3
    with pytest.raises(KeyError), domain.new_task("raises"):
        raise KeyError
    found = statistics()["Time"]["forms"]
    assert {name: row["Count"] for name, row in found.items()} == {
        "task": 3, "function": 1, "coroutine": 1, "raises": 1,
    }  # fmt: skip
    mxnet.dump()
    events = load("profile.json")
    assert [event["args"]["layer"] for event in slices(events, "task")] == [3] * 3
    assert slices(events, "raises")[0]["args"]["left by exception"]


@pytest.mark.checklist("E9")
def test_frames_have_numbers_and_a_rate() -> None:
    """Each pass is listed; the rate is a counter, and a column of the table."""
    begin()
    frame = mxnet.Domain("video").new_frame("picture", source="camera")
    for _ in range(5):
        with frame:
            time.sleep(0.002)
    passes = mxnet.passes(frame)
    assert [one.number for one in passes] == list(range(5))
    assert passes[0].rate != passes[0].rate
    assert re.fullmatch(r"pass 0: [\d.]+ms", str(passes[0]))
    assert re.fullmatch(r"pass 1: [\d.]+ms, [\d.]+ passes per second", str(passes[1]))
    for before, after in zip(passes, passes[1:], strict=False):
        assert after.duration_ns >= 2_000_000
        assert after.rate == pytest.approx(1e9 / (after.start_ns - before.start_ns))
    (row,) = (row for row in csv.DictReader(mxnet.dumps(format="csv").splitlines()) if row["Name"] == "picture")
    assert float(row["Per second"]) == pytest.approx(4e9 / (passes[-1].start_ns - passes[0].start_ns))
    assert statistics()["Counter"]["video,frame"]["picture per second"]["Count"] == 4
    mxnet.dump()
    drawn = slices(load("profile.json"), "picture")
    assert [event["args"] for event in drawn] == [{"source": "camera", "frame": number} for number in range(5)]
    with refused(TypeError, "passes()", "Frame", "Event('e')"):
        mxnet.passes(mxnet.Event("e"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.checklist("E11")
def test_counters() -> None:
    """Whole and other numbers, of other libraries too, below zero and beyond 64 bits; the mean is weighted by time."""
    np = require("numpy")
    begin()
    domain = mxnet.Domain("d")
    load_of = domain.new_counter("load", 1.5)
    load_of += 0.25
    load_of -= 3
    assert load_of.value == -1.25
    large = domain.new_counter("large", 10**18)
    large.increment(1)
    large.increment(10**18)
    assert large.value == 2 * 10**18 + 1
    other = domain.new_counter("other")
    other.set_value(np.float32(0.5))
    other.increment(np.int64(2))
    other.increment(True)
    assert other.value == 3.5
    wrong: Any
    for wrong in ("3", None, [1]):
        with refused(TypeError):
            other.increment(wrong)
        if wrong is not None:
            with refused(TypeError):
                domain.new_counter("wrong", wrong)
    found = statistics()["Counter"]["d"]
    assert found["load"] == {"Count": 3, "Total": 2.0, "Min": -1.25, "Max": 1.75, "Avg": pytest.approx(2 / 3)}
    assert found["large"]["Max"] == 2e18
    assert found["other"]["Count"] == 3
    (row,) = (row for row in csv.DictReader(mxnet.dumps(format="csv").splitlines()) if row["Name"] == "load")
    assert (float(row["Last"]), float(row["P50"])) == (-1.25, 1.5) and -1.25 <= float(row["Time-weighted avg"]) <= 1.75
    mxnet.dump()
    assert [event["args"]["load"] for event in load("profile.json") if event["name"] == "load"] == [1.5, 1.75, -1.25]
    assert [event["args"]["large"] for event in load("profile.json") if event["name"] == "large"][-1] == 2e18


@pytest.mark.checklist("E11")
def test_no_change_of_a_counter_is_lost_among_threads() -> None:
    """Each increment arrives, and what is recorded last is the sum."""
    begin()
    counter = mxnet.Domain("d").new_counter("shared", 0)

    def work() -> None:
        for _ in range(500):
            counter.increment()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 2000
    row = statistics()["Counter"]["d"]["shared"]
    assert (row["Count"], row["Max"]) == (2001, 2000)


@pytest.mark.checklist("E12")
def test_markers() -> None:
    """With a scope and arguments; another scope is refused with the nearest."""
    begin()
    marker = mxnet.Domain("d").new_marker("here")
    marker.mark()
    marker.mark("thread", batch=3, note="late")
    with refused(mxnet.MXNetValueError, "scope", "'global'", "'marker'", "bogus"):
        marker.mark("bogus")
    with refused(mxnet.MXNetValueError, "scope", "'globl'", "'global'?"):
        marker.mark("globl")
    assert statistics()["Marker"]["d,instant_marker"]["here"] == {"Count": 2}
    mxnet.dump()
    marks = [event["args"] for event in load("profile.json") if event["name"] == "here"]
    assert marks == [{"scope": "process"}, {"batch": 3, "note": "late", "scope": "thread"}]


@pytest.mark.checklist("E13")
async def test_scopes() -> None:
    """They append, follow asyncio tasks, keep threads apart, and are left by exceptions; each is a span."""
    begin()
    with mxnet.scope("outer") as outer, mxnet.scope("inner:") as inner:
        assert (outer, inner, mxnet.current_scope()) == ("outer:", "outer:inner:", "outer:inner:")

        async def child(name: str) -> str:
            with mxnet.scope(name):
                await asyncio.sleep(0.001)
                return mxnet.current_scope()

        assert list(await asyncio.gather(child("a"), child("b"))) == ["outer:inner:a:", "outer:inner:b:"]
        assert await asyncio.get_running_loop().run_in_executor(None, mxnet.current_scope) == "<unk>:"
        with mxnet.scope("alone", append_mode=False) as alone_:
            assert alone_ == mxnet.current_scope() == "alone:"
    with pytest.raises(KeyError), mxnet.scope("x"):
        raise KeyError
    assert mxnet.current_scope() == "<unk>:"
    with mxnet.scope() as unnamed:
        assert unnamed == "<unk>:"
    assert set(statistics()["Time"]["scope"]) == {
        "outer:", "outer:inner:", "outer:inner:a:", "outer:inner:b:", "alone:", "x:", "<unk>:",
    }  # fmt: skip


@pytest.mark.checklist("E19")
def test_custom_operators_have_nested_names() -> None:
    """An operator that is called in one is named after it, in asyncio tasks of its own too; both are decorators as well."""
    begin()

    @mxnet.sub_operator("scale")
    def scale() -> None: ...

    scale()
    with mxnet.custom_operator("MyOp"):
        scale()
        with mxnet.custom_operator("Inner"), mxnet.sub_operator("dot"):
            pass
        with mxnet.sub_operator("dot"):
            pass
    assert {name: row["Count"] for name, row in statistics()["Time"]["Custom Operator"].items()} == {
        "scale": 1, "MyOp::scale": 1, "MyOp::pure_python": 1, "Inner::pure_python": 1, "Inner::dot": 1, "MyOp::dot": 1,
    }  # fmt: skip
