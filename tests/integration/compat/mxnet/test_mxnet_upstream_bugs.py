"""Faults that mxnet.profiler 1.9.1 was measured to have, done right; tests of its functions have the others."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import stepscope
from stepscope import mxnet
from stepscope.exporters.memory import MemoryExporter
from stepscope.runtime.events.record import Kind
from tests.support.launch import run_to_end
from tests.support.mxnets import begin, load, slices, statistics


@pytest.mark.checklist("E6")
def test_a_file_that_is_written_continuously_is_valid_at_any_moment() -> None:
    """While it grows, after it has stopped, after the dump, and after it has gone on: one document."""
    begin(continuous_dump=True, dump_period=0.005)
    file = Path("profile.json")
    seen: set[int] = set()
    ending = time.monotonic() + 60
    number = 0
    while len(seen) < 5 and time.monotonic() < ending:
        number += 1
        with mxnet.Event(f"event {number}"):
            pass
        if file.exists() and file.stat().st_size:
            try:
                seen.add(len(load(file)))
            except json.JSONDecodeError:  # it was read while a piece was written
                mxnet.dump(finished=False)
                seen.add(len(load(file)))
    assert len(seen) >= 5
    acts: list[Callable[[], None]] = [mxnet.set_state, mxnet.dump, lambda: mxnet.set_state("run"), mxnet.dump]
    for act in acts:
        act()
        assert len(slices(load(file), "event 1")) == 1


@pytest.mark.checklist("E1")
def test_the_file_can_be_changed_while_it_records() -> None:
    """Both are valid; each has what was recorded while it was named, and no file is written over."""
    begin(filename="one.json")
    mxnet.pause()
    mxnet.resume()
    with mxnet.Event("in one"):
        pass
    mxnet.set_config(filename="two.json", aggregate_stats=True, profile_memory=False)
    with mxnet.Event("in two"):
        pass
    mxnet.set_config(filename="one.json", aggregate_stats=True, profile_memory=False)
    with mxnet.Event("in one again"):
        pass
    mxnet.dump()
    names = {name: {event["name"] for event in load(name)} for name in ("one.json", "two.json", "one.1.json")}
    assert [
        [event for event in ("in one", "in two", "in one again") if event in found] for found in names.values()
    ] == [["in one"], ["in two"], ["in one again"]]
    assert set(statistics()["Time"]["event"]) == {"in one", "in two", "in one again"}
    mxnet.set_config(filename="three.json")
    mxnet.dump()
    assert not Path("three.json").exists() and slices(load("one.1.json"), "in one again")


@given(name=st.text(), domain=st.text(max_size=20))
@example(name='a "quoted" name', domain="two\nlines")
@example(name="", domain="")
@example(name="back\\slash", domain="\x00\x1b[31m")
@example(name="\ud800", domain="名前" * 50)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_name_is_legal(name: str, domain: str) -> None:
    """In the trace and in the statistics of every format, whatever is in it."""
    begin()
    group = mxnet.Domain(domain)
    with group.new_task(name), group.new_frame(name), mxnet.Event(name), mxnet.scope(name):
        group.new_counter(name, 1)
        group.new_marker(name).mark()
    mxnet.dump(finished=False)
    text = name.encode("utf-8", "backslashreplace").decode()
    assert any(event["name"] == text for event in load(mxnet.current_file() or ""))
    assert text in statistics(reset=True)["Time"]["event"]
    for format in ("table", "csv", "markdown"):
        assert mxnet.dumps(format=format)


def test_long_names_stay_different() -> None:
    """Also those whose first thousand bytes are the same."""
    begin()
    domain = mxnet.Domain("d" * 2000)
    for ending in "ab":
        for length in (126, 127, 128, 1000, 5000):
            with domain.new_task("x" * length + ending):
                pass
    with mxnet.Domain("d" * 2000 + "e").new_task("other"):
        pass
    tables = statistics()["Time"]
    assert sorted(len(rows) for rows in tables.values()) == [1, 10]
    assert all(row["Count"] == 1 for rows in tables.values() for row in rows.values())
    mxnet.dump()
    names = {event["name"] for event in load("profile.json") if event["name"].startswith("xx")}
    assert len(names) == 10 and {"x" * 128 + "a", "x" * 128 + "b"} <= names


@pytest.mark.checklist("F19")
def test_overlapping_tasks_are_drawn_apart() -> None:
    """As async pairs of their own numbers, and what remains on the thread's row nests."""
    begin()
    domain = mxnet.Domain("d")
    for first, second in ((domain.new_task("a"), domain.new_task("b")), (mxnet.Event("c"), mxnet.Event("d"))):
        first.start()
        second.start()
        first.stop()
        second.stop()
    mxnet.dump()
    events = [event for event in load("profile.json") if event.get("cat") in ("d", "event")]
    ids = [event["id2"]["local"] for event in events if event["ph"] == "b"]
    assert ids and len(ids) == len(set(ids)) == sum(event["ph"] == "e" for event in events)
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        for start, end in row:
            assert not any(start < begun < end < ended for begun, ended in row)
    assert {event["name"] for event in events} == {"a", "b", "c", "d"}


