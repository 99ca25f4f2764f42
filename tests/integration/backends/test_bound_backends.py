"""Backends that are bound to a thread: whoever calls the profiler, they are called on their own thread, or not at all."""

from __future__ import annotations

import asyncio
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import Deliver, Span, make_block
from stepscope.runtime.sources.sink import Sink
from tests.support.basics import ROOT
from tests.support.collecting import wait_until
from tests.support.launch import run_to_end
from tests.support.logged_backends import LoggedBackend

ALWAYS_LATE = sc.Options(close_timeout=1.0, linger=0.2)


def bound(name: str = "bound") -> LoggedBackend:
    """A backend that is bound to a thread, refuses others, and delivers one span per recording."""
    return LoggedBackend(Deliver([Span("device", 0, 1 << 40)]), name=name, thread_bound=True)


class Blocking(LoggedBackend):
    """Blocks the thread that ends its recording until it is let go, and delivers one span then."""

    def __init__(self) -> None:
        super().__init__(Deliver([Span("device", 0, 1 << 40)]), name="blocking", thread_bound=True)
        self.blocks, self.free = threading.Event(), threading.Event()

    def transition(self, before: sc.ProfilerAction, after: sc.ProfilerAction, at: int) -> None:
        """Waits first, if this is the end."""
        if not after.records:
            self.blocks.set()
            self.free.wait()
        super().transition(before, after, at)


def threads_of(backend: LoggedBackend) -> set[int]:
    """The threads on which the backend was opened and switched."""
    return {call.thread for call in backend.calls if call.what in ("open", "transition")}


def switches(backend: LoggedBackend) -> list[tuple[str, str]]:
    """The changes of recording that the backend got."""
    return [
        (call.before.name, call.after.name)
        for call in backend.calls
        if call.before is not None and call.after is not None
    ]


def await_switches(backend: LoggedBackend, number: int) -> None:
    """Waits until the backend got so many changes."""
    deadline = time.monotonic() + 60
    while len(switches(backend)) < number:
        assert time.monotonic() < deadline, backend.calls
        time.sleep(0.001)


def errors_of(profiler: sc.Profiler) -> str:
    """The stored errors, as text."""
    try:
        profiler.raise_errors()
    except ExceptionGroup as group:
        return "; ".join(str(error) for error in group.exceptions)
    return ""


@contextmanager
def elsewhere(work: Callable[[], object]) -> Generator[None]:
    """Runs some work on a thread during the body, and raises what it raised."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if raised:
        raise raised[0]


def run_elsewhere(work: Callable[[], object]) -> None:
    """Runs some work on another thread and waits for it."""
    with elsewhere(work):
        pass


def test_start_and_stop_on_another_thread_are_carried_out_by_the_one_that_steps(output_dir: Path) -> None:
    """A server's thread starts and stops, the training thread goes on stepping: each recording is whole."""
    backend, memory = bound(), sc.exporters.MemoryExporter()
    profiler = sc.trace(backends=[backend], exporters=[memory], output_dir=output_dir, start=False)
    done = threading.Event()

    def serve() -> None:
        try:
            for turn in range(3):
                profiler.start()
                await_switches(backend, 2 * turn + 1)
                profiler.stop()
                await_switches(backend, 2 * turn + 2)
        finally:
            done.set()

    profiler.step()  # so it is known who steps
    with elsewhere(serve):
        while not done.is_set():
            profiler.step()
            time.sleep(0.001)
    profiler.close()
    profiler.raise_errors()
    assert threads_of(backend) == {threading.get_ident()}
    assert switches(backend) == [("NONE", "RECORD"), ("RECORD", "NONE")] * 3
    assert memory.names().count("device") == 3
    assert not any("bound" in note for note in profiler.diagnostics())


@pytest.mark.parametrize("end", [sc.Profiler.stop, sc.Profiler.close])
def test_the_bound_thread_ends_a_recording_that_another_thread_stopped(
    output_dir: Path, end: Callable[[sc.Profiler], None]
) -> None:
    """It waits for no step: the thread that would make one is the one that stops or closes."""
    backend = bound()
    profiler = sc.trace(backends=[backend], output_dir=output_dir, options=ALWAYS_LATE)
    profiler.start()
    run_elsewhere(profiler.stop)
    assert switches(backend) == [("NONE", "RECORD")]
    end(profiler)
    assert switches(backend) == [("NONE", "RECORD"), ("RECORD", "NONE")]
    profiler.close()
    assert threads_of(backend) == {threading.get_ident()} and not errors_of(profiler)


