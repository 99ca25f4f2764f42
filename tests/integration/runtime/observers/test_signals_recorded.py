"""Signals that are recorded next to the program's own events: by each profiler by default, of real loops."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope as sc
from stepscope.backends import Sink
from stepscope.backends.simulated.scripted import ScriptedBackend
from stepscope.runtime import _core
from stepscope.runtime.control.entry_points.environment import SIGNALS_VARIABLE
from stepscope.runtime.errors import BackendError, ControlError
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.observers import processor_demand, task_runs, task_waits
from stepscope.runtime.options import SIGNALS, Signal
from stepscope.runtime.windows.step_facts import SIGNAL, Phase, StepFactsBuilder
from stepscope.runtime.windows.step_facts import SIGNALS as READINGS
from tests.support import commands
from tests.support.basics import require
from tests.support.launch import run_to_end
from tests.support.recording import Row, rows_of

THREE_STEPS = sc.schedule(wait=1, warmup=0, active=3, repeat=1)


class Traced:
    """The events, facts and ledger of a profiler, read when it is closed."""

    def __init__(self, profiler: sc.Profiler, memory: sc.exporters.MemoryExporter) -> None:
        self.profiler = profiler
        self._memory = memory

    @property
    def rows(self) -> list[Row]:
        """All events."""
        return [row for batch in self._memory.batches for row in rows_of(batch.events, batch.args)]

    def of(self, category: str) -> list[Row]:
        """Those of a category."""
        return [row for row in self.rows if row.category == category]

    def facts(self) -> Any:
        """The facts of its steps."""
        builder = StepFactsBuilder(late=True)
        for batch in self._memory.batches:
            builder.update(batch.events)
        end = max(window.end_ns for window in self._memory.windows)
        return builder.finish(end)


@pytest.fixture(autouse=True)
def signals_from_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here options say what is recorded; other tests record none of it."""
    monkeypatch.delenv(SIGNALS_VARIABLE)


@contextmanager
def traced(tmp_path: Path, *signals: Signal, **arguments: Any) -> Generator[Traced]:
    """Traces a block with these signals, and no others."""
    memory = sc.exporters.MemoryExporter()
    options = sc.Options(signals=signals)
    with sc.trace(exporters=[memory], output_dir=tmp_path / "run", options=options, **arguments) as profiler:
        yield Traced(profiler, memory)


def work(seconds: float) -> int:
    """Runs Python, so long of processor time."""
    end, number = time.thread_time() + seconds, 0
    while time.thread_time() < end:
        number += 1
    return number


def test_each_step_begins_with_readings(tmp_path: Path) -> None:
    """They have the time of the step's mark, and tell what the step took."""
    pages = np.ones(1)
    with traced(tmp_path, "steps") as found:
        for step in range(6):
            work(0.01)
            if step == 3:
                (tmp_path / "written").write_bytes(os.urandom(1 << 20))
                pages = np.frombuffer(mmap.mmap(-1, 32 << 20), np.uint8)  # pages that nobody has used before
                pages[:] = 1
            found.profiler.step()
    marks = {row.ts for row in found.rows if row.kind is Kind.STEP}
    readings = found.of(SIGNAL)
    assert {row.ts for row in readings} == marks
    assert {row.name for row in readings} == set(READINGS)
    facts = found.facts()[:6]
    assert (facts["cpu_ns"] >= 10e6).all()
    assert (facts["run_queue_ns"] >= 0).all()
    assert facts["written_bytes"][3] >= 1 << 20
    assert facts["resident_bytes"][3] - facts["resident_bytes"][2] >= pages.nbytes * 0.9
    assert facts["page_faults"][3] > 0


def test_the_last_step_of_a_window_has_all_of_its_readings(tmp_path: Path) -> None:
    """Also where the next step is not recorded."""
    with traced(tmp_path, "steps", schedule=THREE_STEPS) as found:
        for _ in range(8):
            work(0.005)
            found.profiler.step()
    facts = found.facts()
    assert facts["step"].tolist() == [1, 2, 3]
    assert (facts["cpu_ns"] >= 5e6).all()


