"""`stepscope.mxnet`: what MXNet's profiler offers, under the same names."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope import mxnet
from stepscope.exporters.memory import MemoryExporter
from stepscope.runtime.events import Kind
from tests.mxnets import alone, begin, durations, load, slices, statistics
from tests.support import ROOT, require


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    """Each test records in an empty directory."""
    with alone(tmp_path) as directory:
        yield directory


def run(program: str, directory: Path, **environment: str) -> str:
    """Runs a program with warnings as errors; what it printed."""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.checklist("E1", "E2", "E4", "E5", "E7", "E8", "E9", "E10", "E11", "E12", "E20")
def test_a_program_for_mxnet_runs_with_its_import_changed(here: Path) -> None:
    """Nothing else of it is changed; its files have what it did, and the statistics are right."""
    text = (ROOT / "tests" / "data" / "mxnet_objects.py.txt").read_text()
    program = text.replace("from mxnet import profiler", "from stepscope import mxnet as profiler")
    assert program != text
    said = run(program, here)
    assert said.splitlines() == ["mydomain mytask myframe myevent mycounter mymarker", "True"]
    events = load("profile.json")
    assert [event["cat"] for event in slices(events, "mytask")] == ["mydomain"]
    assert [event["cat"] for event in slices(events, "myframe")] == ["mydomain,frame"] * 3
    assert [event["cat"] for event in slices(events, "myevent")] == ["event"]
    assert [event["args"]["value"] for event in events if event["name"] == "mycounter"] == [10, 15, 12, 14, 13, 100]
    marks = [event for event in events if event["name"] == "mymarker"]
    assert [event["args"]["scope"] for event in marks] == ["global", "process", "thread", "task", "marker"]
    assert {event["cat"] for event in marks} == {"mydomain,instant_marker"}
    assert not slices(events, "in the pause")
    found = json.loads(Path("dumps.json").read_text())
    assert found["Counter"]["mydomain"]["mycounter"] == {
        "Count": 6, "Total": 164, "Min": 10, "Max": 100, "Avg": pytest.approx(27.33, abs=0.005),
    }  # fmt: skip
    assert found["Time"]["mydomain"]["mytask"]["Total"] >= 2
    assert found["Time"]["mydomain,frame"]["myframe"]["Count"] == 3
    table = Path("dumps.txt").read_text().splitlines()
    assert table[1:3] == ["Profile Statistics:", "\tNote the difference in units for different entries."]
    assert (
        "Name                          Total Count        Time (ms)    Min Time (ms)    Max Time (ms)    Avg Time (ms)"
        in table
    )
    assert (
        "----                          -----------        ---------    -------------    -------------    -------------"
        in table
    )
    (row,) = [line.split() for line in table if line.startswith("mycounter ")]
    assert row == ["mycounter", "6", "164.0000", "10.0000", "100.0000", "27.3333"]


@pytest.mark.checklist("E5")
def test_statistics_have_the_shape_of_those_of_mxnet(here: Path) -> None:
    """What MXNet 1.9.1 itself wrote for the same program has the same keys at the same places, but for the counter, which
    it has among the times; counts are the same, and times are alike."""
    text = (ROOT / "tests" / "data" / "mxnet_objects.py.txt").read_text()
    run(text.replace("from mxnet import profiler", "from stepscope import mxnet as profiler"), here)
    ours = json.loads(Path("dumps.json").read_text())
    theirs = json.loads((ROOT / "tests" / "data" / "mxnet-1.9.1-objects.json").read_text())
    del theirs["Time"]["mydomain"]["mycounter"]
    assert ours["Unit"] == theirs["Unit"]
    for category, rows in theirs["Time"].items():
        assert not rows or ours["Time"][category].keys() == rows.keys()
        for name, row in rows.items():
            assert ours["Time"][category][name].keys() == row.keys()
            assert ours["Time"][category][name]["Count"] == row["Count"]
            assert ours["Time"][category][name]["Min"] >= 2
    assert ours["Marker"].keys() == {category for category, rows in theirs["Time"].items() if not rows}


@pytest.mark.checklist("E1")
def test_every_setting_of_mxnet_is_taken(here: Path) -> None:
    """Also as texts and numbers, as MXNet takes them; what is not given has its default."""
    flags = dict.fromkeys(("profile_all", "profile_symbolic", "profile_imperative", "profile_api"), "False")
    mxnet.set_config(
        filename=here / "other.json",
        gpu_memory_profile_filename_prefix="memory",
        profile_memory=0,
        continuous_dump="1",
        dump_period=0.01,
        aggregate_stats=True,
        profile_process="worker",
        **flags,
    )
    mxnet.set_state("run")
    with mxnet.Event("here"):
        pass
    mxnet.dump()
    assert slices(load("other.json"), "here") and "here" in mxnet.dumps()
    assert not any(one.recorded for one in mxnet.capabilities() if one.kind != "objects")
    mxnet.set_config()
    assert mxnet.dumps() == ""
    assert {one.kind: one.recorded for one in mxnet.capabilities()}["memory"]


@pytest.mark.checklist("E1")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"filname": "x"}, "no setting 'filname'; did you mean 'filename'"),
        ({"zzzzzz": 1}, "no setting 'zzzzzz'; there are filename, "),
        ({"filename": 3}, "filename is 3: Expected `str`"),
        ({"filename": ""}, "filename is empty"),
        ({"profile_all": "maybe"}, "profile_all is 'maybe': Expected `bool`"),
        ({"dump_period": 0}, "dump_period is 0: Expected `float` > 0"),
        ({"profile_process": "sever"}, "profile_process is 'sever'"),
        ({"backends": [3]}, "backends has 3, which is no Backend"),
        ({"exporters": [MemoryExporter]}, "which is no Exporter"),
        ({"options": 3}, "options must be stepscope.Options, got 3"),
        ({"forward": 3}, "forward must have start, stop and mark, got 3"),
        ({"schedule": 3}, "schedule must be callable, got 3"),
        ({"metadata": 3}, "metadata must be a mapping, got 3"),
    ],
)
def test_wrong_settings_are_named(settings: Mapping[str, Any], said: str) -> None:
    """With the value and what it should be; what was set before stays."""
    mxnet.set_config(filename="kept.json")
    with pytest.raises(mxnet.MXNetValueError, match=said):
        mxnet.set_config(**settings)
    mxnet.set_state("run")
    assert mxnet.current_file() == Path("kept.json")


@pytest.mark.checklist("E2")
def test_states(here: Path) -> None:
    """Run and stop any number of times, into one file; another state is refused with the nearest."""
    begin()
    for name in ("first", "second"):
        mxnet.set_state("run")
        with mxnet.Event(name):
            pass
        mxnet.set_state("stop")
        mxnet.set_state()
        with mxnet.Event("not recorded"):
            pass
    events = load("profile.json")
    assert slices(events, "first") and slices(events, "second") and not slices(events, "not recorded")
    for wrong in ("foo", "runn", None, 1):
        with pytest.raises(mxnet.MXNetValueError, match="state must be one of 'run', 'stop', got"):
            mxnet.set_state(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(mxnet.MXNetValueError, match="did you mean 'run'"):
        mxnet.set_state("runn")


@pytest.mark.checklist("E3", "F16")
def test_a_pause_in_the_middle_of_a_task() -> None:
    """The task's parts before and after are drawn, the gap between them is an event, and statistics leave it out."""
    begin()
    task = mxnet.Domain("d").new_task("work")
    began = time.perf_counter()
    with task:
        time.sleep(0.01)
        mxnet.pause()
        paused = time.perf_counter()
        time.sleep(0.2)
        pause = time.perf_counter() - paused
        mxnet.resume()
        time.sleep(0.01)
    longest = time.perf_counter() - began - pause
    row = statistics()["Time"]["d"]["work"]
    assert row["Count"] == 1 and 20 <= row["Total"] <= longest * 1000
    mxnet.dump()
    events = load("profile.json")
    first, second = sorted(slices(events, "work"), key=lambda event: event["ts"])
    assert first["args"]["was cut"] and second["args"]["was cut"]
    assert second["ts"] - first["ts"] - first["dur"] >= pause * 1e6
    (gap,) = slices(events, "paused")
    assert gap["ts"] == pytest.approx(first["ts"] + first["dur"], abs=1)


