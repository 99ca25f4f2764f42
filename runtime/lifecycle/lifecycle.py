"""Start, stop, flush and close of a profiler, and of all when the process ends or forks."""

from __future__ import annotations

import logging
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio

from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.annotations import tasks
from stepscope.runtime.errors import BackendError, ClosedError, OutputError, ProfilerStateError, StepscopeError
from stepscope.runtime.events import clock
from stepscope.runtime.inbox.messages import Flush
from stepscope.runtime.lifecycle.interpreter_exit import close_at_exit
from stepscope.runtime.lifecycle.join import leave
from stepscope.runtime.lifecycle.open_run import CloseProcedure, OpenRun, RunFacts, open_run
from stepscope.runtime.lifecycle.shutdown_hooks import after_signal, before_close
from stepscope.runtime.loop import drain_loop
from stepscope.runtime.loop.pipeline import RunSetup
from stepscope.runtime.observers import observing
from stepscope.runtime.recording.recorder import close_recorder, closed_for_good
from stepscope.runtime.sources.thread_bound import BoundSource
from stepscope.runtime.steps.call_serializer import TURN_TIMEOUT_S, CallSerializer
from stepscope.runtime.steps.saving import Saving
from stepscope.runtime.steps.step_controller import StepController, retain_untouched
from stepscope.runtime.threads import locks, signals
from stepscope.runtime.threads.background_call import BackgroundCall
from stepscope.runtime.threads.greenlets import refusal
from stepscope.runtime.threads.one_shot import OneShot
from stepscope.runtime.threads.user_code import delivering
from stepscope.runtime.windows.router import INTERRUPTED
from stepscope.runtime.windows.step_marks import WindowEnds

if TYPE_CHECKING:
    from stepscope.runtime.control.controller import Controller

log = logging.getLogger("stepscope")

LATEST_S = 0.48
"""Seconds beyond `Options.close_timeout` after which `close` returns, whatever is not done."""
CLOSED_LOOK_S = 0.002
"""Seconds between two looks of `async with` at whether the profiler is closed."""
_CLOSED_INSIDE = "the profiler was closed inside the window"