def test_paused_steps_have_no_readings(tmp_path: Path) -> None:
    """Nothing is read where nothing is recorded."""
    with traced(tmp_path, "steps") as found:
        found.profiler.step()
        found.profiler.pause()
        for _ in range(5):
            found.profiler.step()
        found.profiler.resume()
        found.profiler.step()
    assert len([row for row in found.of(SIGNAL) if row.name == "cpu_ns"]) == 3


def test_files_of_proc_are_closed(tmp_path: Path) -> None:
    """With the profiler that reads them."""

    def reads() -> list[str]:
        paths = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        return [path for path in paths if path.endswith(("/schedstat", "/statm", "/io"))]

    with traced(tmp_path, "steps") as found:
        found.profiler.step()
        assert len(reads()) == 3
    assert not reads()


def test_a_collection_is_a_span(tmp_path: Path) -> None:
    """With its generation, and what it found; on the thread where it ran."""

    class Node:
        def __init__(self) -> None:
            self.me = self

    with traced(tmp_path, "collections") as found:
        with sc.span("around"):
            nodes = [Node() for _ in range(50)]
            del nodes
            gc.collect()
        found.profiler.step()
    spans = [row for row in found.of("gc") if row.arguments["generation"] == 2]
    (around,) = [row for row in found.rows if row.name == "around"]
    inside = [row for row in spans if around.ts <= row.ts and row.end <= around.end]
    assert [row.name for row in inside] == ["garbage collection"]
    assert inside[0].arguments["collected"] >= 50 and inside[0].arguments["uncollectable"] == 0
    assert (inside[0].parent, inside[0].track) == (around.id, around.track)
    assert around.self_dur <= around.dur - inside[0].dur
    assert found.facts()["collections"][0] >= 1


def test_the_last_profiler_takes_the_callback_away(tmp_path: Path) -> None:
    """Not the first of two that closes."""
    with traced(tmp_path / "a", "collections"):
        with traced(tmp_path / "b", "collections"):
            assert gc.callbacks.count(_core.collection) == 1
        assert _core.collection in gc.callbacks
    assert _core.collection not in gc.callbacks


class Slow(ScriptedBackend):
    """A backend that opens only when it may."""

    may = threading.Event()

    def open(self, sink: Sink) -> None:
        assert self.may.wait(30)
        super().open(sink)


def test_a_start_that_gives_up_takes_the_callback_away(tmp_path: Path) -> None:
    """Nothing is recorded for a profiler that has not started."""
    backend = Slow()
    profiler = sc.trace(
        start=False,
        backends=[backend],
        output_dir=tmp_path,
        options=sc.Options(start_timeout=0.1, signals=("collections",)),
    )
    with pytest.raises(BackendError, match="gave up"):
        profiler.start()
    assert _core.collection not in gc.callbacks
    backend.may.set()
    profiler.close()


def busy_function() -> None:
    """Is where the samples are to be."""
    work(0.7)


def test_samples_say_where_the_thread_is_that_steps(tmp_path: Path) -> None:
    """With its state; without frames of ours."""
    with traced(tmp_path, "stacks") as found:
        found.profiler.step()
        busy_function()
        found.profiler.step()
    begin, end = [row.ts for row in found.rows if row.kind is Kind.STEP][1:3]
    samples = [row for row in found.of("stack sample") if begin < row.ts < end]
    assert len(samples) >= 3
    here = f"({Path(__file__)}:"
    inside = [row for row in samples if f"busy_function {here}" in row.arguments["stack"].split(";")[-2]]
    assert len(inside) >= len(samples) - 1
    assert all(f"work {here}" in row.arguments["stack"].split(";")[-1] for row in inside)
    assert {row.arguments["state"] for row in inside} <= {"R", "S", "D"}
    assert not any("stepscope/runtime" in row.arguments["stack"] for row in samples)
    (track,) = {row.track for row in found.rows if row.kind is Kind.STEP}
    assert {row.track for row in samples} == {track}


def between_calls() -> None:
    """Pure Python for a while, and then a call that lets go of the interpreter's lock: whoever waits for it gets it there."""
    for _ in range(60):
        count_up(20_000)
        os.stat("/")


def count_up(most: int) -> int:
    """Runs Python in a loop whose end jumps back, a place that has no line of its own."""
    number = 0
    for each in range(most):
        if each % 3:
            number += 1
    return number