@pytest.mark.checklist("E3", "E10")
def test_pauses_nest() -> None:
    """Two pauses need two resumes, and a third does nothing; a stop ends them all. Events have no domain."""
    begin()
    steps = [mxnet.pause, mxnet.pause, mxnet.resume, mxnet.resume, mxnet.resume]
    for number, act in enumerate(steps):
        act()
        with mxnet.Event(f"after {number}"):
            pass
    mxnet.pause()
    mxnet.set_state("stop")
    mxnet.set_state("run")
    with mxnet.Event("after the stop"):
        pass
    (recorded,) = statistics()["Time"].items()
    assert (recorded[0], sorted(recorded[1])) == ("event", ["after 3", "after 4", "after the stop"])


@pytest.mark.checklist("E8")
def test_a_task_that_is_never_stopped_is_in_the_trace() -> None:
    """Up to the end of recording, and it says so; an object that is freed while it is started ends there."""
    begin()
    task = mxnet.Domain("d").new_task("open")
    task.start()
    gone = mxnet.Domain("d").new_task("let go of")
    gone.start()
    del gone
    mxnet.dump()
    events = load("profile.json")
    (drawn,) = slices(events, "open")
    assert drawn["args"]["had not ended"]
    assert len(slices(events, "let go of")) == 1


FORKS = """
import json, os, sys
from stepscope import mxnet
mxnet.set_config(filename="profile.json", aggregate_stats=True, profile_memory=False)
mxnet.set_state("run")
with mxnet.Event("of the parent"):
    pass
for name in ("first", "second"):
    if (child := os.fork()) == 0:
        with mxnet.Event(f"of the {name} child"):
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
if (child := os.fork()) == 0:
    mxnet.set_state("run")
    with mxnet.Event("in a file of its own"):
        pass
    mxnet.dump()
    mxnet.close()
    print(mxnet.current_file().name, os.getpid(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
mxnet.dump()
print(json.dumps(sorted(json.loads(mxnet.dumps(format="json"))["Time"]["event"])))
"""


@pytest.mark.checklist("F18")
def test_children_are_in_the_trace_of_their_parent(here: Path) -> None:
    """As processes of their own; one that records for itself has a file of its own."""
    done = run_to_end([sys.executable, "-c", FORKS], cwd=here)
    assert done.returncode == 0, done.stderr
    own, events = done.stdout.splitlines()
    assert json.loads(events) == ["of the first child", "of the parent", "of the second child"]
    drawn = [event for event in load("profile.json") if event.get("cat") == "event"]
    assert len({event["pid"] for event in drawn}) == 3
    name, pid = own.split()
    assert name == f"profile_pid{pid}.json"
    assert slices(load(name), "in a file of its own")


@pytest.mark.checklist("E8", "B4")
def test_arguments_steps_schedules_parents_and_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans have arguments and parents, loops have steps, runs have facts, and each rank has a file of its own."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    memory = MemoryExporter()
    mxnet.step()  # nothing records yet
    begin(
        filename="out/profile.json.gz",
        schedule=stepscope.schedule(wait=1, warmup=0, active=1, repeat=1),
        metadata={"model": "net"},
        exporters=[memory],
    )
    for _ in range(3):
        with mxnet.Domain("d").new_task("outer", layer=3), mxnet.Event("inner"):
            pass
        mxnet.step()
    assert mxnet.current_file() == Path("out/profile_rank3.json.gz")
    mxnet.close()
    assert Path("out/profile_rank3.json.gz").exists()
    outer, inner = sorted(memory.events(kind=Kind.SPAN)[:2], key=lambda span: int(span["ts"]))
    assert inner["parent"] == outer["id"] and outer["step"] == 1
    assert {"layer": 3} in memory.arguments()
    assert memory.run is not None and memory.run.metadata()["model"] == "net" and memory.run.rank == 3


@pytest.mark.checklist("E13")
def test_a_scope_is_left_where_its_generator_is_closed() -> None:
    """In another thread, too."""

    def holds() -> Generator[str]:
        with mxnet.scope("held") as name:
            yield name

    generator = holds()
    assert next(generator) == "held:"
    closing = threading.Thread(target=generator.close)
    closing.start()
    closing.join()
    assert mxnet.current_scope() == "<unk>:"


def test_events_take_little_room_and_do_not_wait_in_memory(here: Path) -> None:
    """Less than half of MXNet's 426 bytes each in the file, which has them before anybody dumps."""
    begin(dump_period=0.01)
    task = mxnet.Domain("d").new_task("t")
    for _ in range(20_000):
        task.start()
        task.stop()
    file = here / "profile.json"
    ending = time.monotonic() + 60
    while (not file.exists() or file.stat().st_size < 500_000) and time.monotonic() < ending:
        time.sleep(0.01)
    assert file.stat().st_size >= 500_000
    mxnet.dump()
    assert len(slices(load(file), "t")) == statistics()["Time"]["d"]["t"]["Count"] == 20_000
    assert file.stat().st_size / 20_000 < 213
