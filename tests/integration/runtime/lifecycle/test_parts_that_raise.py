"""A part that raises any kind of exception loses its own events only, and nothing of it reaches the training loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import stepscope as sc
from stepscope.backends.simulated.scripted import Moment, Raise, ScriptedBackend
from stepscope.exporters.memory import Method
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events.record import Kind
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.schedule.action import ProfilerAction
from tests.support.exceptions import LostForWords
from tests.support.flight_recording import When
from tests.support.messages import refused


class Foreign(BaseException):
    """Of no kind that anybody knows."""


class Speechless(Exception):
    """It cannot even be shown."""

    def __str__(self) -> str:
        raise ValueError("no words")


KINDS: tuple[Callable[[], BaseException], ...] = (
    lambda: OSError("device"),
    lambda: SystemExit(3),
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
    lambda: ClosedError("mine"),
    lambda: StopIteration("mine"),
    MemoryError,
    RecursionError,
    Foreign,
    Speechless,
)
NAMES = [type(make()).__name__ for make in KINDS]
METHODS: tuple[Method, ...] = ("open", "export", "close_window", "aclose")


class Spawning(ScriptedBackend):
    """Has a coroutine of its own run on the loop, which raises, or a task of whose raises."""

    def __init__(self, error: BaseException, *, task: bool) -> None:
        super().__init__()
        self._error, self._task = error, task

    def open(self, sink: sc.backends.Sink) -> None:
        super().open(sink)

        async def fail() -> None:
            raise self._error

        async def work() -> None:
            await (asyncio.create_task(fail()) if self._task else fail())

        sink.run_soon(work)


def parts(make: Callable[[], BaseException], directory: Path) -> dict[str, sc.Profiler]:
    """Profilers each of which has one part that raises. `KeyboardInterrupt` on the main thread is Ctrl-C, and no error of a part."""
    ctrl_c = isinstance(make(), KeyboardInterrupt)

    def fail(_: object) -> ProfilerAction:
        raise make()

    def scripted(moment: Moment, bound: bool) -> sc.Profiler:
        backend = ScriptedBackend([Raise(make(), moment)], thread_bound=bound)
        return sc.trace(backends=[backend], output_dir=directory / f"{moment} {bound}")

    moments: tuple[Moment, ...] = ("open", "start", "stop", "aclose")
    bad = {
        f"{moment} {bound}": scripted(moment, bound)
        for moment in moments
        for bound in (False, True)[: 1 if ctrl_c else 2]
    }
    for task in (False, True):
        name = f"spawned {task}"
        bad[name] = sc.trace(backends=[Spawning(make(), task=task)], output_dir=directory / name)
    if not ctrl_c:
        bad["schedule"] = sc.trace(schedule=fail, output_dir=directory / "schedule")
    for method in METHODS:
        bad[method] = sc.trace(
            exporters=[sc.exporters.MemoryExporter(fail={method: make()})], output_dir=directory / method
        )
    bad["callback"] = sc.trace(on_trace_ready=fail, output_dir=directory / "callback")
    recorder = sc.FlightRecorder(steps=2, triggers=(When(error=make()),))
    bad["trigger"] = sc.trace(keep_last=recorder, output_dir=directory / "trigger")
    return bad


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: a coroutine cannot raise `StopIteration` itself."""
    while error is not None:
        yield error
        error = error.__cause__


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("make", KINDS, ids=NAMES)
def test_every_kind(
    make: Callable[[], BaseException], loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every part: what a good profiler records is whole, and each of the others keeps what was raised, and says it."""
    if loop == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    memory, kind = sc.exporters.MemoryExporter(), type(make())
    good, bad = sc.trace(exporters=[memory], output_dir=tmp_path / "good"), parts(make, tmp_path)
    profilers = [good, *bad.values()]
    for profiler in profilers:
        profiler.start()
    for step in range(5):
        sc.instant(f"at {step}")
        for profiler in profilers:
            profiler.step()
    for name, profiler in bad.items():
        assert profiler.flush(30), name
        if name.startswith("spawned"):  # work that has not ended is cancelled when the profiler closes
            wait_until_failed(profiler)
        profiler.close()
    sc.instant("after")
    good.close()
    good.raise_errors()
    assert memory.names(kind=Kind.INSTANT) == [*(f"at {step}" for step in range(5)), "after"]
    assert not good.audit() and not good.diagnostics()
    for name, profiler in bad.items():
        wait_until_failed(profiler)  # an exception on another thread may be stored a little later
        with pytest.raises(ExceptionGroup) as caught:
            profiler.raise_errors()
        assert any(kind in map(type, chain(error)) for error in caught.value.exceptions), name
        text = "triggers failed" if name == "trigger" else kind.__name__
        assert any(text in note for note in profiler.diagnostics()), name
        assert text in str(profiler.report()), name
        assert not profiler.audit(), name


def wait_until_failed(profiler: sc.Profiler) -> None:
    """Waits until it keeps an error, for ten seconds at most."""
    late = time.monotonic() + 10
    while not failed(profiler) and time.monotonic() < late:
        time.sleep(0.01)


def failed(profiler: sc.Profiler) -> bool:
    """Whether it keeps an error."""
    try:
        profiler.raise_errors()
    except ExceptionGroup:
        return True
    return False


class Bell(Exception):
    """The exception of a signal's handler."""


def ring(number: int, frame: FrameType | None) -> None:
    """The handler."""
    raise Bell


def ring_loosely(*_: Any) -> None:
    """One that names none of its arguments."""
    raise Bell


def ring_for(whom: str, number: int, frame: FrameType | None, *, twice: bool = False) -> None:
    """One that gets more."""
    raise Bell


@functools.wraps(ring)
def ring_wrapped(*arguments: Any) -> None:
    """One that seems to be another."""
    ring(*arguments)


class Ringer:
    """One that is an object, and has one."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        raise Bell

    def method(self, number: int, frame: FrameType | None) -> None:
        raise Bell


HANDLERS: dict[str, Callable[[int, FrameType | None], Any]] = {
    "function": ring,
    "of any": ring_loosely,
    "wrapped": ring_wrapped,
    "method": Ringer().method,
    "object": Ringer(),
    "partial": functools.partial(ring_for, "me", twice=True),
    "Ctrl-C": signal.default_int_handler,  # it leaves no frame: `KeyboardInterrupt` on the main thread is taken for its
}


class Interrupted(ScriptedBackend):
    """In which a signal comes when the action changes."""

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        super().transition(before, after, at)
        signal.raise_signal(signal.SIGUSR2)


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS.keys())
def test_a_handlers_exception_in_a_part_goes_on(
    handler: Callable[[int, FrameType | None], None], tmp_path: Path
) -> None:
    """It is the program's, and no error of the backend that it interrupts, or of the schedule. Handlers are known by their code,
    however they are written."""

    def planned(step: int) -> ProfilerAction:
        if step == 3:
            signal.raise_signal(signal.SIGUSR2)
        return ProfilerAction.RECORD

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        for profiler in (
            sc.trace(backends=[Interrupted(thread_bound=True)], output_dir=tmp_path / "backend"),
            sc.trace(schedule=planned, output_dir=tmp_path / "schedule"),
        ):
            raised = 0
            for call in (profiler.start, *[profiler.step] * 5, profiler.close):
                try:
                    call()
                except (Bell, KeyboardInterrupt):
                    raised += 1
            assert raised and profiler.schedule_error is None
            profiler.close()
            profiler.raise_errors()
    finally:
        signal.signal(signal.SIGUSR2, before)


class Samples(ScriptedBackend):
    """Passes a number and a frame to a function of its own that fails, as sampling profilers do."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(thread_bound=True)
        self._error = error

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        super().transition(before, after, at)
        self._sample(7, inspect.currentframe())

    def _sample(self, depth: int, frame: FrameType | None) -> None:
        raise self._error


@pytest.mark.parametrize("error", [ValueError("a fault"), SystemExit("it gives up")])
def test_nothing_that_a_backend_raises_reaches_the_loop(error: BaseException, tmp_path: Path) -> None:
    """Also where the program has a handler that leaves no frame, as functions written in C."""
    handler: Callable[[int, FrameType | None], Any] = functools.partial(print)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        schedule = sc.schedule(wait=1, warmup=0, active=1)
        with sc.trace(backends=[Samples(error)], schedule=schedule, output_dir=tmp_path) as profiler:
            for _ in range(6):
                profiler.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert any(type(error).__name__ in line for line in profiler.diagnostics())
    with refused(ExceptionGroup, "stepscope", "1 error"):
        profiler.raise_errors()


def test_an_exception_that_is_slow_to_speak_costs_its_exporter_only(tmp_path: Path) -> None:
    """It is asked on that one's thread, once: what others say of all exporters does not wait for it."""
    error = LostForWords()
    bad = sc.exporters.MemoryExporter(name="bad", fail={"export": error})
    with sc.trace(exporters=[bad], output_dir=tmp_path, options=sc.Options(close_timeout=1.0)) as profiler:
        for _ in range(3):
            sc.instant("said")
            profiler.step()
        assert error.reached.wait(60)
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    journal, other = pipeline.exporters
    assert journal.errors == 0 and journal.ledger.exported == journal.ledger.offered
    assert other.first_error.startswith("TimeoutError: it did not end by the deadline")
    with JournalReader(tmp_path / "journal") as reader:
        assert sum(isinstance(item, sc.exporters.EventBatch) for item in reader) and reader.end is not None
    with refused(ExceptionGroup, "stepscope", "1 error"):
        profiler.raise_errors()
    assert error.threads == ["stepscope bad"]
    error.over.set()