def test_samples_are_of_where_the_time_goes_and_not_of_where_the_lock_is_free(tmp_path: Path) -> None:
    """The main thread looks itself, at its next instruction."""
    with traced(tmp_path, "stacks") as found:
        found.profiler.step()
        for _ in range(30):
            between_calls()
        found.profiler.step()
    innermost = Counter(row.arguments["stack"].split(";")[-1].partition(" (")[0] for row in found.of("stack sample"))
    assert innermost["count_up"] > 0.6 * innermost.total(), innermost
    lines = {row.arguments["stack"].rpartition(":")[2] for row in found.of("stack sample")}
    assert not lines & {"-1)", "0)"}, lines


def test_a_deep_stack_keeps_its_innermost_frames(tmp_path: Path) -> None:
    """At most 64, and no more text than an argument may have."""

    def down(depth: int) -> int:
        return down(depth - 1) + 1 if depth else work(0.5)

    with traced(tmp_path, "stacks") as found:
        found.profiler.step()
        down(200)
    stacks = [row.arguments["stack"] for row in found.of("stack sample")]
    deep = [stack for stack in stacks if "down" in stack]
    assert deep
    for stack in deep:
        assert stack.split(";")[-1].startswith("work (")
        assert 8 < len(stack.split(";")) <= 64 and len(stack) <= 4000


def test_a_sample_names_another_thread_that_runs(tmp_path: Path) -> None:
    """One that has the processor while the sampled one waits."""
    ended = threading.Event()

    def compete() -> None:
        while not ended.is_set():
            work(0.01)

    other = threading.Thread(target=compete, name="competitor")
    other.start()
    with traced(tmp_path, "stacks") as found:
        found.profiler.step()
        time.sleep(0.8)
        found.profiler.step()
    ended.set()
    other.join()
    others = [row.arguments["other"] for row in found.of("stack sample") if "other" in row.arguments]
    assert others and all(text.startswith("competitor: ") for text in others)
    assert any("work (" in text or "compete" in text for text in others)


def test_a_thread_that_steps_is_sampled_also_if_it_is_not_the_main_one(tmp_path: Path) -> None:
    """As in programs whose loop has a thread of its own."""
    with traced(tmp_path, "stacks") as found:

        def loop() -> None:
            found.profiler.step()
            work(1.5)

        thread = threading.Thread(target=loop, name="training")
        thread.start()
        thread.join()
    assert any("loop (" in row.arguments["stack"] for row in found.of("stack sample"))


def test_the_time_of_each_thread_is_counted_by_its_name(tmp_path: Path) -> None:
    """It only grows."""
    ended = threading.Event()

    def compete() -> None:
        while not ended.is_set():
            work(0.01)

    other = threading.Thread(target=compete, name="competitor")
    with traced(tmp_path, "threads") as found:
        other.start()
        time.sleep(2.3)
        ended.set()
        other.join()
    series: dict[str, list[float]] = {}
    for row in found.of("thread cpu"):
        series.setdefault(row.name, []).append(row.value)
    assert {"MainThread", "competitor", "stepscope"} <= series.keys()
    assert all(values == sorted(values) for values in series.values())
    assert series["competitor"][-1] > 1e8


def test_the_demand_for_processors(tmp_path: Path) -> None:
    """By this process and by its children, whether they get it or not."""
    program = [sys.executable, "-c", "import time; end = time.monotonic() + 5\nwhile time.monotonic() < end: pass"]
    children = [subprocess.Popen(program) for _ in range(3)]
    try:
        with traced(tmp_path, "threads") as found:
            work(1.5)
            time.sleep(1.0)
    finally:
        for child in children:
            child.kill()
            child.wait()
    series: dict[str, list[tuple[int, float]]] = {}
    for row in found.of(processor_demand.CATEGORY):
        series.setdefault(row.name, []).append((row.ts, row.value))
    demand = {name: (values[-1][1] - values[0][1]) / (values[-1][0] - values[0][0]) for name, values in series.items()}
    assert sum(demand[name] for name in processor_demand.CHILDREN) > 1.5
    assert 0.2 < sum(demand[name] for name in processor_demand.THIS_PROCESS) < 2
    assert demand[processor_demand.IN_USE] > 0.9 * demand[processor_demand.CHILDREN[0]]
    assert series[processor_demand.PROCESSORS][-1][1] <= len(os.sched_getaffinity(0))