@pytest.mark.checklist("E3", "F16")
def test_what_begins_in_a_pause_is_recorded_from_its_end_on() -> None:
    """And what also ends in it is not recorded at all, whatever was started before."""
    begin()
    domain = mxnet.Domain("d")
    across, inside = domain.new_task("across"), domain.new_task("inside")
    frames = domain.new_frame("frames")
    mxnet.pause()
    across.start()
    inside.start()
    frames.start()
    time.sleep(0.05)
    inside.stop()
    resumed = time.perf_counter()
    mxnet.resume()
    across.stop()
    longest = time.perf_counter() - resumed
    frames.stop()
    inside.stop()
    found = statistics()["Time"]
    assert found["d"].keys() == {"across"} and found["d"]["across"]["Total"] <= longest * 1000
    assert found["d,frame"]["frames"]["Count"] == 1
    again = domain.new_task("again")
    with again:
        mxnet.pause()
        again.start()
        mxnet.resume()
        again.stop()
    assert statistics()["Time"]["d"]["again"]["Count"] == 2


@pytest.mark.checklist("E4")
def test_any_number_of_dumps() -> None:
    """Each is a valid file with everything so far, while it goes on, after it has stopped, and after it has gone on."""
    with pytest.raises(mxnet.MXNetError, match=r"nothing was recorded yet; call set_config\(\) and set_state\('run'\)"):
        mxnet.dump()
    begin()
    for number in range(3):
        with mxnet.Event(f"event {number}"):
            pass
        mxnet.dump(finished=False)
        assert [len(slices(load("profile.json"), f"event {at}")) for at in range(number + 1)] == [1] * (number + 1)
    mxnet.dump()
    mxnet.dump()
    with mxnet.Event("between"):
        pass
    mxnet.set_state("run")
    with mxnet.Event("later"):
        pass
    mxnet.dump()
    events = load("profile.json")
    assert slices(events, "event 0") and slices(events, "later") and not slices(events, "between")