def test_closing_keeps_its_deadline_if_the_bound_thread_never_steps_again(output_dir: Path) -> None:
    """The errors and the diagnostics name the missing call of the backend, and the thread."""
    backend = bound()
    profiler = sc.trace(backends=[backend], output_dir=output_dir, options=ALWAYS_LATE)
    profiler.start()
    began = time.monotonic()
    run_elsewhere(profiler.close)
    assert time.monotonic() - began < 10
    assert switches(backend) == [("NONE", "RECORD")]
    for text in (errors_of(profiler), " ".join(profiler.diagnostics())):
        assert "bound to the thread 'MainThread', which has not called step() since" in text
    # The thread comes back after all: the backend ends its recording where it began.
    profiler.step()
    assert switches(backend)[-1] == ("RECORD", "NONE")
    assert threads_of(backend) == {threading.get_ident()}


def close_blocked(profiler: sc.Profiler, backend: Blocking, meanwhile: Callable[[], object]) -> None:
    """Records a span and closes on the bound thread, which the backend blocks until `meanwhile` has returned elsewhere."""

    def let_go() -> None:
        try:
            assert backend.blocks.wait(60)
            meanwhile()
        finally:
            backend.free.set()

    profiler.start()
    with sc.span("work"):
        pass
    with elsewhere(let_go):
        profiler.close()


def test_a_bound_backend_that_is_slow_where_it_is_closed_moves_the_deadline(output_dir: Path) -> None:
    """It ends its recording after the deadline would have passed: all is delivered, and nothing is given up."""
    backend, memory = Blocking(), sc.exporters.MemoryExporter()
    options = sc.Options(close_timeout=1.0, linger=60.0)
    profiler = sc.trace(backends=[backend], exporters=[memory], output_dir=output_dir, options=options)
    close_blocked(profiler, backend, lambda: time.sleep(2 * options.close_timeout))
    profiler.raise_errors()
    assert memory.closed and not profiler.statistics().timed_out
    assert (memory.names().count("work"), memory.names().count("device")) == (1, 1)
    assert profiler.audit() == ()


def test_recorded_events_are_delivered_while_a_bound_backend_blocks_closing(output_dir: Path) -> None:
    """The window waits `Options.linger` for it; only the end of the outputs waits for longer."""
    backend, memory = Blocking(), sc.exporters.MemoryExporter()
    profiler = sc.trace(backends=[backend], exporters=[memory], output_dir=output_dir, options=ALWAYS_LATE)

    def look() -> None:
        wait_until(lambda: memory.windows)
        assert memory.names().count("work") == 1
        assert not memory.closed

    close_blocked(profiler, backend, look)
    assert memory.closed and not profiler.statistics().timed_out
    assert "device" not in memory.names()
    accounts = profiler.statistics().pipeline
    assert accounts is not None and accounts.windows.late["blocking"] == 1
    assert profiler.audit() == ()


