"""`stepscope.mxnet`: settings, states, dumps and statistics, under the names of MXNet's profiler."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stepscope import mxnet
from stepscope.compat.mxnet.recording import Recording
from stepscope.compat.mxnet.settings import MXNetSettings
from stepscope.exporters.memory import MemoryExporter
from stepscope.runtime.loop.pipeline import DRAIN_S
from tests.support.basics import ROOT
from tests.support.messages import refused
from tests.support.mxnets import begin, load, run, slices, statistics


@pytest.mark.checklist("E1", "E2", "E4", "E5", "E7", "E8", "E9", "E10", "E11", "E12", "E20")
def test_a_program_for_mxnet_runs_with_its_import_changed(here: Path) -> None:
    """Nothing else of it is changed; its files have what it did, and the statistics are right."""
    text = (ROOT / "tests" / "support" / "data" / "mxnet_objects.py.txt").read_text()
    program = text.replace("from mxnet import profiler", "from stepscope import mxnet as profiler")
    assert program != text
    printed = run(program, here)
    assert printed.splitlines() == ["mydomain mytask myframe myevent mycounter mymarker", "True"]
    events = load("profile.json")
    assert [event["cat"] for event in slices(events, "mytask")] == ["mydomain"]
    assert [event["cat"] for event in slices(events, "myframe")] == ["mydomain,frame"] * 3
    assert [event["cat"] for event in slices(events, "myevent")] == ["event"]
    assert [event["args"]["mycounter"] for event in events if event["name"] == "mycounter"] == [10, 15, 12, 14, 13, 100]
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
    # The table of MXNet 1.9.1 itself for this program has the same keys at the same places, but for the counter, which it has
    # among the times; counts are the same, and times are alike.
    theirs = json.loads((ROOT / "tests" / "support" / "data" / "mxnet-1.9.1-objects.json").read_text())
    del theirs["Time"]["mydomain"]["mycounter"]
    assert found["Unit"] == theirs["Unit"]
    for category, rows in theirs["Time"].items():
        assert not rows or found["Time"][category].keys() == rows.keys()
        for name, their in rows.items():
            assert found["Time"][category][name].keys() == their.keys()
            assert found["Time"][category][name]["Count"] == their["Count"]
            assert found["Time"][category][name]["Min"] >= 2
    assert found["Marker"].keys() == {category for category, rows in theirs["Time"].items() if not rows}


@pytest.mark.checklist("E1")
def test_every_setting_of_mxnet_is_taken(here: Path) -> None:
    """Also as texts and numbers, as MXNet takes them; others have their default."""
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


@pytest.mark.parametrize(("period", "interval"), [(0.01, 0.01), (60, DRAIN_S)])
def test_a_dump_period_is_no_longer_time_between_drains(period: float, interval: float, here: Path) -> None:
    """Rings would fill, and whoever follows the run would wait."""
    recording = Recording()
    recording.configure(MXNetSettings(dump_period=period, filename=str(here / "trace.json")), frozenset())
    recording.set_state("run")
    assert recording.profiler is not None and recording.profiler.options.drain_interval == interval
    recording.profiler.close()


@pytest.mark.checklist("E1")
@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"filname": "x"}, ["'filname'", "'filename'"]),
        ({"zzzzzz": 1}, ["aggregate_stats, "]),
        ({"filename": 3}, ["3"]),
        ({"filename": ""}, []),
        ({"profile_all": "maybe"}, ["maybe"]),
        ({"dump_period": 0}, ["0"]),
        ({"profile_process": "sever"}, ["sever", "'server'"]),
        ({"backends": [3]}, ["3", "Backend"]),
        ({"exporters": [MemoryExporter]}, ["Exporter"]),
        ({"options": 3}, ["stepscope.Options", "3"]),
        ({"forward": 3}, ["start, stop and mark", "3"]),
        ({"control": 3}, ["stepscope.Control", "3"]),
        ({"schedule": 3}, ["3"]),
        ({"metadata": 3}, ["3"]),
    ],
)
def test_wrong_settings_are_named(settings: Mapping[str, Any], facts: list[str]) -> None:
    """With the value and what it should be; what was set before stays."""
    mxnet.set_config(filename="kept.json")
    with refused(mxnet.MXNetValueError, next(iter(settings)), *facts):
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
    assert not [event for event in events if event["name"].startswith("ProfilerStep")], "nobody called step()"
    for wrong in ("foo", None, 1):
        with refused(mxnet.MXNetValueError, "state", "'run'", "'stop'"):
            mxnet.set_state(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with refused(KeyError, "state must be 'run' or 'stop', got str: 'runn'", "'run'?") as caught:
        mxnet.set_state("runn")
    assert isinstance(caught.value, mxnet.MXNetValueError)


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
def test_objects_started_in_a_pause_are_recorded_from_its_end_on() -> None:
    """And what also ends in it is not recorded at all, whatever was started before; what was open before is until its begin."""
    begin()
    domain = mxnet.Domain("d")
    across, inside, before = domain.new_task("across"), domain.new_task("inside"), domain.new_task("before")
    frames = domain.new_frame("frames")
    began = time.perf_counter()
    before.start()
    mxnet.pause()
    shortest = time.perf_counter() - began
    across.start()
    inside.start()
    frames.start()
    time.sleep(0.05)
    inside.stop()
    before.stop()
    resumed = time.perf_counter()
    mxnet.resume()
    across.stop()
    longest = time.perf_counter() - resumed
    frames.stop()
    inside.stop()
    found = statistics()["Time"]
    assert found["d"].keys() == {"across", "before"} and found["d"]["across"]["Total"] <= longest * 1000
    assert found["d"]["before"]["Total"] <= shortest * 1000
    assert found["d,frame"]["frames"]["Count"] == 1
    again = domain.new_task("again")
    with again:
        mxnet.pause()
        again.start()
        mxnet.resume()
        again.stop()
    assert statistics()["Time"]["d"]["again"]["Count"] == 2


@pytest.mark.checklist("E4", "E5")
def test_any_number_of_dumps() -> None:
    """Each is a valid file with everything so far, while it goes on, after it has stopped, and after it has gone on."""
    with refused(mxnet.MXNetError, "dump()", "set_config()", "set_state('run')"):
        mxnet.dump()
    begin()
    for number in range(3):
        with mxnet.Event(f"event {number}"):
            pass
        assert statistics()["Time"]["event"][f"event {number}"]["Count"] == 1  # reading them changes nothing
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
    assert any(event["name"] == "process_name" for event in events)


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
        with refused(AssertionError, *wrong, *wrong.values()) as raised:
            mxnet.dumps(**wrong)
        assert isinstance(raised.value, ValueError)
    with refused(mxnet.MXNetValueError, "format", "jsn", "'json'?"):
        mxnet.dumps(format="jsn")
    assert "many" in mxnet.dumps(reset=True)
    assert "many" not in mxnet.dumps()
