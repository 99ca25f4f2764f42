"""Backends that record one thread only, and work that is on another: the thread is named in all that users read."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import Deliver, Item, Lose, ScriptedBackend, Span
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.windows.window import Window
from tests.integration.backends.test_torch_threads import run

T = TypeVar("T")

SEEN = Span("device", 0, 1 << 40)
"""An event of a backend that is longer than any window."""

ONLY = "records only the thread that it is bound to"


class Worker:
    """A thread of a pool that lives as long as the test, and carries out calls."""

    def __init__(self, pool: ThreadPoolExecutor, name: str) -> None:
        self._pool = pool
        self.text = f"'{name}_0' ({self(threading.get_native_id)})"

    def __call__(self, work: Callable[[], T]) -> T:
        return self._pool.submit(work).result()


@contextmanager
def workers(*names: str) -> Generator[tuple[Worker, ...]]:
    """Threads of these names."""
    with ExitStack() as stack:
        yield tuple(Worker(stack.enter_context(ThreadPoolExecutor(1, name)), name) for name in names)


def work(seconds: float = 0.0) -> None:
    """The work of a thread that is recorded."""
    with sc.span("work"):
        time.sleep(seconds)


def bound(*script: Item, name: str = "bound") -> ScriptedBackend:
    """A backend that is bound to a thread, and sees nothing but what its script says."""
    return ScriptedBackend(script, name=name, thread_bound=True)


def record(
    directory: Path, backend: ScriptedBackend, serve: Callable[[Callable[[], None]], None], during: Callable[[], object]
) -> Window:
    """The window between a start and a stop on a thread, during which something happens."""
    memory = sc.exporters.MemoryExporter()
    profiler = sc.trace(backends=[backend], exporters=[memory], output_dir=directory, start=False)
    serve(profiler.start)
    during()
    serve(profiler.stop)
    profiler.close()
    profiler.raise_errors()
    assert profiler.audit() == ()
    (window,) = memory.windows
    return window


def test_the_threads_are_named_in_every_output(output_dir: Path, tmp_path: Path) -> None:
    """Start and stop on one living thread, work on two others: window, report, trace and journal say the same."""
    trace, memory = tmp_path / "trace.json", sc.exporters.MemoryExporter()
    exporters: list[sc.exporters.Exporter] = [memory, sc.ChromeTraceExporter(trace)]
    profiler = sc.trace(backends=[bound()], exporters=exporters, output_dir=output_dir, start=False)
    with workers("serve", "train", "load") as (serve, train, load):
        serve(profiler.start)
        train(work)
        load(work)
        serve(profiler.stop)
    profiler.close()
    ((note,),) = [window.diagnostics for window in memory.windows]
    assert note.startswith(f"backend 'bound' {ONLY}, {serve.text}, and recorded no operators there, while the threads ")
    assert train.text in note and load.text in note and "MainThread" not in note
    assert note.endswith(
        "call start() and stop() on the thread whose work is wanted, or call step() there before start()"
    )
    assert f"window 0: {note}" in profiler.diagnostics()
    assert note in str(profiler.report())
    assert [note] in [event.get("args", {}).get("diagnostics") for event in json.loads(trace.read_text())]
    written = [item for item in JournalReader(output_dir / "journal") if isinstance(item, Window)]
    assert [window.diagnostics for window in written] == [(note,)]


def test_the_advice_of_the_note_helps(output_dir: Path) -> None:
    """Once the thread that works has called `step()`, it is the one that is recorded, whoever starts and stops."""
    with workers("serve", "train") as (serve, train):
        memory, backend = sc.exporters.MemoryExporter(), bound(Deliver([SEEN]))
        profiler = sc.trace(backends=[backend], exporters=[memory], output_dir=output_dir, start=False)
        train(profiler.step)
        serve(profiler.start)
        train(profiler.step)
        train(work)
        stopping = threading.Thread(target=profiler.stop)
        stopping.start()
        while stopping.is_alive():
            train(profiler.step)
        profiler.close()
    assert "device" in memory.names()
    assert memory.windows[0].diagnostics == ()


def test_a_thread_that_only_steps_is_named(output_dir: Path) -> None:
    """The training loop has no spans of its own: that it steps elsewhere says where it is."""
    memory = sc.exporters.MemoryExporter()
    with workers("serve", "train") as (serve, train):
        profiler = sc.trace(backends=[bound()], exporters=[memory], output_dir=output_dir, start=False)
        serve(profiler.start)
        for _ in range(3):
            train(profiler.step)
        serve(profiler.stop)
        profiler.close()
    (note,) = [note for note in memory.windows[0].diagnostics if ONLY in note]
    assert serve.text in note and f"while the thread {train.text} recorded" in note


def test_many_threads_are_counted(output_dir: Path) -> None:
    """Four are named, the others are not."""
    with workers("serve", *(f"work{number}" for number in range(7))) as (serve, *others):
        window = record(output_dir, bound(), serve, lambda: [worker(work) for worker in others])
    assert "and 3 more recorded" in window.diagnostics[0]


class _Blind(ScriptedBackend):
    """Sees something in its first recording only."""

    def transition(self, before: sc.ProfilerAction, after: sc.ProfilerAction, at: int) -> None:
        super().transition(before, after, at)
        if before.records and not after.records:
            self._script = ()


def test_each_window_is_judged_alone(output_dir: Path) -> None:
    """Only that window says it whose work was elsewhere, and only of the backend that saw nothing."""
    memory, sees = sc.exporters.MemoryExporter(), bound(Deliver([SEEN]), name="sees")
    blind = _Blind([Deliver([SEEN])], name="blind", thread_bound=True)
    profiler = sc.trace(backends=[sees, blind], exporters=[memory], output_dir=output_dir, start=False)
    with workers("serve", "train") as (serve, train):
        for _ in range(2):
            serve(profiler.start)
            train(work)
            serve(profiler.stop)
        profiler.close()
    first, second = memory.windows
    assert first.diagnostics == ()
    (note,) = second.diagnostics
    assert note.startswith(f"backend 'blind' {ONLY}")


@pytest.mark.parametrize("where", ["nowhere", "serve"])
def test_nothing_is_reported_where_nobody_else_recorded(where: str, output_dir: Path) -> None:
    """A window without work is empty, whose reason names the thread; one with work of the bound thread lacks nothing."""
    with workers("serve", "train") as (serve, train):
        train(work)  # before the window
        window = record(output_dir, bound(), serve, lambda: serve(work) if where == "serve" else None)
        train(work)
    assert not any(ONLY in note for note in window.diagnostics)
    if where == "nowhere":
        assert [
            note.endswith(f"backend 'bound' records the thread {serve.text} only") for note in window.diagnostics
        ] == [True]
    else:
        assert window.diagnostics == ()


@pytest.mark.parametrize("why", ["lost", "not bound", "not recording"])
def test_nothing_is_reported_of_backends_that_have_another_reason(why: str, output_dir: Path) -> None:
    """They lost what they saw, see all threads, or did not record."""

    class Idle(ScriptedBackend):
        one_thread = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    backend = (
        bound(Lose(3, start=20_000_000))
        if why == "lost"
        else ScriptedBackend()
        if why == "not bound"
        else Idle(thread_bound=True)
    )
    with workers("serve", "train") as (serve, train):
        window = record(output_dir, backend, serve, lambda: train(partial(work, 0.1)))
    assert window.diagnostics == ()


@pytest.mark.parametrize("mode", ["kineto", "stream"])
def test_operators_of_torch_on_another_thread(mode: str, tmp_path: Path) -> None:
    """With real torch: work elsewhere is reported, in both modes; so is the empty window of a program without spans."""
    marked, bare, here = run(
        f"""
        from concurrent.futures import ThreadPoolExecutor
        serve, train = ThreadPoolExecutor(1, "serve"), ThreadPoolExecutor(1, "train")
        def spans():
            with sc.span("work"):
                add()
        results = []
        for number, (thread, work) in enumerate([(train, spans), (train, add), (serve, spans)]):
            memory, backend = sc.exporters.MemoryExporter(), sc.TorchBackend({mode!r})
            directory = "/tmp/unused-" + str(number)
            profiler = sc.trace(backends=[backend], exporters=[memory], output_dir=directory, start=False)
            serve.submit(profiler.start).result()
            thread.submit(work).result()
            serve.submit(profiler.stop).result()
            profiler.close()
            results.append([memory.names().count("aten::add"), *memory.windows[0].diagnostics])
        print(json.dumps(results))
        """,
        tmp_path,
    )
    assert marked[0] == bare[0] == 0 and here == [1]
    (note,) = marked[1:]
    assert f"backend 'torch' {ONLY}, 'serve_0' (" in note and "while the thread 'train_0' (" in note
    (note,) = bare[1:]
    assert note.startswith("empty: ") and "backend 'torch' records the thread 'serve_0' (" in note


@pytest.mark.needs("torch")
def test_a_region_of_torch_where_nothing_else_is(tmp_path: Path) -> None:
    """The note of operators that arrive live says that there were no operators: the region is an event, and is recorded."""
    (result,) = run(
        """
        memory = sc.exporters.MemoryExporter()
        profiler = sc.trace(backends=[sc.TorchBackend("stream")], exporters=[memory], output_dir="/tmp/unused-region", start=False)
        profiler.start()
        with torch.profiler.record_function("region"):
            pass
        def work():
            with sc.span("work"):
                pass
        elsewhere(work)
        profiler.stop()
        profiler.close()
        print(json.dumps([[memory.names().count("region"), *memory.windows[0].diagnostics]]))
        """,
        tmp_path,
    )
    region, note = result
    assert region == 1
    assert "'MainThread' (" in note and "and recorded no operators there, while the thread " in note