@pytest.mark.parametrize("call", ["stop", "close"])
def test_a_bound_thread_that_has_ended_is_named(call: str, output_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody could end the recording there: it is refused at once, and nothing waits for it."""
    backend = bound()
    profiler = sc.trace(backends=[backend], output_dir=output_dir)
    run_elsewhere(profiler.start)
    began = time.monotonic()
    getattr(profiler, call)()
    profiler.close()
    assert time.monotonic() - began < profiler.options.linger
    assert switches(backend) == [("NONE", "RECORD")]
    why = "has ended; call start() and stop() on a thread that lives"
    assert why in errors_of(profiler) and why in " ".join(profiler.diagnostics()) and why in caplog.text


def test_a_recording_between_two_steps_is_reported_as_missed(output_dir: Path) -> None:
    """It began and ended elsewhere while its thread did not step: the backend is never called, and the report says so."""
    backend = bound()
    profiler = sc.trace(backends=[backend], output_dir=output_dir, options=ALWAYS_LATE)
    profiler.start()
    profiler.stop()

    def serve() -> None:
        for _ in range(20):
            profiler.start()
            profiler.stop()

    profiler.step()
    run_elsewhere(serve)
    assert switches(backend) == [("NONE", "RECORD"), ("RECORD", "NONE")]
    profiler.close()
    assert "which did not call step() between its begin and its end" in errors_of(profiler)


def test_a_thread_with_the_number_of_a_dead_one_is_another(output_dir: Path) -> None:
    """The system gives numbers of ended threads to new ones, which are not bound to anything."""
    backend = bound()
    profiler = sc.trace(backends=[backend], output_dir=output_dir)
    numbers: set[int] = set()

    def start() -> None:
        numbers.add(threading.get_ident())
        profiler.start()

    def step() -> None:
        numbers.add(threading.get_ident())
        profiler.step()

    run_elsewhere(start)
    for _ in range(5):
        run_elsewhere(step)
    profiler.close()
    assert len(numbers) < 6, "no number was given twice: nothing was tested"
    assert switches(backend) == [("NONE", "RECORD")]
    assert "has ended" in errors_of(profiler)


async def test_start_and_stop_in_tasks_of_a_running_loop(output_dir: Path) -> None:
    """Tasks of one loop share its thread, so nothing is refused; closing does not block the loop."""
    backend = bound()
    profiler = sc.trace(backends=[backend], output_dir=output_dir, start=False)

    async def on() -> None:
        profiler.start()

    async def off() -> None:
        profiler.stop()

    async with profiler:
        for _ in range(3):
            await asyncio.create_task(on())
            await asyncio.sleep(0)
            profiler.step()
            await asyncio.create_task(off())
    profiler.raise_errors()
    assert len(switches(backend)) == 6
    assert threads_of(backend) == {threading.get_ident()}


@pytest.mark.parametrize("thread", ["main", "stepping", "ended"])
def test_the_interpreter_exits_with_a_bound_backend_recording(thread: str, tmp_path: Path) -> None:
    """On the thread itself, while another one steps, and after it has ended: within the deadline, without a crash."""
    program = f"""
        import atexit, logging, sys, threading, time
        logging.disable()
        sys.path.append({str(ROOT)!r})
        import stepscope as sc
        from tests.integration.backends.test_bound_backends import bound, switches, threads_of
        backend = bound()
        profiler = sc.trace(backends=[backend], output_dir={str(tmp_path / "run")!r}, options=sc.Options(close_timeout=2))
        stop = threading.Event()
        def train():
            profiler.start()
            started.set()
            while {thread == "stepping"} and profiler.statistics().state != "closed":
                profiler.step()
                time.sleep(0.001)
            if {thread == "stepping"}:
                profiler.step()
                assert len(threads_of(backend)) == 1 and switches(backend)[-1] == ("RECORD", "NONE"), backend.calls
                print("told")
        started = threading.Event()
        if {thread == "main"}:
            train()
        else:
            # The interpreter waits for other threads before profilers are closed.
            training = threading.Thread(target=train, daemon={thread == "stepping"})
            training.start()
            atexit.register(training.join)
            started.wait()
            if {thread == "ended"}:
                training.join()
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    ended = run_to_end(command, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == ("told\n" if thread == "stepping" else "")
    assert (tmp_path / "run" / "journal").is_file()
    assert not (tmp_path / "run" / "session").exists()


class SlowEngine:
    """Opens after the loop has learned of the first action, and delivers after its window would have closed."""

    name, thread_bound = "slow", True

    def open(self, sink: Sink) -> None:
        """Takes its time."""
        time.sleep(0.3)
        self.sink = sink

    def transition(self, before: sc.ProfilerAction, after: sc.ProfilerAction, at: int) -> None:
        """Delivers a span of the recording that ends."""
        if before.records and not after.records:
            block, args = make_block([Span("device", at - 1000, 500)], 0, lambda name: 0)

            def deliver() -> None:
                self.sink.deliver(block, args)
                self.sink.watermark(at)

            threading.Timer(0.3, deliver).start()

    def report(self) -> sc.backends.BackendReport:
        """Nothing is lost."""
        return sc.backends.BackendReport()

    async def aclose(self) -> None:
        """Has nothing to close."""


async def test_windows_wait_for_a_backend_that_opens_slowly(output_dir: Path) -> None:
    """The loop expects its events, also while it opens in the first step."""
    memory = sc.exporters.MemoryExporter()
    async with sc.trace(
        backends=[SlowEngine()],
        exporters=[memory],
        schedule=sc.schedule(wait=1, warmup=1, active=2, repeat=1),
        output_dir=output_dir,
        options=sc.Options(drain_interval=0.01),
    ) as profiler:
        for _ in range(4):
            profiler.step()
        await asyncio.sleep(1)
    assert memory.names().count("device") == 1 and memory.windows[0].complete