class Lifecycle:
    """Begins and ends the run of one profiler. `Profiler` documents the methods of the same names."""

    def __init__(
        self, facts: RunFacts, setup: RunSetup, steps: StepController, saving: Saving, control: Controller | None
    ) -> None:
        """Args: the run; the side of the threads that step; what saves at the run's end; what takes requests from outside."""
        self.facts, self.setup, self.steps, self.control = facts, setup, steps, control
        self._saving = saving
        self.opened: OpenRun | None = None
        """The parts that the first start has opened; `None` before, and in a process in which the profiler is inert."""
        self.ending: CloseProcedure | None = None
        """The closing, once it has begun."""
        self._closing: BackgroundCall[None] | None = None
        self._opening: BackgroundCall[str] | None = None
        self._closes_by = 0
        """Time by which closing must be done, in ns; 0 before `close`."""
        self._begins_closing = locks.reentrant()
        _every.add(self)

    def after_fork(self) -> None:
        """Called in a forked child: becomes inert if it was started, or was being started by another thread."""
        if self.opened is not None or self._opening is not None or self.steps.state == "starting":
            self._become_inert(_FORKED)
        else:
            self.steps.calls = CallSerializer()

    def _become_inert(self, reason: str) -> None:
        self.steps.become_inert(reason)
        retain_untouched(self.opened, self.setup)
        self.steps.close_readings()
        self.opened = self.ending = self.control = None
        self.facts.output.pipeline = None

    # start

    def start(self) -> None:
        """Begins at the current step."""
        if self.steps.state != "inert":
            self._check_start()
            self.steps.calls.run(self._start)

    def _check_start(self) -> None:
        name, state = self.facts.name, self.steps.state
        if state in ("starting", "running", "closed"):
            raise ProfilerStateError(f"start() of profiler {name!r}: it is {state} already")
        if closed_for_good():
            raise ProfilerStateError(
                f"start() of profiler {name!r}: the process is ending, and can record nothing any more. Functions of atexit "
                "are called in reverse order: register the one that starts a profiler after `import stepscope`"
            )
        if refused := refusal():
            raise ProfilerStateError(f"start() of profiler {name!r}: {refused}")

    def _start(self) -> None:
        self._check_start()
        steps, options = self.steps, self.setup.options
        if self.opened is None and not leave():
            log.warning("profiler %r is inert: %s", self.facts.name, _JOINED)
            self._become_inert(_JOINED)
            return
        before = steps.state
        began, opening = clock.now(), 0
        try:
            steps.state = "starting"
            if self.opened is None:
                # This is done as a whole even if something interrupts the caller.
                lacks = self._open() if drain_loop.on_loop() else self._have_opened()
                if lacks:
                    reason = f"nothing can be recorded: {lacks}"
                    log.error("profiler %r is inert: %s. The program goes on", self.facts.name, reason)
                    self._become_inert(reason)
                    return
                opening = clock.now() - began
            if options.handle_sigterm:
                signals.watch(_end_all, _stop_here, options.close_timeout + LATEST_S)
            tasks.watch()
            steps.reads = "steps" in options.signals
            observing.begin(steps, options.signals)
            self._open_sources()
            if steps.state != "starting":
                observing.end(steps)
                return  # it was closed meanwhile
            if self.control is not None and self.opened is not None:
                self.control.start(self.opened.recorder.directory)
            steps.begin()
        except BaseException:
            observing.end(steps)
            if steps.state == "starting":
                steps.state = before
            raise
        steps.carry_out()
        steps.transitions.starts += 1
        steps.transitions.start_ns += clock.now() - began
        steps.transitions.opening_ns += opening

    def _have_opened(self) -> str:
        """Waits for the opening, which a start that was given up may have begun; returns what that does."""
        seconds = self.setup.options.start_timeout
        opening = self._opening = self._opening or BackgroundCall(self._open, name="stepscope opening")
        try:
            if not opening.start().wait(seconds):
                raise ProfilerStateError(
                    f"{self._gave_up()}the runtime's loop, or the directory of the output, does not answer"
                )
            return opening.result(seconds)
        finally:
            if opening.finished:
                self._opening = None

    def _open(self) -> str:
        """Opens the run. Returns which resource the system refused, such as a directory, thread or memory, if it did. Raises
        `OutputError` if the directory that the user named cannot be used."""
        self.facts.output.make()
        handle = None if self.control is None else self.control.from_collector
        try:
            self.opened = opened = open_run(self.facts, self.setup, self.steps, handle)
        except OutputError as error:
            return str(error)
        except StepscopeError:
            raise
        except (OSError, MemoryError, RuntimeError) as error:
            return error_text(error)
        self.steps.pipeline, self.steps.recorder = opened.pipeline, opened.recorder
        _alive.add(self)
        if self.steps.state == "closed":  # start() gave this up, and nobody waits any more
            self._close_from_now()
            self._begin_closing()
        return ""

    def _open_sources(self) -> None:
        assert self.opened is not None
        elsewhere = self.steps.steps_elsewhere
        for source in self.opened.pipeline.sources:
            if source.open:
                continue
            if not isinstance(source, BoundSource):
                opening = self.opened.loop.open(source)
                if not opening.wait(self.setup.options.start_timeout):
                    raise BackendError(
                        f"{self._gave_up()}open() of backend {source.name!r} has not returned; have it do on a thread what "
                        "takes long"
                    )
                opening.result()
            elif elsewhere:
                source.wanted = True
            else:
                source.start()

    def _gave_up(self) -> str:
        seconds = self.setup.options.start_timeout
        return f"start() of profiler {self.facts.name!r} gave up after {seconds:g} s (Options.start_timeout): "

    # stop and flush

    def stop(self) -> None:
        """Ends the open window, and flushes. If another thread has, ends what backends record on this one."""
        steps = self.steps
        if steps.state == "new":
            raise ProfilerStateError(f"stop() of profiler {self.facts.name!r}: it was not started; call start() first")
        if steps.state in ("starting", "running"):
            until = clock.now() + self._timeout_ns
            steps.call(self._stop, timeout_s=self._turn_timeout_s(until))
            began = clock.now()
            self.flush(max(until - began, 0) / 1e9)
            steps.transitions.wait_ns += clock.now() - began
        elif steps.state == "stopped":
            steps.call(steps.carry_out)

    def _stop(self, reason: str = "the profiler was stopped inside the window") -> None:
        if self.steps.state != "running":
            return
        began = clock.now()
        self.steps.end(reason)
        self.steps.carry_out()
        self.steps.transitions.stop_ns += clock.now() - began

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until the exporters have everything recorded so far. Returns whether they have."""
        opened = self.opened
        if opened is None or self.steps.state in ("closed", "inert") or not self._may_wait():
            return False
        seconds = self.setup.options.close_timeout if timeout is None else timeout
        done: OneShot[bool] = OneShot()
        try:
            opened.pipeline.inbox.put(Flush(clock.now(), done))
            return done.result(seconds)
        except TimeoutError:
            blocked = opened.loop.blocked_in() if seconds > 0 else ""
            if blocked:
                log.warning(
                    "flush() of profiler %r gave up: the runtime's loop is blocked in %s", self.facts.name, blocked
                )
            return False
        except ClosedError:
            return False

    def _may_wait(self) -> bool:
        """Whether the caller may wait for this profiler's loop and exporters: it is none of them, nor is it inside of a
        call that they wait for."""
        if self.steps.calls.is_own or locks.holds_any_lock():
            return False
        return self.opened is None or not (self.opened.loop.on_loop() or delivering() is self.opened.pipeline)

    # close

    def close(self) -> None:
        """Stops, then closes backends and exporters, within `Options.close_timeout` seconds."""
        steps = self.steps
        if steps.state == "inert":
            return
        self._close_from_now()
        may_wait = self._may_wait()
        if not steps.call(self._shut, timeout_s=self._turn_timeout_s(self._closes_by, half=True)) and may_wait:
            self._shut_around()
        closing, began = self._closing, clock.now()
        if closing is not None and may_wait:
            try:
                closing.result(max(self._closes_by - began, 0) / 1e9 + LATEST_S)
            except TimeoutError:
                log.error(
                    "profiler %r did not close within Options.close_timeout=%g s, and closes in the background; raise it to have "
                    "everything written",
                    *(self.facts.name, self.setup.options.close_timeout),
                )
            steps.transitions.wait_ns += clock.now() - began
        signals.unwatch(_alive)

    async def aclose(self) -> None:
        """Closes as `close` does, without blocking the event loop of the caller."""
        self.end_here()
        # On a thread of ours: one of the program's pool may be busy for long, and would stay, able to take signals.
        closing = BackgroundCall(self.close, name="stepscope closing").start()
        with anyio.CancelScope(shield=True):
            while not closing.finished:  # noqa: ASYNC110 - the loop may be of any kind
                await anyio.sleep(CLOSED_LOOK_S)
        closing.result()
        if self.control is not None:
            self.control.close()  # what only the main thread can do
        signals.unwatch(_alive)

    def begin_end(self, cause: BaseException | str | None) -> None:
        """Reports to the flight recorder what ends the run, and begins to close; `close` waits for the end of that."""
        self.report_end_once(cause)
        self.steps.call(self._shut, timeout_s=min(self._turn_timeout_s(self._closes_by, half=True), TURN_TIMEOUT_S))

    def report_end_once(self, cause: BaseException | str | None) -> None:
        """Reports to the flight recorder what ends the run, unless it ends already."""
        if not self._closes_by:
            self._saving.ended_by(cause)
        self._close_from_now()

    def end_here(self) -> None:
        """Stops on this thread, as backends may be bound to it; the rest of closing is done elsewhere."""
        self.steps.call(self._stop_and_carry_out)

    def has_backend_here(self) -> bool:
        """Whether an open backend is bound to this thread."""
        return any(source.open and source.here for source in self.steps.bound())

    @property
    def timed_out(self) -> bool:
        """Whether the loop missed the deadline of closing."""
        return self.ending is not None and self.ending.timed_out

    @property
    def _timeout_ns(self) -> int:
        return round(self.setup.options.close_timeout * 1e9)

    def _turn_timeout_s(self, until: int, *, half: bool = False) -> float:
        """Seconds to wait for other calls, where something is to be done at a time in ns; half of them are left for it."""
        seconds = (until - clock.now()) / 1e9 - (self.setup.options.close_timeout / 2 if half else 0.0)
        return max(seconds, 0.0) if self._may_wait() else 0.0

    def _close_from_now(self) -> None:
        """The time for closing begins with the first who asks for it."""
        self._closes_by = self._closes_by or clock.now() + self._timeout_ns

    def _shut(self) -> None:
        if self.steps.state == "inert":
            return
        if self.steps.state != "closed":
            began = clock.now()
            self._stop_and_carry_out()
            self._closes_by += clock.now() - began  # what backends need here is not taken from the exporters
        self._begin_closing()

    def _shut_around(self) -> None:
        """Closes although another thread is inside of a call that does not return, and ends the window in its stead."""
        log.error(
            "profiler %r is closed while another thread is inside of its schedule, or of a backend", self.facts.name
        )
        self.steps.live = False
        self._begin_closing()
        self.steps.abandon()

    def _stop_and_carry_out(self) -> None:
        self._stop(_CLOSED_INSIDE)
        self.steps.carry_out()  # also if another thread has stopped it just now

    def _begin_closing(self) -> None:
        """A second time changes nothing; it goes on where a signal handler interrupted the first."""
        self.steps.state = "closed"
        opened, facts = self.opened, self.facts
        if opened is not None:
            with self._begins_closing:
                if self._closing is None:
                    opened.pipeline.inbox.put(WindowEnds(clock.now(), False, INTERRUPTED))  # changes nothing, usually
                    self.ending = CloseProcedure(facts.name, opened, facts.output, self.setup.options.close_timeout)
                    self._closing = BackgroundCall(self._finish, self.ending, name="stepscope closing")
            self._closing.start()
        if self.control is not None:
            self.control.close()

    def _finish(self, ending: CloseProcedure) -> None:
        """Finishes on a thread of its own, which continues if the caller is interrupted."""
        try:
            ending.run(self.steps.bound(), lambda: self._closes_by)
        finally:
            observing.end(self.steps)
            self.steps.close_readings()
            _alive.discard(self)
            if not _alive:
                tasks.release()


_every: WeakSet[Lifecycle] = WeakSet()
_alive: set[Lifecycle] = set()
"""Profilers that were started and not closed; they deliver what they recorded even if no reference to them is left."""


def close_all(cause: BaseException | str | None = None) -> None:
    """Closes every profiler that is open, within the longest of their deadlines.

    The cause is what ends the program, for flight recorders: an exception, or the name of a signal. Default: at the
    interpreter's exit, the exception that ended the program, if one did.
    """
    if cause is None and not hasattr(sys, "ps1"):  # in an interactive interpreter it may be of any time
        cause = getattr(sys, "last_value", None)
    before_close.call()
    # Nobody can end a backend that hangs on this thread: those that have none there are on their way by then.
    profilers = sorted(_alive, key=lambda profiler: bool(profiler.steps.bound()))
    for profiler in profilers:
        profiler.begin_end(cause)
    for profiler in profilers:
        profiler.close()


def _end_all(cause: str) -> None:
    """Closes everything as a signal ends the process, which calls none of what the interpreter does at its exit."""
    close_all(cause)
    after_signal.call(cause)
    if os.getpid() != 1:  # the system spares the first process of a container, which may trace again
        close_recorder()


def _stop_here(number: int) -> bool:
    """Stops the profilers that have a backend which is bound to this thread, for a signal; another thread closes them. Returns
    false inside of a call of one of them, which has to end first."""
    cause = signal.Signals(number).name
    for profiler in list(_alive):
        if profiler.steps.calls.is_own:
            profiler.steps.calls.afterwards = partial(signals.handle, number)
            return False
    for profiler in list(_alive):
        if profiler.has_backend_here():
            profiler.report_end_once(cause)
            profiler.end_here()
    return True


_FORKED = (
    "it records in the process that started it, from which this one was forked: call stepscope.trace() here for a trace of this "
    "process, or stepscope.join() to be in the other's"
)
_JOINED = "this process has joined the session of another, and what it records is in the traces of that"


def _forked() -> None:
    """In a forked child the parent's profilers are inert: the child neither records nor writes for them."""
    for profiler in list(_every):
        profiler.after_fork()
    _alive.clear()


os.register_at_fork(after_in_child=_forked)
close_at_exit(_alive, close_all)