def test_forced_writes_are_spans(tmp_path: Path) -> None:
    """Those of the program, and not of stepscope's own threads; they count as such in the facts of steps."""
    before = os.fsync
    with traced(tmp_path, "writes") as found, (tmp_path / "file").open("wb") as file:
        for _ in range(3):
            file.write(b"text")
            os.fsync(file.fileno())
            os.fdatasync(file.fileno())
            found.profiler.step()
    assert os.fsync is before
    assert Counter(row.name for row in found.of("forced write")) == {"os.fsync": 3, "os.fdatasync": 3}
    assert (found.facts()["phases"][:3, Phase.FORCED_WRITE] > 0).all()


def test_forced_writes_of_a_callable_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As other code may put one in the place of a function, it is recorded under the name that the program calls."""
    monkeypatch.setattr(os, "fsync", functools.partial(os.fsync))
    with traced(tmp_path, "writes") as found, (tmp_path / "file").open("wb") as file:
        os.fsync(file.fileno())
    assert [row.name for row in found.of("forced write")] == ["os.fsync"]
    assert not any("writes" in note for note in found.profiler.diagnostics())


def test_summary_writer_calls_are_logging(tmp_path: Path) -> None:
    """With the function of the program that calls, also by way of a library's."""
    writer: Any = require("torch.utils.tensorboard").SummaryWriter
    before = writer.add_histogram
    tensor = require("torch").ones(100)

    def log(to: Any) -> None:
        to.add_histogram("weights", tensor, 1)

    to = writer(str(tmp_path / "board"))
    with traced(tmp_path, "logging") as found:
        for _ in range(3):
            functools.reduce(lambda _, each: log(each), [to], None)
            found.profiler.step()
    to.close()
    assert writer.add_histogram is before
    assert Counter(row.name for row in found.of("logging")) == {"SummaryWriter.add_histogram": 3}
    phases = found.facts()["phases"][:3]
    assert (phases[:, Phase.LOGGING] > 0).all() and not phases[:, Phase.SPAN].any()


def test_lengths_of_queues_are_counted_by_the_place_where_each_is_made(tmp_path: Path) -> None:
    """As long as the program keeps them; a queue's class stays as it was."""
    queues: Any = asyncio.Queue
    before = queues.__init__

    def make() -> asyncio.Queue[int]:
        return asyncio.LifoQueue()

    async def main() -> None:
        queue = make()
        for number in range(7):
            queue.put_nowait(number)
        make().put_nowait(1)  # nobody keeps it
        await asyncio.sleep(2.2)

    with traced(tmp_path, "tasks", "threads") as found:
        asyncio.run(main())
    assert queues.__init__ is before
    rows = found.of(task_runs.QUEUES)
    assert rows and {row.value for row in rows} == {7.0}
    (name,) = {row.name for row in rows}
    assert name.startswith("test_lengths_of_queues_are_counted_by_the_place_where_each_is_made.<locals>.make (")


