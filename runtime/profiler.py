"""The profiler: what users hold."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import anyio

from stepscope.runtime import analysed
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.annotations import tasks
from stepscope.runtime.control.settings import Control
from stepscope.runtime.errors import ClosedError, OutputError, ProfilerStateError, StepscopeError
from stepscope.runtime.events import clock
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.metadata import Metadata
from stepscope.runtime.export.run import Run
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.inbox.messages import Flush
from stepscope.runtime.lifecycle.closing import CloseProcedure
from stepscope.runtime.lifecycle.join import leave
from stepscope.runtime.lifecycle.output_directory import Output
from stepscope.runtime.lifecycle.shutdown_hooks import call_after_signal, call_before_close
from stepscope.runtime.lifecycle.starting import wait_for_start
from stepscope.runtime.loop import drain_loop
from stepscope.runtime.loop.pipeline import Pipeline
from stepscope.runtime.observers import observing
from stepscope.runtime.options import Options
from stepscope.runtime.overhead.budget import OverheadBudget
from stepscope.runtime.recording.recorder import Recorder, close_recorder, closed_for_good, recorder
from stepscope.runtime.recording.recorder_accounts import RecorderAccounts
from stepscope.runtime.recovery.sweep import end_sweep
from stepscope.runtime.report.reporting import Reporting
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import PlannedSchedule, ScheduleFunction
from stepscope.runtime.sources.source import Producer
from stepscope.runtime.sources.thread_bound import BoundSource
from stepscope.runtime.steps.call_serializer import PATIENCE, CallSerializer
from stepscope.runtime.steps.step_controller import retain_untouched
from stepscope.runtime.threads import locks, signals
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.greenlets import refusal, threads_replaced_before_import
from stepscope.runtime.threads.native_threads import get_ident
from stepscope.runtime.threads.one_shot import OneShot
from stepscope.runtime.threads.user_code import delivering
from stepscope.runtime.windows.borders import WindowEnds
from stepscope.runtime.windows.router import INTERRUPTED

if TYPE_CHECKING:
    from stepscope.analysis.findings import Answer
    from stepscope.runtime.control.controller import Controller

log = logging.getLogger("stepscope")

LATEST = 0.48
"""Seconds beyond `Options.close_timeout` after which `close` returns, whatever is not done."""
CLOSED_LOOK_S = 0.002
"""Seconds between two looks of `async with` at whether the profiler is closed."""


class Profiler(Reporting):
    """Records the steps that a schedule asks for, and streams them to exporters.

    Made by `stepscope.trace`. A context manager, sync and async: entering starts it (unless `start=False`),
    leaving closes it, within `Options.close_timeout`. `start()` and `stop()` may alternate any number of times.
    Several profilers may run at once. Once started, nothing here raises into the training loop for what backends,
    exporters, callbacks or the schedule do wrong: that is counted, kept, and raised by `raise_errors()`.
    """

    def __init__(
        self,
        *,
        name: str,
        schedule: ScheduleFunction,
        backends: Sequence[Producer],
        exporters: Sequence[Exporter],
        output: Output,
        metadata: Metadata,
        rank: int | None,
        world_size: int | None,
        start: bool,
        budget: OverheadBudget | None,
        options: Options,
        keep_last: FlightRecorder | None = None,
        control: Control | None = None,
    ) -> None:
        # Its import registers what runs at the exit; functions that the program has registered before run after that.
        from stepscope.runtime.lifecycle.interpreter_exit import close_at_exit

        close_at_exit(_alive, close_all)
        for source in ("observers.forced_writes", "observers.stack_sampler", "observers.task_runs"):
            import_module(f"stepscope.runtime.{source}")  # records signals
        super().__init__(name, schedule, keep_last, output)
        self.options = options
        self._signals = options.signals
        self._metadata = metadata
        self._backends, self._exporters = list(backends), list(exporters)
        self._rank, self._world_size = rank, world_size
        self._controller = None if control is None else _controller(control, self, rank, world_size)
        self._start_on_enter = start
        self._budget = budget
        self._closing: BackgroundCall[None] | None = None
        self._opening: BackgroundCall[str] | None = None
        self._closes_by = 0
        """When closing is to be done, in ns; 0 before it was asked for."""
        self._begins_closing = locks.reentrant()
        _every.add(self)

    # life

    def _after_fork(self) -> None:
        """In a forked child: becomes inert if it was started, or was being started by another thread."""
        if self._hub is not None or self in _alive:
            self._become_inert(_FORKED)
        else:
            self._calls = CallSerializer()
            self._metadata = self._metadata.copy()

    def _become_inert(self, reason: str) -> None:
        super()._become_inert(reason)
        retain_untouched(self._hub, self._backends, self._exporters)
        self._close_readings()
        self._hub = self._accounts = self._ending = None
        self._backends, self._exporters = [], []
        self._metadata = self._metadata.copy()
        self._controller = None
        self.output.pipeline = None

    def start(self) -> None:
        """Begins at the current step, as the schedule has it.

        Backends that are bound to a thread are bound to this one, if the step records or warms up, unless it is known that
        another one steps; else to the one that calls `step()` next. A call that a signal handler makes while another
        call is under way is carried out when that one is done. In a process that has joined another's session and recorded
        there it becomes inert, and says so in the log; so it does where the system gives no memory, threads or descriptors, or no
        directory for the session can be made.

        Raises:
            ProfilerStateError: if it runs already or was closed; if gevent or eventlet had replaced the threads
                of the standard library when stepscope was imported; and if the process is ending.
            OutputError: if the directory that the user named cannot be used.
            BackendError: if a backend has not opened after `Options.start_timeout` seconds: which. A later call goes on.
        """
        if self._state != "inert":
            self._check_start()
            self._calls.run(self._start)

    def _check_start(self) -> None:
        if self._state in ("starting", "running", "closed"):
            raise ProfilerStateError(f"start() of profiler {self.name!r}: it is {self._state} already")
        if closed_for_good():
            raise ProfilerStateError(
                f"start() of profiler {self.name!r}: the process is ending, and can record nothing any more. Functions of atexit "
                "are called in reverse order: register the one that starts a profiler after `import stepscope`"
            )
        library = threads_replaced_before_import()
        if library:
            raise ProfilerStateError(f"start() of profiler {self.name!r}: {refusal(library)}")

    def _start(self) -> None:
        self._check_start()
        if self._pipeline is None and not leave():
            log.warning("profiler %r is inert: %s", self.name, _JOINED)
            self._become_inert(_JOINED)
            return
        before = self._state
        began, opening = clock.now(), 0
        try:
            self._state = "starting"
            if self._pipeline is None:
                # Whatever interrupts the caller, this is done as a whole.
                lacks = self._open() if drain_loop.on_loop() else self._have_opened()
                if lacks:
                    reason = f"nothing can be recorded: {lacks}"
                    log.error("profiler %r is inert: %s. The program goes on", self.name, reason)
                    self._become_inert(reason)
                    return
                opening = clock.now() - began
            if self.options.handle_sigterm:
                signals.watch(_end_all, _stop_here, self.options.close_timeout + LATEST)
            tasks.watch()
            self._reads = "steps" in self._signals
            observing.begin(self, self._signals)
            self._open_sources()
            if self._state != "starting":
                observing.end(self)
                return  # it was closed meanwhile
            if self._controller is not None and self._recorder is not None:
                self._controller.start(self._recorder.directory)
            self._begin_steps()
        except BaseException:
            if self._state == "starting":
                self._state = before
            raise
        self._carry_out()
        self._transitions.started(clock.now() - began, opening)

    def _have_opened(self) -> str:
        """Waits for the opening, which a start that was given up may have begun; returns what that does."""
        opening = self._opening = self._opening or BackgroundCall(self._open, name="stepscope opening")
        try:
            return wait_for_start(opening.start(), self.name, self.options.start_timeout)
        finally:
            if opening.finished:
                self._opening = None

    def _open(self) -> str:
        """Opens the run.

        Returns:
            What the system does not give, such as a directory, a thread or memory; empty if all is well.

        Raises:
            OutputError: if the directory that the user named cannot be used.
        """
        self.output.make()
        try:
            self._open_recorder()
        except StepscopeError as error:
            if not isinstance(error, OutputError):
                raise
            return str(error)
        except (OSError, MemoryError, RuntimeError) as error:
            return error_text(error)
        return ""

    def _open_recorder(self) -> None:
        last = self.output.path if self.output.made else None
        source = self._recorder = recorder(self.options, self.output, self.output.path, last)
        self._without_effect = source.without_effect(self.options)
        if self._without_effect:
            log.warning("profiler %r: %s", self.name, self._without_effect)
        try:
            self._open_pipeline(source)
        except BaseException:
            source.delivered(self.output)
            raise

    def _open_pipeline(self, source: Recorder) -> None:
        self._anchor = clock.ClockAnchor.read()
        clock.wall_clock.look(self._anchor)
        run = Run.here(
            name=self.name,
            output_dir=self.output.path,
            rank=self._rank,
            world_size=self._world_size,
            anchor=self._anchor,
            metadata=self._metadata.snapshot,
            ledger=lambda: Ledger() if self._pipeline is None else self._pipeline.ledger(),
            note_output=self.output.note_output,
            control=None if self._controller is None else self._controller.from_collector,
        )
        keep_last, session = self.keep_last, source.directory
        self.output.announce(session, self._serial, run, 0 if keep_last is None else keep_last.steps)
        self._hub = drain_loop.acquire(source)
        wake, wake_later = self._hub.wake, self._hub.wake_later

        def make() -> Pipeline:
            self._accounts = RecorderAccounts(source)
            return Pipeline(
                run,
                self._serial,
                self.options,
                self._exporters,
                self._backends,
                self.output,
                wake,
                wake_later,
                keep_last=keep_last,
                session=session,
                budget=self._budget,
                transitions=lambda: self._transitions.recording_ns,
                skipped=lambda: self._skipped_windows,
                ask=self._ask_detail,
            )

        try:
            self._pipeline = self._hub.add(make)
        except BaseException:
            self._hub = None
            drain_loop.release()
            raise
        if not self.output.announced:
            source.undelivered[self.output] = None
        self.output.pipeline = self._pipeline
        _alive.add(self)
        if self._state == "closed":  # start() gave this up, and nobody waits any more
            self._close_from_now()
            self._begin_closing()

    def _open_sources(self) -> None:
        assert self._pipeline is not None and self._hub is not None
        stepper = self._stepper
        elsewhere = stepper not in (0, get_ident()) and any(thread.ident == stepper for thread in threading.enumerate())
        if stepper == 0 and isinstance(self.schedule, PlannedSchedule):
            elsewhere = self._scheduled(self._step)[0] is ProfilerAction.NONE
        for source in self._pipeline.sources:
            if source.open:
                continue
            if not isinstance(source, BoundSource):
                opened = self._hub.open(source)
                wait_for_start(opened, self.name, self.options.start_timeout, source.name)
            elif elsewhere:
                source.wanted = True
            else:
                source.start()

    def stop(self) -> None:
        """Ends the window that is open, which is delivered and marked incomplete, and flushes.

        Waits `Options.close_timeout` seconds at most, and not at all where the wait would be for the caller: in an
        exporter or callback of this profiler, and on the runtime's loop. `start()` may follow. Stopping twice changes
        nothing.

        Raises:
            ProfilerStateError: if it was never started.
        """
        if self._state == "new":
            raise ProfilerStateError(f"stop() of profiler {self.name!r}: it was not started; call start() first")
        if self._state in ("starting", "running"):
            until = clock.now() + self._timeout_ns
            self._call(self._stop, patience=self._patience(until))
            began = clock.now()
            self.flush(max(until - began, 0) / 1e9)
            self._transitions.waited(clock.now() - began)

    def _stop(self, reason: str = "the profiler was stopped inside the window") -> None:
        if self._state != "running":
            return
        began = clock.now()
        self._end_steps(reason)
        self._carry_out()
        self._transitions.stopped(clock.now() - began)

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until everything recorded so far is with the exporters.

        Args:
            timeout: seconds to wait at most; default `Options.close_timeout`.

        Returns:
            Whether it is. False if the time was over first, and where the wait would be for the caller itself: in an
            exporter or callback of this profiler, and on the runtime's loop.
        """
        if self._pipeline is None or self._state in ("closed", "inert") or not self._may_wait():
            return False
        seconds = self.options.close_timeout if timeout is None else timeout
        done: OneShot[bool] = OneShot()
        try:
            self._pipeline.inbox.put(Flush(clock.now(), done))
            return done.result(seconds)
        except TimeoutError:
            blocked = "" if self._hub is None or seconds <= 0 else self._hub.blocked_in()
            if blocked:
                log.warning("flush() of profiler %r gave up: the runtime's loop is blocked in %s", self.name, blocked)
            return False
        except ClosedError:
            return False

    def _may_wait(self) -> bool:
        """Whether the caller may wait for this profiler's loop and exporters: it is none of them, nor is it inside of a
        call that they wait for."""
        if self._calls.is_own or locks.holds_any_lock():
            return False
        return self._hub is None or not (self._hub.on_loop() or delivering() is self._pipeline)

    def close(self) -> None:
        """Stops, then closes backends and exporters, within `Options.close_timeout` seconds.

        What could not be written by then is dropped, and counted. A backend that is bound to another thread gets half of
        the time for a call of `step()` there, and so does a schedule or backend that another thread is inside of; what it
        does after that is not recorded. What a schedule or bound backend needs on the thread that closes comes on top of
        the time, and has no bound: nobody can end it from outside. Meanwhile what was recorded goes on to the exporters,
        whose outputs are completed after it. In an exporter or callback of this profiler, and on the runtime's loop,
        it does not wait: closing goes on in the background. Closing twice changes nothing.
        """
        if self._state == "inert":
            return
        self._close_from_now()
        may_wait = self._may_wait()
        if not self._call(self._shut, patience=self._patience(self._closes_by, half=True)) and may_wait:
            self._shut_around()
        closing, began = self._closing, clock.now()
        if closing is not None and may_wait:
            try:
                closing.result(max(self._closes_by - began, 0) / 1e9 + LATEST)
            except TimeoutError:
                log.error("profiler %r %s", self.name, self._late_note())
            self._transitions.waited(clock.now() - began)
            for note in () if self._pipeline is None else self._replaced_notes(self._pipeline.statistics()):
                log.error("profiler %r: %s", self.name, note)
        signals.unwatch(_alive)

    def _late_note(self) -> str:
        """Says what it means that closing has not ended by the deadline."""
        where = "the session directory" if self._recorder is None else str(self._recorder.directory)
        return (
            f"did not close within Options.close_timeout={self.options.close_timeout:g} s, and closes in the background. What is "
            f"not written when the process ends stays in {where}: "
            f"`{shlex.join(['stepscope', 'recover', str(self.output.path)])}` brings it back. Raise close_timeout to have it "
            "written"
        )

    @property
    def _timeout_ns(self) -> int:
        return round(self.options.close_timeout * 1e9)

    def _patience(self, until: int, *, half: bool = False) -> float:
        """Seconds to wait for other calls, where something is to be done at a time in ns; half of them are left for it."""
        seconds = (until - clock.now()) / 1e9 - (self.options.close_timeout / 2 if half else 0.0)
        return max(seconds, 0.0) if self._may_wait() else 0.0

    def _close_from_now(self) -> None:
        """The time for closing begins with the first who asks for it."""
        self._closes_by = self._closes_by or clock.now() + self._timeout_ns

    def _shut(self) -> None:
        if self._state == "inert":
            return
        if self._state != "closed":
            began = clock.now()
            self._stop("the profiler was closed inside the window")
            self._closes_by += clock.now() - began  # what backends need here is not taken from the exporters
        self._begin_closing()

    def _shut_around(self) -> None:
        """Closes although another thread is inside of a call that does not return, and ends the window in its stead.

        Should it return, it finds a closed profiler.
        """
        log.error("profiler %r is closed while another thread is inside of its schedule, or of a backend", self.name)
        self._live = False
        self._begin_closing()
        self._want(False)
        self._let_go()

    def _begin_closing(self) -> None:
        """A second time changes nothing; it goes on where a signal handler interrupted the first."""
        self._state = "closed"
        if self._hub is not None and self._pipeline is not None and self._recorder is not None:
            with self._begins_closing:
                if self._closing is None:
                    self._pipeline.inbox.put(WindowEnds(clock.now(), False, INTERRUPTED))  # changes nothing, usually
                    parts = self._hub, self._pipeline, self._recorder, self._accounts, self.output
                    self._ending = CloseProcedure(self.name, self.options, *parts)
                    self._closing = BackgroundCall(self._finish, self._ending, name="stepscope closing")
            self._closing.start()
        if self._controller is not None:
            self._controller.close()

    def _finish(self, ending: CloseProcedure) -> None:
        """On a thread of its own: so it goes on whatever interrupts the caller."""
        try:
            ending.run(self._bound(), lambda: self._closes_by)
        finally:
            observing.end(self)
            self._close_readings()
            _alive.discard(self)
            if not _alive:
                tasks.release()
                end_sweep()

    def __enter__(self) -> Self:
        if self._start_on_enter:
            self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._report_end(error)
        self.close()

    def _begin_end(self, cause: BaseException | str | None) -> None:
        """Tells the flight recorder what ends the run, and begins to close; `close` waits for the end of that."""
        self._report_end_once(cause)
        self._call(self._shut, patience=min(self._patience(self._closes_by, half=True), PATIENCE))

    def _report_end_once(self, cause: BaseException | str | None) -> None:
        if not self._closes_by:
            self._report_end(cause)
        self._close_from_now()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._report_end(error)
        self._end_here()
        # On a thread of ours: one of the program's pool may be busy for long, and would stay, able to take signals.
        closing = BackgroundCall(self.close, name="stepscope closing").start()
        with anyio.CancelScope(shield=True):
            while not closing.finished:  # noqa: ASYNC110 - the loop may be of any kind
                await anyio.sleep(CLOSED_LOOK_S)
        closing.result()
        if self._controller is not None:
            self._controller.close()  # what only the main thread can do
        signals.unwatch(_alive)

    def _end_here(self) -> None:
        """Stops on this thread, as backends may be bound to it; the rest of closing is done elsewhere."""
        self._call(self._stop_and_carry_out)

    def _stop_and_carry_out(self) -> None:
        self._stop("the profiler was closed inside the window")
        self._carry_out()  # also if another thread has stopped it just now

    @property
    def control(self) -> Controller | None:
        """What takes requests for windows from outside: `trace(control=...)`."""
        return self._controller

    # what is written and read

    def explain(self) -> Answer:
        """Says what is slow in the run so far, why, and what to try; once closed, in the whole run.

        Waits like `flush()`, `Options.close_timeout` seconds at most, and then reads the run's journal on the thread that
        calls, which takes about half a second and 150 MB for a million events; other threads go on recording meanwhile. Call it
        behind the loop, or on another thread than the one that steps. With `keep_last` it reads the windows that were saved.

        `print()` shows the answer as `stepscope explain` does, a notebook as a part of the report.

        Raises:
            ProfilerStateError: if it was never started, or keeps no journal.
            FormatError: if the journal is none any more.
        """
        if self._state == "new" or analysed.by is None:
            raise ProfilerStateError(f"explain() of profiler {self.name!r}: it was not started; call start() first")
        if self._state == "inert":
            return analysed.by.refused(self.output.path, f"Nothing was recorded: {self._inert_because}.")
        self.flush()
        path = self.output.journal_path()
        if path is None or not path.exists():
            why = (
                self.diagnostics()
                if self.keep_last is None
                else ("profiler.save() keeps the last steps, as triggers do",)
            )
            return analysed.by.refused(self.output.path, "; ".join(("Nothing was written", *why)) + ".")
        return analysed.by.explain(path)

    @property
    def metadata(self) -> dict[str, Any]:
        """The facts for every output, as they are now."""
        return self._metadata.snapshot()

    def add_metadata(self, key: str, value: Any) -> None:
        """Adds a fact about the run to every output; any time. The same key again replaces the value.

        Args:
            value: anything that JSON can hold; other objects are named by their type.

        Raises:
            TypeError: if the key is no str.
        """
        self._metadata.add(key, value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Adds a fact that is JSON text already. Text that is not JSON is kept as a string, and said so in the log.

        Raises:
            TypeError: if key or value is no str.
        """
        self._metadata.add_json(key, value)


def _controller(control: Control, profiler: Profiler, rank: int | None, world_size: int | None) -> Controller:
    """Imported when one is made: few programs need it."""
    from stepscope.runtime.control.controller import Controller

    return Controller(control, profiler, rank, world_size)


_every: WeakSet[Profiler] = WeakSet()
_alive: set[Profiler] = set()
"""Profilers that were started and not closed; one that nobody holds any more still delivers what it recorded."""


def close_all(cause: BaseException | str | None = None) -> None:
    """Closes every profiler that is open, within the longest of their deadlines; first what is to be done before that.

    Args:
        cause: what ends the program, which flight recorders are told: an exception, or a signal by its name. Default: at
            the interpreter's exit, the exception that ended the program, if one did.
    """
    if cause is None and not hasattr(sys, "ps1"):  # in an interactive interpreter it may be of any time
        cause = getattr(sys, "last_value", None)
    call_before_close()
    # Nobody can end a backend that hangs on this thread: those that have none there are on their way by then.
    profilers = sorted(_alive, key=lambda profiler: bool(profiler._bound()))  # pyright: ignore[reportPrivateUsage]
    for profiler in profilers:
        profiler._begin_end(cause)  # pyright: ignore[reportPrivateUsage]
    for profiler in profilers:
        profiler.close()


def _end_all(cause: str) -> None:
    """Closes everything as a signal ends the process, which calls none of what the interpreter does at its exit."""
    close_all(cause)
    call_after_signal(cause)
    if os.getpid() != 1:  # the system spares the first process of a container, which may trace again
        close_recorder()


def _stop_here(number: int) -> bool:
    """Stops the profilers that have a backend which is bound to this thread; another thread closes them.

    Args:
        number: of the signal for which all are closed.

    Returns:
        Whether that could be done; not inside of a call of one of them, which has to end first.
    """
    cause = signal.Signals(number).name
    for profiler in list(_alive):
        calls = profiler._calls  # pyright: ignore[reportPrivateUsage]
        if calls.is_own:
            calls.afterwards = partial(signals.handle, number)
            return False
    for profiler in list(_alive):
        if any(source.open and source.here for source in profiler._bound()):  # pyright: ignore[reportPrivateUsage]
            profiler._report_end_once(cause)  # pyright: ignore[reportPrivateUsage]
            profiler._end_here()  # pyright: ignore[reportPrivateUsage]
    return True


def _rename_methods(kind: type) -> None:
    """Calls inherited methods by the class that users know: Python's messages about wrong calls name `Profiler.arm()`."""
    for name in dir(kind):
        method = None if name.startswith("_") else getattr(kind, name)
        while isinstance(method, FunctionType):
            method.__qualname__ = f"{kind.__name__}.{name}"
            method = getattr(method, "__wrapped__", None)


_rename_methods(Profiler)

_FORKED = (
    "it records in the process that started it, from which this one was forked: call stepscope.trace() here for a trace of this "
    "process, or stepscope.join() to be in the other's"
)
_JOINED = "this process has joined the session of another, and what it records is in the traces of that"


def _forked() -> None:
    """In a forked child the parent's profilers are inert: the child neither records nor writes for them."""
    for profiler in list(_every):
        profiler._after_fork()  # pyright: ignore[reportPrivateUsage]
    _alive.clear()


os.register_at_fork(after_in_child=_forked)
