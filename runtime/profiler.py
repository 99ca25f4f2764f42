"""The profiler: what users hold."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from stepscope.runtime.analysed import as_html
from stepscope.runtime.control.settings import Control
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.lifecycle.lifecycle import Lifecycle
from stepscope.runtime.lifecycle.open_run import RunFacts
from stepscope.runtime.loop.pipeline import RunSetup
from stepscope.runtime.report.notebook import progress
from stepscope.runtime.report.profiler_statistics import ProfilerStatistics
from stepscope.runtime.report.reporting import Reporting
from stepscope.runtime.report.run_report import RunReport
from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import ScheduleFunction
from stepscope.runtime.steps.arming import Arming
from stepscope.runtime.steps.saving import Saving, why_no_arming
from stepscope.runtime.steps.step_controller import StepController
from stepscope.runtime.windows.summary import Summary

if TYPE_CHECKING:
    from stepscope.runtime.analysed import Answer
    from stepscope.runtime.control.controller import Controller


class Profiler:
    """Records the steps that a schedule asks for, and streams them to exporters.

    Made by `stepscope.trace`. A context manager, sync and async: entering starts it (unless `start=False`),
    leaving closes it, within `Options.close_timeout`. `start()` and `stop()` may alternate any number of times.
    Several profilers may run at once. Once started, nothing here raises into the training loop for what backends,
    exporters, callbacks or the schedule do wrong: that is counted, kept, and raised by `raise_errors()`.
    """

    def __init__(
        self,
        facts: RunFacts,
        setup: RunSetup,
        schedule: ScheduleFunction,
        *,
        start: bool,
        control: Control | None = None,
    ) -> None:
        """
        Args:
            facts: whose run it is, and where it is written.
            setup: its backends, exporters and settings.
            schedule: the action of each step.
            start: whether entering starts it.
            control: requests for windows from outside.
        """
        self.name, self.options, self.output = facts.name, setup.options, facts.output
        self.keep_last = keep_last = setup.keep_last
        self._metadata = facts.metadata
        self._start_on_enter = start
        self._steps = StepController(facts.name, schedule, setup.backends)
        vars(self)["step"] = self._steps.step  # the native method itself: each step of training pays for its call
        refusal = why_no_arming(keep_last)
        self._arming = Arming(self._steps.windows, facts.metadata, rank=facts.rank, refusal=refusal)
        self._saving = Saving(keep_last, self._steps)
        controller = None
        if control is not None:
            from stepscope.runtime.control.controller import Controller  # few programs need it

            controller = Controller(control, self._arming, facts.rank, facts.world_size)
        self._life = Lifecycle(facts, setup, self._steps, self._saving, controller)
        self._reporting = Reporting(self._life, self._arming)

    # life

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
        self._life.start()

    def stop(self) -> None:
        """Ends the window that is open, which is delivered and marked incomplete, and flushes.

        Waits `Options.close_timeout` seconds at most, and not at all where the wait would be for the caller: in an
        exporter or callback of this profiler, and on the runtime's loop. `start()` may follow. Stopping twice changes
        nothing.

        Raises:
            ProfilerStateError: if it was never started.
        """
        self._life.stop()

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until everything recorded so far is with the exporters.

        Args:
            timeout: seconds to wait at most; default `Options.close_timeout`.

        Returns:
            Whether it is. False if the time was over first, and where the wait would be for the caller itself: in an
            exporter or callback of this profiler, and on the runtime's loop.
        """
        return self._life.flush(timeout)

    def close(self) -> None:
        """Stops, then closes backends and exporters, within `Options.close_timeout` seconds.

        Events that are not written by then are dropped, and counted. A backend that is bound to another thread gets half of
        the time for a call of `step()` there, and so does a schedule or backend that another thread is inside of; what it
        does after that is not recorded. A schedule or bound backend may take longer on the thread that closes, without
        a bound: no other thread can end it. Meanwhile what was recorded goes on to the exporters,
        whose outputs are completed after it. In an exporter or callback of this profiler, and on the runtime's loop,
        it does not wait: closing goes on in the background. Closing twice changes nothing.
        """
        self._life.close()

    def __enter__(self) -> Self:
        if self._start_on_enter:
            self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._saving.ended_by(error)
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._saving.ended_by(error)
        await self._life.aclose()

    # steps

    def step(self) -> None:
        """Ends the current step and begins the next. Never blocks and never raises; call it once per step,
        from any thread (from the thread of `start()` if a backend is bound to it)."""
        self._steps.step()

    @property
    def current_action(self) -> ProfilerAction:
        """The action of the current step."""
        return self._steps.action

    @property
    def recording_now(self) -> bool:
        """Whether the current step is recorded, and not paused."""
        return self._steps.recording_now

    @property
    def step_num(self) -> int:
        """Number of the current step, from 0. Set it on resume, to continue the numbers of an earlier run.

        While the profiler runs, the next `step()` asks the schedule with the new number plus 1, as in torch. The action of the
        current step does not change. An invalid value is logged then, and ignored.

        Raises:
            ValueError: if it is no whole number from 0, and the profiler does not run.
        """
        return self._steps.number

    @step_num.setter
    def step_num(self, step: int) -> None:
        self._steps.set_number(step)

    @property
    def schedule(self) -> ScheduleFunction:
        """The schedule. `replace_schedule` also forgets the error of the one before."""
        return self._steps.schedule

    @schedule.setter
    def schedule(self, schedule: ScheduleFunction) -> None:
        self._steps.schedule = schedule

    @property
    def schedule_error(self) -> BaseException | None:
        """The first error of the schedule. Nothing is recorded after it."""
        return self._steps.schedule_error

    def replace_schedule(self, schedule: ScheduleFunction) -> None:
        """Replaces the schedule from the next step on."""
        self._steps.replace_schedule(schedule)

    def pause(self) -> None:
        """Pauses recording until `resume()`. Pauses nest. The pause is a gap event, and spans across it are cut."""
        self._steps.pause()

    def resume(self) -> None:
        """Ends the latest `pause()`; without one it has no effect."""
        self._steps.resume()

    # windows on request

    @property
    def control(self) -> Controller | None:
        """The control that takes requests for windows from outside: `trace(control=...)`."""
        return self._life.control

    @property
    def stage(self) -> str:
        """The current stage, such as `fit`, from the metadata `stage`; empty if there is none.

        Callbacks of frameworks set it. A request may be for one stage (`WindowRequest.stage`).
        """
        return self._arming.stage

    def arm(self, request: WindowRequest, *, trigger: str = "call") -> Armed:
        """Requests a window, in addition to those of the schedule. Any thread may call at any time; never waits.

        A request before `start()` is stored until then. A profiler without a schedule, which records everything, refuses;
        `trace(control=...)` makes a profiler that records requested windows only.

        Args:
            request: the window to record.
            trigger: origin of the request, in a word, for the window's metadata.

        Returns:
            The steps that will be recorded, or the reason why none will.

        Raises:
            TypeError: if the request is no `WindowRequest`.
        """
        return self._arming.arm(request, trigger=trigger)

    def extend(self, steps: int = 0, *, seconds: float = 0.0) -> Armed:
        """Extends the running armed window.

        Args:
            steps: further steps, rounded up to the window's granularity; for a window of steps.
            seconds: further seconds; for a window of seconds.

        Returns:
            The steps of the window now, or why it is not extended.
        """
        return self._arming.extend(steps, seconds=seconds)

    def abort(self, run_id: str | None = None, *, reason: str = "abort() was called") -> tuple[ArmedStatus, ...]:
        """Ends the running armed window with the current step, and withdraws waiting ones.

        Recorded steps are delivered as an incomplete window.

        Args:
            run_id: only windows of this run id; default: all.
            reason: text for diagnostics.

        Returns:
            The windows that this ends; empty if there are none.
        """
        return self._arming.abort(run_id, reason=reason)

    def armed(self) -> tuple[ArmedStatus, ...]:
        """The armed windows: the latest ended ones, then the running one, then waiting ones."""
        return self._arming.armed()

    # the last steps

    def save(self, reason: str = "call") -> bool:
        """Saves the last steps, up to now: `trace(keep_last=...)`. Any thread and signal handlers may call.

        The background loop does the saving later. With `FlightRecorder.after` it includes so many further steps. The same
        reason does not save again within the cool-down.

        Args:
            reason: a word or two, for the file name, counts and reports.

        Returns:
            False if nothing will be saved: the profiler retains no steps, does not run, or too many calls wait already.
        """
        return self._saving.save(reason)

    def caught(self, error: BaseException) -> bool:
        """Reports an exception that the program handled. It saves as if the exception had left the `with` block.

        Returns:
            False if nothing will be saved: no `Raised` trigger is for such an exception, or as for `save`.
        """
        return self._saving.caught(error)

    def saved(self) -> tuple[Path, ...]:
        """Returns the complete files of windows that `keep_last` saved and did not delete, the oldest first.

        Each is a journal: `stepscope convert` makes a trace of it. Empty without `keep_last` or without a journal.
        """
        return self.output.saved()

    # what is written and read

    def summary(
        self, sort_by: str = "self", top: int | None = 20, format: Literal["table", "markdown", "json"] = "table"
    ) -> str:
        """Returns statistics of the steps, the parts of a step, which add up to it, and a table of spans: one row for each name
        and category, with separate rows for other processes.

        Of an open window, it includes the events that have arrived; it does not wait. Percentages refer to the time of the
        steps, or without steps to the recorded time. Self time excludes child spans. Steps have no self time: it belongs to
        the spans inside of them.

        Args:
            sort_by: a column: `self`, `total`, `count`, `min`, `max`, `mean`, `p50`, `p95`, `p99`, `name` or `category`.
            top: rows to show; `None` for all.
            format: `table` for a terminal, `markdown` with full names, `json` in ns.

        Raises:
            ValueError: if a value is not one of these.
            TypeError: if `top` is no whole number.
        """
        return self._reporting.summary(sort_by, top, format)

    def aggregates(self) -> Summary:
        """Returns the same as data."""
        return self.output.total()

    def progress(self) -> AbstractContextManager[None]:
        """In a notebook, shows the progress in the cell during a `with` block: steps, their rate, and dropped events.

        A separate thread updates it twice a second. Without a kernel of IPython it does nothing.
        """
        return progress(self.statistics)

    def statistics(self) -> ProfilerStatistics:
        """Returns an immutable snapshot of every stage."""
        return self._reporting.statistics()

    def diagnostics(self) -> tuple[str, ...]:
        """Returns reasons why nothing, or less than the schedule wanted, was recorded; empty if all is well."""
        return self._reporting.diagnostics()

    def audit(self) -> tuple[str, ...]:
        """Returns a sentence for each account of this run that does not balance.

        The loop counts meanwhile, so an account that seems wrong is checked again.
        """
        return self._reporting.audit()

    def report(self) -> RunReport:
        """Returns the trust report: recorded and dropped events, clocks, costs, and reasons for anything that is missing."""
        return self._reporting.report()

    def raise_errors(self) -> None:
        """Raises the exceptions of backends, exporters, triggers, callbacks and the schedule so far, if there are any.

        Raises:
            ExceptionGroup: of `BackendError`, `ExporterError` and `TriggerError`, and of `InternalError` for faults of
                stepscope itself, each with the original as its cause.
        """
        self._reporting.raise_errors()

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
        return self._reporting.explain()

    def __repr__(self) -> str:
        stats = self.statistics()
        steps, windows = human_count(stats.steps, "step"), human_count(stats.windows, "window")
        return f"<stepscope.Profiler: {stats.state}, {steps}, {windows}, {self.output.path}>"

    def _repr_html_(self) -> str:
        """For notebooks: the state, and the first rows of the table."""
        return as_html(self)

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
        """Adds a fact that is JSON text already. Text that is not JSON stays a string, and is logged.

        Raises:
            TypeError: if key or value is no str.
        """
        self._metadata.add_json(key, value)