def test_a_server_that_begins_is_no_task_of_the_program(tmp_path: Path) -> None:
    """asyncio looks its address up in one; a program that has nothing else blocks nobody."""

    def ignore(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(ignore, "127.0.0.1", 0)
        server.close()

    with traced(tmp_path, "tasks") as found:
        asyncio.run(main())
    assert {row.name for row in found.of("task run")} == {main.__qualname__}


def set_nothing(_thread: object, _name: object) -> None:
    """Takes a name and does nothing."""


class Nameless(threading.Thread):
    """A thread that raises where it is asked for its name."""

    name: Any = property(fset=set_nothing)


def test_a_sampler_that_fails_leaves_the_files_of_the_program_alone(tmp_path: Path) -> None:
    """A file that was opened since gets nothing of what is written to end it."""
    with traced(tmp_path, "stacks", "threads") as found:
        ended = threading.Event()
        thread = Nameless(target=ended.wait)
        thread.start()
        time.sleep(1.5)
        files = [(tmp_path / str(number)).open("wb") for number in range(20)]
        ended.set()
        thread.join()
    for file in files:
        file.close()
    assert any("ended: AttributeError" in note for note in found.profiler.diagnostics())
    assert not any((tmp_path / str(number)).stat().st_size for number in range(20))


class Bare(asyncio.Future[Any]):
    """A task that says nothing about itself, not even its coroutine."""

    def __init__(self) -> None:
        super().__init__()
        asyncio.tasks._register_task(self)  # type: ignore[arg-type]  # pyright: ignore


def test_where_tasks_wait_is_counted(tmp_path: Path) -> None:
    """By the innermost function of the program, also where a library awaits for it; who runs does not wait. Tasks of odd types are left
    out."""

    async def take(queue: asyncio.Queue[int]) -> int:
        return await asyncio.wait_for(queue.get(), 60)

    async def visit(queue: asyncio.Queue[int]) -> int:
        return await take(queue)

    async def main() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()
        visits = [Bare(), *(asyncio.create_task(visit(queue)) for _ in range(3))]
        end = time.monotonic() + 2.2
        while time.monotonic() < end:
            work(0.05)
            await asyncio.sleep(0)
        for number in range(3):
            queue.put_nowait(number)
        await asyncio.gather(*visits[1:])

    with traced(tmp_path, "tasks", "threads") as found:
        asyncio.run(main())
    rows = [row for row in found.of(task_waits.WAITS) if "visit: " in row.name]
    line = take.__code__.co_firstlineno + 1
    assert rows and {row.value for row in rows} == {3.0}
    assert {row.name.rpartition("<locals>.")[2] for row in rows} == {f"take ({__file__}:{line})"}


def test_tables_leave_out_continuous_signals(tmp_path: Path) -> None:
    """JSON has it."""
    with traced(tmp_path, "steps", "stacks", "threads") as found:
        sc.counter("loss", 1.0)
        with sc.span("work"):
            work(0.3)
        found.profiler.step()
        sc.counter("depth", 1.0, category="queue")  # the program's own
        sc.counter("loader queue", 1.0, category="loader")
        sc.counter("main (a.py:1)", 1.0, category=task_runs.QUEUES)
        time.sleep(1.1)
    table = found.profiler.summary()
    assert "loss" in table and "work" in table and "depth" in table
    assert processor_demand.CATEGORY in {row.category for row in found.profiler.aggregates().counters}
    assert not any(hidden in table for hidden in ("loader", "a.py", processor_demand.CATEGORY))
    assert "cpu_ns" not in table and "MainThread" not in table and "stack sample" not in table
    assert "cpu_ns" in found.profiler.summary(format="json")


def test_a_loop_without_events_is_reported_to_have_none(tmp_path: Path) -> None:
    """Signals alone are nothing that somebody recorded; a window that only they are in is nobody's."""
    with traced(tmp_path, "steps", "stacks", "threads", schedule=sc.schedule(wait=0, warmup=0, active=2)) as found:
        for _ in range(4):
            work(0.05)
            found.profiler.step()
        time.sleep(0.3)
    assert len(found.profiler.output.total().rows) <= 1
    assert any("nothing but step marks" in note for note in found.profiler.diagnostics())
    assert found.profiler.statistics().windows == 3 and len(found._memory.windows) == 2  # pyright: ignore[reportPrivateUsage]
    assert not found.profiler.audit()


def test_unwanted_signals_are_not_recorded(tmp_path: Path) -> None:
    """No thread is started for it, and nothing is called."""
    before = threading.active_count()
    with traced(tmp_path) as found:
        assert not any(thread.name == "stepscope sampler" for thread in threading.enumerate())
        gc.collect()
        found.profiler.step()
    assert threading.active_count() <= before + 1
    assert {row.category for row in found.rows} <= {"", "user_annotation"}


def test_a_signal_that_there_is_none_of() -> None:
    """The message has the nearest."""
    with pytest.raises(ValueError, match="did you mean 'stacks'"):
        sc.Options(signals=("stack",))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("none", ()), ("steps, threads", ("steps", "threads")), ("all", SIGNALS)],
)
def test_the_environment_goes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, wanted: tuple[str, ...]
) -> None:
    """Of what the program says."""
    monkeypatch.setenv(SIGNALS_VARIABLE, text)
    profiler = sc.trace(output_dir=tmp_path, options=sc.Options(signals=("loader",)))
    assert profiler.options.signals == wanted