@pytest.mark.checklist("E5")
def test_formats_and_orders_of_statistics() -> None:
    """Each order in each format; wrong values are AssertionErrors, too, as MXNet's."""
    begin()
    domain = mxnet.Domain("d")
    with domain.new_task("long"):
        for seconds in (0.001, 0.003, 0.005):
            with domain.new_task("many"):
                time.sleep(seconds)
    for sort_by in ("total", "avg", "min", "max"):
        assert list(statistics(sort_by=sort_by)["Time"]["d"]) == ["long", "many"]
        assert list(statistics(sort_by=sort_by, ascending=True)["Time"]["d"]) == ["many", "long"]
    assert list(statistics(sort_by="count")["Time"]["d"]) == ["many", "long"]
    (long, many) = csv.DictReader(mxnet.dumps(format="csv").splitlines())
    assert (long["Name"], many["Name"], many["Count"], many["Unit"]) == ("long", "many", "3", "ms")
    assert float(many["P50"]) <= float(many["P95"]) <= float(many["P99"]) <= float(many["Max"])
    assert 0 < float(many["Std"]) < float(many["Max"]) and float(long["Std"]) == 0
    assert mxnet.dumps(format="markdown").splitlines()[2].startswith("| Time | ms | `d` | `long` | 1 | ")
    wrong: dict[str, Any]
    for wrong in ({"format": "xml"}, {"sort_by": "mean"}, {"reset": 2}, {"ascending": "yes"}):
        with pytest.raises(AssertionError, match=next(iter(wrong))) as raised:
            mxnet.dumps(**wrong)
        assert isinstance(raised.value, ValueError)
    with pytest.raises(mxnet.MXNetValueError, match="did you mean 'json'"):
        mxnet.dumps(format="jsn")