def test_the_environment_names_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the unknown signal."""
    monkeypatch.setenv(SIGNALS_VARIABLE, "steps,loaders")
    with pytest.raises(ControlError, match="no signal 'loaders'; did you mean 'loader'"):
        sc.trace(output_dir=tmp_path)


def test_two_profilers_have_the_readings_of_their_own_steps(tmp_path: Path) -> None:
    """Steps of the other profiler do not change them."""
    with traced(tmp_path / "a", "steps", "stacks") as first, traced(tmp_path / "b", "steps") as second:
        for _ in range(4):
            work(0.005)
            first.profiler.step()
            work(0.005)
            second.profiler.step()
    for found in (first, second):
        facts = found.facts()[1:4]
        assert ((facts["cpu_ns"] >= 10e6) & (facts["cpu_ns"] < 100e6)).all()


def test_a_forked_child_records_for_itself(tmp_path: Path) -> None:
    """The parent's profiler is inert there, and what it had is let go of."""
    with traced(tmp_path / "parent", *SIGNALS) as parent:
        parent.profiler.step()
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            try:
                clean = _core.collection not in gc.callbacks
                with traced(tmp_path / "child", "steps", "stacks", "collections") as child:
                    for _ in range(3):
                        gc.collect()
                        work(0.1)
                        child.profiler.step()
                good = clean and child.of("gc") and child.of("stack sample") and len(child.of(SIGNAL)) == 24
                os._exit(0 if good else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        parent.profiler.step()
    assert len([row for row in parent.of(SIGNAL) if row.name == "cpu_ns"]) == 3


def test_a_profiler_that_starts_again_goes_on(tmp_path: Path) -> None:
    """Its sources are those that it had."""
    with traced(tmp_path, "steps", "stacks", "collections") as found:
        found.profiler.step()
        found.profiler.stop()
        found.profiler.start()
        work(0.3)
        gc.collect()
        found.profiler.step()
    assert found.of("stack sample") and found.of("gc")


def test_tasks_are_recorded_by_name(tmp_path: Path) -> None:
    """Each as one span, with the time in which it waits inside; a failed one is marked."""

    async def fetch(number: int) -> int:
        await asyncio.sleep(0.01)
        work(0.2)
        if number == 1:
            raise LookupError
        return number

    async def main() -> list[Any]:
        return await asyncio.gather(*(asyncio.create_task(fetch(n)) for n in range(3)), return_exceptions=True)

    with traced(tmp_path, "tasks", "stacks") as found:
        results = asyncio.run(main())
    assert results[0] == 0 and isinstance(results[1], LookupError)
    runs = Counter(row.name.rpartition(".")[2] for row in found.of("task run"))
    assert runs == {"fetch": 3, "main": 1}  # and none of asyncio's own
    assert sum(bool(row.flags & Flag.ERROR) for row in found.of("task run")) == 1
    for row in found.of("task run"):
        if row.name.endswith("fetch"):
            inside = [each for each in found.of("task") if each.parent == row.id]
            assert inside and row.self_dur <= row.dur - sum(each.dur for each in inside)
    assert any("fetch (" in row.arguments["stack"] for row in found.of("stack sample"))
    assert asyncio.BaseEventLoop.run_forever.__module__ == "asyncio.base_events"
    assert not hasattr(asyncio.BaseEventLoop.run_forever, "__wrapped__")


def test_long_callbacks_of_a_loop_are_spans_on_its_thread(tmp_path: Path) -> None:
    """With their names and places, also where they raise; short ones and steps of tasks are none."""
    handles: Any = asyncio.Handle
    before = handles._run
    reported: list[BaseException | None] = []

    class Device(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            work(0.06)

    def tick(seconds: float) -> None:
        work(seconds)

    def fail() -> None:
        work(0.06)
        raise LookupError

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
        server = await loop.create_server(Device, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"reading")
        loop.call_later(0.01, functools.partial(tick, 0.06))
        loop.call_soon(tick, 0.001)
        loop.call_soon(fail)
        await asyncio.sleep(0.2)
        work(0.06)
        await asyncio.sleep(0)
        writer.close()
        server.close()

    with traced(tmp_path, "tasks") as found:
        assert handles._run is not before and handles._run.__wrapped__ is before
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(main())
        track = _core.thread_track()
    assert handles._run is before
    rows = found.of(task_runs.CALLBACKS)
    assert sorted(row.name.rpartition("<locals>.")[2].partition(" (")[0] for row in rows) == [
        "Device.data_received",
        "fail",
        "tick",
    ]
    for row in rows:
        assert row.track == track and row.dur >= task_runs.LONG_NS
        assert f" ({__file__}:" in row.name
    assert [type(error) for error in reported] == [LookupError]


def test_a_wrapper_over_the_wrapper_of_callbacks_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a debugger may do it."""
    handles: Any = asyncio.Handle
    monkeypatch.setattr(handles, "_run", handles._run)  # is put back at the end
    with traced(tmp_path, "tasks"):
        ours = handles._run

        def theirs(handle: Any) -> Any:
            return ours(handle)

        handles._run = theirs
    assert handles._run is theirs
    asyncio.run(asyncio.sleep(0))


TRAINING = """
import functools, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, Subset

class Images(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(4) * index

def pack(items, scale):
    return torch.stack(items) * scale

def numbered(number):
    os.write(1, f"worker {number}\\n".encode())  # whole, as two of them write at once

if __name__ == "__main__":
    workers, method = int(sys.argv[1]), sys.argv[2]
    settings = {"num_workers": workers, "multiprocessing_context": method} if workers else {}
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    pack_twice = functools.partial(pack, scale=2)
    loader = DataLoader(Subset(Images(), range(20)), batch_size=4, collate_fn=pack_twice, worker_init_fn=numbered, **settings)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    assert loader.worker_init_fn is numbered
    torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(("workers", "method"), [(0, "fork"), (2, "fork"), (2, "forkserver")])
def test_an_unchanged_program_that_trains(tmp_path: Path, workers: int, method: str) -> None:
    """Its loader, the batches of its workers, which join by themselves, however they are started, and its checkpoint are in the
    trace; the loader's worker_init_fn is called."""
    require("torch")
    (tmp_path / "train.py").write_text(TRAINING)
    run = ("run", "--quiet", "--no-torch", "--out", "out", "train.py", workers, method)
    done = commands.stepscope(*run, cwd=tmp_path, env={SIGNALS_VARIABLE: "all"})
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"worker {number}" for number in range(workers)]
    events = json.loads((tmp_path / "out" / "trace.json").read_text())
    named = {
        name: [event for event in events if event["name"] == name] for name in ("DataLoader", "loader queue", "fetch")
    }
    (facts,) = [event["args"] for event in named["DataLoader"]]
    lines = TRAINING.splitlines()
    script = tmp_path / "train.py"
    assert facts == {
        "workers": workers,
        "prefetch": 2 if workers else None,
        "batch": 4,
        "batches": 5,
        "pin_memory": False,
        "persistent": False,
        "dataset": "__main__.Images",
        "place": f"{script}:{lines.index('    def __getitem__(self, index):') + 1}",
        "collate": "__main__.pack",
        "collate_place": f"{script}:{lines.index('def pack(items, scale):') + 1}",
    }
    (saved,) = [event for event in events if event["name"] == "torch.save"]
    line = 1 + lines.index('    torch.save(model.state_dict(), "model.pt")')
    assert (saved["cat"], saved["args"]) == ("checkpoint", {"place": f"<module> ({script}:{line})"})
    if workers:
        assert len(named["loader queue"]) >= 5
        assert [event["args"].pop("used").keys() for event in named["fetch"]] == [{"processor_ms"}] * 5
        assert [event["args"] for event in named["fetch"]] == [{"items": 4}] * 5
        (main,) = {event["pid"] for event in named["DataLoader"]}
        assert len({event["pid"] for event in named["fetch"]} - {main}) == 2
    else:
        assert not named["fetch"] and not named["loader queue"]


UNEVEN = """
import time
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Clips:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.05 if index == 6 else 0.001)
        return index

class Together(Clips):
    def __getitems__(self, indices):
        return [self[index] for index in indices]

class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))

if __name__ == "__main__":
    for data in (Clips(), Together(), Stream()):
        print([batch.tolist() for batch in DataLoader(data, batch_size=4, num_workers=1)])
"""


def test_the_slowest_item_of_a_batch_is_recorded(tmp_path: Path) -> None:
    """With its index, where a data set is asked for one item after the other; the batches are what they were."""
    require("torch")
    (tmp_path / "uneven.py").write_text(UNEVEN)
    run = ("run", "--quiet", "--no-torch", "--out", "out", "uneven.py")
    done = commands.stepscope(*run, cwd=tmp_path, env={SIGNALS_VARIABLE: "all"})
    assert done.returncode == 0, done.stderr
    numbers = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [json.loads(line) for line in done.stdout.splitlines()] == [numbers, numbers, numbers[:1]]
    events = json.loads((tmp_path / "out" / "trace.json").read_text())
    fetched = [
        event["args"] for event in sorted(events, key=lambda event: event.get("ts", 0)) if event["name"] == "fetch"
    ]
    assert [arguments["items"] for arguments in fetched[:6]] == [4] * 6
    assert all(arguments["used"]["processor_ms"] > 0 for arguments in fetched)
    slowest_batches = [arguments.get("slowest") for arguments in fetched]
    assert slowest_batches[1]["index"] == 6 and slowest_batches[1]["ms"] >= 50
    assert all(slowest["index"] in batch for slowest, batch in zip(slowest_batches[:3], numbers, strict=True))
    assert slowest_batches[3:] == [None] * (len(slowest_batches) - 3)


def test_torch_is_as_it_was(tmp_path: Path) -> None:
    """When the last profiler has closed."""
    torch: Any = require("torch")
    data: Any = importlib.import_module("torch.utils.data")
    before = torch.save, data.DataLoader.__iter__
    with traced(tmp_path, "loader", "checkpoints"):
        assert torch.save is not before[0] and torch.serialization.save is torch.save
        with traced(tmp_path / "b", "loader", "checkpoints"):
            assert torch.save.__wrapped__ is before[0]
        assert data.DataLoader.__iter__ is not before[1]
    assert (torch.save, data.DataLoader.__iter__) == before
    assert torch.serialization.save is torch.save


MANY_CATEGORIES = """
import asyncio, gc, json, os, tempfile, time
import stepscope as sc
from stepscope.backends import Sink
from stepscope.backends.simulated.scripted import ScriptedBackend
from stepscope.runtime import _core
from stepscope.runtime.events import strings

def blocks():
    end = time.thread_time() + 0.06
    while time.thread_time() < end:
        pass

async def main():
    queue = asyncio.Queue()
    queue.put_nowait(1)
    asyncio.get_running_loop().call_soon(blocks)
    await asyncio.sleep(2.2)

for number in range(1100):
    _core.category(f"category {number}")
memory, options = sc.exporters.MemoryExporter(), sc.Options(signals=("steps", "collections", "writes", "threads", "tasks"))
with tempfile.TemporaryFile() as file, sc.trace(exporters=[memory], output_dir="run", options=options) as profiler:
    os.fsync(file.fileno())
    gc.collect()
    profiler.step()
    profiler.step()
    asyncio.run(main())
print(json.dumps(sorted(set(strings.texts(memory.events()["category"])))))
"""


def test_a_program_with_too_many_categories_is_observed_all_the_same(tmp_path: Path) -> None:
    """The signals of stepscope keep their categories, by which rules find them."""
    done = run_to_end([sys.executable, "-c", MANY_CATEGORIES], cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    categories = set(json.loads(done.stdout))
    assert {"asyncio queue", "forced write", "gc", "loop callback", "processor demand", "step signal"} <= categories


def test_the_sampler_sleeps_while_nothing_is_recorded(tmp_path: Path) -> None:
    """It would take 20 samples a second; once a second it looks at the session."""
    schedule = sc.schedule(wait=1, warmup=0, active=1, repeat=1)
    with sc.trace(schedule=schedule, output_dir=tmp_path, options=sc.Options(signals=("stacks",))) as profiler:
        (sampler,) = (thread for thread in threading.enumerate() if thread.name == "stepscope sampler")
        status = Path(f"/proc/self/task/{sampler.native_id}/status")

        def wakes() -> int:
            (line,) = (line for line in status.read_text().splitlines() if line.startswith("voluntary"))
            return int(line.split()[1])

        before = wakes()
        time.sleep(2.0)
        idle = wakes() - before
        profiler.step()
        work(0.5)
        profiler.step()
        profiler.step()
    assert idle <= 8