@pytest.mark.checklist("E5")
def test_statistics_begin_anew() -> None:
    """After they were read with `reset`."""
    begin()
    with mxnet.Event("before"):
        pass
    assert "before" in mxnet.dumps(reset=True)
    assert "before" not in mxnet.dumps()
    with mxnet.Event("after"):
        pass
    assert list(statistics()["Time"]["event"]) == ["after"]


PROGRAM = """
import sys, time
from pathlib import Path
from stepscope import mxnet
mxnet.set_config(filename="profile.json", continuous_dump=True, dump_period=0.01)
mxnet.set_state("run")
for number in range(1000):
    with mxnet.Event(f"event {number}"):
        pass
file = Path("profile.json")
while not file.exists() or "event 999" not in file.read_text():
    time.sleep(0.01)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.mark.checklist("E6", "F8")
def test_a_killed_program_leaves_a_valid_file(here: Path) -> None:
    """What was recorded a moment before is in it."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "there\n"
            assert sum(event["cat"] == "event" for event in load("profile.json") if event["ph"] == "X") == 1000
        finally:
            process.kill()
    assert sum(event["cat"] == "event" for event in load("profile.json") if event["ph"] == "X") == 1000


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
            with pytest.raises(TypeError, match=r"domain must be a Domain, got .*; write Domain\('name'\)"):
                kind(wrong, "name")
    for wrong in (None, 3, b"name"):
        with pytest.raises(TypeError, match="must be a str, got"):
            mxnet.Event(wrong)
        with pytest.raises(TypeError, match="must be a str, got"):
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


@pytest.mark.checklist("E8")
def test_tasks_nest() -> None:
    """One in another, of one object too: each has its parent, which is not in MXNet's trace."""
    memory = MemoryExporter()
    begin(exporters=[memory])
    task = mxnet.Domain("d").new_task("task")
    with task, mxnet.Event("inside"), task:
        pass
    mxnet.dump()
    spans = {int(span["id"]): int(span["parent"]) for span in memory.events(kind=Kind.SPAN) if not span["flags"] & 64}
    assert sorted(parent in spans for parent in spans.values()) == [False, True, True]


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
    for before, after in zip(passes, passes[1:], strict=False):
        assert after.duration_ns >= 2_000_000
        assert after.rate == pytest.approx(1e9 / (after.start_ns - before.start_ns))
    (row,) = (row for row in csv.DictReader(mxnet.dumps(format="csv").splitlines()) if row["Name"] == "picture")
    assert float(row["Per second"]) == pytest.approx(4e9 / (passes[-1].start_ns - passes[0].start_ns))
    assert statistics()["Counter"]["video,frame"]["picture per second"]["Count"] == 4
    mxnet.dump()
    drawn = slices(load("profile.json"), "picture")
    assert [event["args"] for event in drawn] == [{"source": "camera", "frame": number} for number in range(5)]
    with pytest.raises(TypeError, match="takes a Frame, got Event"):
        mxnet.passes(mxnet.Event("e"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.checklist("E9")
async def test_frames_as_decorators() -> None:
    """Of functions, coroutine functions and generators, each call is a pass."""
    begin()
    frame = mxnet.Domain("d").new_frame("frame")

    @frame
    def function() -> int:
        return 1

    @frame
    async def coroutine() -> int:
        return 2

    @frame
    def numbers() -> Iterator[int]:
        yield from (1, 2)

    assert function() == 1 and await coroutine() == 2 and list(numbers()) == [1, 2]
    assert function.__name__ == "function"
    assert [one.number for one in mxnet.passes(frame)] == [0, 1, 2]


@pytest.mark.checklist("E10")
def test_events_work_in_resumed_state() -> None:
    """And not in paused state; they have no domain."""
    begin()
    mxnet.pause()
    mxnet.pause()
    with mxnet.Event("in the pause"):
        pass
    mxnet.resume()
    with mxnet.Event("still paused"):
        pass
    mxnet.resume()
    mxnet.resume()
    with mxnet.Event("resumed"):
        pass
    assert list(statistics()["Time"]) == ["event"] and list(statistics()["Time"]["event"]) == ["resumed"]


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
        with pytest.raises(TypeError, match="a counter takes numbers, got"):
            other.increment(wrong)
        if wrong is not None:
            with pytest.raises(TypeError, match="a counter takes numbers, got"):
                domain.new_counter("wrong", wrong)
    found = statistics()["Counter"]["d"]
    assert found["load"] == {"Count": 3, "Total": 2.0, "Min": -1.25, "Max": 1.75, "Avg": pytest.approx(2 / 3)}
    assert found["large"]["Max"] == 2e18
    assert found["other"]["Count"] == 3


@pytest.mark.checklist("E11")
def test_the_mean_over_time_of_a_counter() -> None:
    """What held for long counts for much; only the extra formats show it, beside the latest value and the quantiles."""
    begin()
    counter = mxnet.Domain("d").new_counter("queue", 100)
    time.sleep(0.2)
    counter.set_value(0)
    for _ in range(97):
        counter.set_value(0)
    counter.set_value(7)
    (row,) = csv.DictReader(mxnet.dumps(format="csv").splitlines())
    assert float(row["Time-weighted avg"]) > 3 * float(row["Avg"])
    assert (float(row["Last"]), float(row["P50"]), float(row["Max"])) == (7, 0, 100)


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
    with pytest.raises(mxnet.MXNetValueError, match="scope must be one of .*, got 'bogus'"):
        marker.mark("bogus")
    with pytest.raises(mxnet.MXNetValueError, match="did you mean 'global'"):
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


class Server:
    """A remote control that keeps what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def configure(self, settings: Mapping[str, Any]) -> None:
        self.asked.append(dict(settings))

    def set_state(self, state: str) -> None:
        self.asked.append(state)

    def pause(self) -> None:
        self.asked.append("pause")

    def resume(self) -> None:
        self.asked.append("resume")

    def dump(self, finished: bool) -> None:
        self.asked.append(("dump", finished))


@pytest.mark.checklist("E14")
def test_the_server_is_reached_by_a_remote_control() -> None:
    """Every call is passed on, and changes nothing here; without a remote control it is an error that says what to do."""
    calls: list[Any] = [
        lambda: mxnet.set_config(profile_process="server", filename="server.json", aggregate_stats=True),
        lambda: mxnet.set_state("run", profile_process="server"),
        lambda: mxnet.pause(profile_process="server"),
        lambda: mxnet.resume(profile_process="server"),
        lambda: mxnet.dump(False, profile_process="server"),
        lambda: mxnet.set_state("stop", "server"),
    ]
    for handle, said in ((None, "none was given"), (3, "int is none"), (Server, "type is none")):
        mxnet.set_kvstore_handle(handle)
        for call in calls:
            with pytest.raises(mxnet.MXNetError, match=f"needs a remote control, and {said}; give one to set_kvstore"):
                call()
    server = Server()
    mxnet.set_kvstore_handle(server)
    for call in calls:
        call()
    assert server.asked == [
        {"filename": "server.json", "aggregate_stats": True}, "run", "pause", "resume", ("dump", False), "stop",
    ]  # fmt: skip
    assert mxnet.current_profiler() is None
    with pytest.raises(mxnet.MXNetValueError, match="profile_process must be one of 'worker', 'server', got 'both'"):
        mxnet.pause("both")
    with pytest.raises(mxnet.MXNetValueError, match="did you mean 'server'"):
        mxnet.set_state("run", "srver")


@pytest.mark.checklist("E15")
def test_former_names(here: Path) -> None:
    """They work, and warn."""
    with pytest.warns(UserWarning, match=r"profiler_set_config\(\) is deprecated; use set_config\(\)"):
        mxnet.profiler_set_config("all", "old.json")
    with pytest.warns(UserWarning, match=r"profiler_set_state\(\) is deprecated; use set_state\(\)"):
        mxnet.profiler_set_state("run")
    with mxnet.Event("old"):
        pass
    with pytest.warns(UserWarning, match=r"dump_profile\(\) is deprecated; use dump\(\)"):
        mxnet.dump_profile()
    assert slices(load("old.json"), "old")
    with pytest.warns(UserWarning), pytest.raises(mxnet.MXNetValueError, match="did you mean 'symbolic'"):
        mxnet.profiler_set_config("symbolik")


@pytest.mark.checklist("E16", "E13")
def test_the_table_of_allocations(here: Path) -> None:
    """torch's allocations, each with its scope, in MXNet's columns."""
    torch = require("torch")
    begin(
        gpu_memory_profile_filename_prefix="memory",
        backends=[stepscope.TorchBackend(profile_memory=True)],
    )
    with mxnet.scope("net"):
        with mxnet.scope("layer"):
            kept = torch.zeros(1 << 16)
        other = torch.zeros(1 << 14)
    last = torch.zeros(1 << 12)
    assert len(kept) + len(other) + len(last)
    mxnet.dump()
    with (here / f"memory-pid_{os.getpid()}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["Attribute Name", "Requested Size", "Device", "Actual Size", "Reuse?"]
    found = {int(row["Requested Size"]): (row["Attribute Name"], row["Device"]) for row in rows}
    assert found[4 << 16] == ("net:layer:", "cpu/0")
    assert found[4 << 14] == ("net:", "cpu/0")
    assert found[4 << 12] == ("<unk>:", "cpu/0")


@pytest.mark.checklist("E17", "B6")
def test_it_starts_by_the_environment(here: Path) -> None:
    """As MXNet does; the file is complete when the program ends. The mode says what is asked for."""
    program = "from stepscope import mxnet\nwith mxnet.Event('auto'): pass\nprint(mxnet.capabilities()[-1].recorded)"
    assert run(program, here, MXNET_PROFILER_AUTOSTART="1", MXNET_PROFILER_MODE="8") == "True\n"
    assert slices(load("profile.json"), "auto")
    Path("profile.json").unlink()
    assert run(program, here, MXNET_PROFILER_AUTOSTART="1", MXNET_PROFILER_MODE="5") == "False\n"
    assert slices(load("profile.json"), "auto")
    Path("profile.json").unlink()
    run(program, here, MXNET_PROFILER_AUTOSTART="0")
    assert not Path("profile.json").exists()


class Told:
    """Another tool, which keeps what it is told."""

    def __init__(self, fails: bool = False) -> None:
        self.told: list[Any] = []
        self.fails = fails

    def start(self, name: str, category: str) -> object:
        if self.fails:
            raise ValueError("no tool")
        self.told.append((name, category))
        return name

    def stop(self, started: Any) -> None:
        self.told.append(started)

    def mark(self, name: str, category: str) -> None:
        self.told.append((name, category))


@pytest.mark.checklist("E18")
def test_objects_are_forwarded() -> None:
    """To whoever is named; one that fails is asked no more, and costs nothing but itself."""
    told = Told()
    begin(forward=told)
    domain = mxnet.Domain("d")
    with domain.new_task("task"):
        domain.new_marker("mark").mark()
    assert told.told == [("task", "d"), ("mark", "d,instant_marker"), "task"]
    mxnet.set_config(forward=Told(fails=True), aggregate_stats=True, profile_memory=False)
    with domain.new_task("task"), domain.new_task("task"):
        pass
    assert statistics()["Time"]["d"]["task"]["Count"] == 3


@pytest.mark.checklist("E18")
def test_objects_are_forwarded_to_nvtx() -> None:
    """By NVIDIA's own package, which does nothing where no tool is attached."""
    require("nvtx")
    begin(forward=mxnet.NvtxForward())
    with mxnet.Event("event"), mxnet.Domain("d").new_task("task"):
        mxnet.Domain("").new_marker("mark").mark()
    assert statistics()["Time"]["d"]["task"]["Count"] == 1


@pytest.mark.checklist("E19")
def test_memory_is_a_counter() -> None:
    """Of the process, from the begin on; it is in kB in the statistics, and in bytes in the trace."""
    mxnet.set_config(aggregate_stats=True)
    mxnet.set_state("run")
    ending = time.monotonic() + 60
    while "Device Storage" not in statistics()["Memory"] and time.monotonic() < ending:
        time.sleep(0.01)
    block = bytearray(b"x") * (64 << 20)
    row: dict[str, float] = {"Min": 0, "Max": 0}
    while row["Max"] - row["Min"] < (60 << 20) / 1000 and time.monotonic() < ending:
        time.sleep(0.01)
        row = statistics()["Memory"]["Device Storage"]["Memory: cpu/0"]
    assert len(block) == 64 << 20
    assert row["Count"] >= 2 and row["Max"] - row["Min"] >= (60 << 20) / 1000
    assert row["Min"] < row["Avg"] < row["Max"]
    assert statistics()["Unit"] == {"Time": "ms", "Memory": "kB"}
    mxnet.dump()
    values = [event["args"]["value"] for event in load("profile.json") if event["name"] == "Memory: cpu/0"]
    assert len(values) >= row["Count"] and max(values) >= 1000 * row["Max"] * 0.999


@pytest.mark.checklist("E19")
def test_custom_operators_have_nested_names() -> None:
    """What is called in one is named after it, in asyncio tasks of its own too; both are decorators as well."""
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


def test_what_cannot_be_recorded_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Once, at the begin: as a warning if it was asked for by name; and in the trace."""
    mxnet.set_config(profile_imperative=True)
    mxnet.set_state("run")
    mxnet.set_state("stop")
    mxnet.set_state("run")
    (record,) = [record for record in caplog.records if "imperative" in record.message]
    assert record.levelname == "WARNING"
    assert "MXNet is not installed" in record.message and "stepscope.TorchBackend()" in record.message
    mxnet.close()
    (said,) = [event for event in load("profile.json") if event["name"] == "stepscope"]
    kinds = {one["kind"]: one["recorded"] for one in said["args"]["metadata"]["capabilities"]}
    assert kinds == {"objects": True, "symbolic": False, "imperative": False, "api": False, "memory": True}
    caplog.clear()
    mxnet.set_config()
    mxnet.set_state("run")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_operators_come_from_backends() -> None:
    """With torch's, `dumps` has the operators of torch."""
    torch = require("torch")
    begin(backends=[stepscope.TorchBackend()])
    assert {one.kind: one.recorded for one in mxnet.capabilities()}["imperative"]
    total = torch.ones(4) + torch.ones(4)
    assert float(total.sum()) == 8
    mxnet.dump()
    assert "aten::add" in mxnet.dumps()


def test_steps_and_schedules() -> None:
    """A loop that calls `step` is recorded as a schedule says."""
    mxnet.step()
    begin(schedule=stepscope.schedule(wait=1, warmup=0, active=2, repeat=1))
    for number in range(5):
        with mxnet.Event(f"step {number}"):
            pass
        mxnet.step()
    mxnet.dump()
    assert set(statistics()["Time"]["event"]) == {"step 1", "step 2"}
    names = {event["name"] for event in load("profile.json")}
    assert {"ProfilerStep#1", "ProfilerStep#2"} <= names and "ProfilerStep#3" not in names


def test_durations_are_what_they_are() -> None:
    """The trace and the statistics agree."""
    begin()
    with mxnet.Event("e"):
        time.sleep(0.01)
    mxnet.dump()
    (drawn,) = durations(load("profile.json"), "e")
    assert drawn == pytest.approx(statistics()["Time"]["event"]["e"]["Total"], abs=0.001) and drawn >= 10
