"""The step controller: changes of recording at steps, pauses and ends, on the caller's thread."""

from __future__ import annotations

import itertools
import logging
import operator
import threading
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.events import clock
from stepscope.runtime.inbox.messages import ActionChanged, DetailChanged, Paused, Resumed
from stepscope.runtime.loop.pipeline import Pipeline
from stepscope.runtime.recording.recorder import Recorder
from stepscope.runtime.schedule.action import ProfilerAction, checked_action
from stepscope.runtime.schedule.detail import FULL, Detail
from stepscope.runtime.schedule.plan import explain
from stepscope.runtime.schedule.schedule import NEVER, PlannedSchedule, Schedule, ScheduleFunction, Unchanging, always
from stepscope.runtime.sources.source import Producer
from stepscope.runtime.sources.thread_bound import BoundSource
from stepscope.runtime.steps.armed_windows import ArmedWindows
from stepscope.runtime.steps.call_serializer import TURN_TIMEOUT_S, CallSerializer
from stepscope.runtime.steps.transition_costs import TransitionStatistics
from stepscope.runtime.threads.native_threads import get_ident
from stepscope.runtime.threads.user_code import from_signal_handler
from stepscope.runtime.windows.step_marks import StepMark, WindowBegins, WindowEnds

log = logging.getLogger("stepscope")

LARGEST_STEP = (1 << 31) - 1
"""Largest step number that fits an event."""

MAX_INTERRUPTIONS = 8
"""How often a change is repeated that signal handlers interrupt."""

_serials = itertools.count(1)
_untouched: list[object] = []
"""Objects of inert profilers."""


def retain_untouched(*used: object) -> None:
    """Retains objects of an inert profiler for ever, as their destructors must not run."""
    _untouched.extend(used)


def step_number(value: object) -> int | None:
    """Converts a step number of the program, such as an int, a NumPy integer or a tensor; `None` if it is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except Exception:
        return None
    return number if 0 <= number <= LARGEST_STEP and not isinstance(value, bool) else None


def _finish(call: Callable[[], None]) -> None:
    """Makes a call that may be repeated. Where signal handlers interrupt it, it is made again, then their exception propagates."""
    interrupted: BaseException | None = None
    for _ in range(MAX_INTERRUPTIONS):
        try:
            call()
        except BaseException as error:
            interrupted = interrupted or error
        else:
            break
    if interrupted is not None:
        raise interrupted


class StepController(_core.StepCounter):
    """Follows a schedule: the part of a profiler on the training thread.

    `step()` itself is native. It calls `_transition` only where the action changes. During a change, `_begin_change` raises
    `_core.changing`, so that the loop routes no events whose window it does not know yet. `_end_change` lowers it, and may be
    called repeatedly. So it is called in a `finally` whose `try` begins before `_begin_change`, in case a signal handler raises.

    Any thread may call any method, also a signal handler that interrupts another call. Changes of thread-bound backends wait
    for the next `step()` of their thread.
    """

    def __init__(self, name: str, schedule: ScheduleFunction, backends: Sequence[Producer]) -> None:
        """Args: name of the profiler; its schedule; its backends, which may refuse the detail of an armed window."""
        self.name = name
        self.schedule: ScheduleFunction = schedule
        self.schedule_error: BaseException | None = None
        """The first error of the schedule. Nothing is recorded after it."""
        self.windows = ArmedWindows(name, self, backends)
        self.serial = next(_serials)
        self.calls = CallSerializer()
        self.state = "new"
        """As in `ProfilerStatistics`."""
        self._detail: Detail = FULL
        """The current detail: the level of the overhead budget, or less if the window was requested with less."""
        self._level: Detail = FULL
        self._level_wanted: Detail = FULL
        self.action = self._planned = ProfilerAction.NONE
        self._skips = False
        """Whether the current window of the schedule is skipped."""
        self._first_step = self._steps_before = 0
        self._window_first: int | None = None
        self._pauses = self.pauses_not_drawn = 0
        self._paused = False
        """Whether the recorder is paused."""
        self._pause_sent = False
        """Whether the loop has a message of the pause."""
        self.skipped_windows = 0
        self.ignored = self.windows_begun = self._recorded_steps = self._open_steps = 0
        self.inert_because = ""
        self.transitions = TransitionStatistics()
        self.pipeline: Pipeline | None = None
        self.recorder: Recorder | None = None

    @property
    def recording_now(self) -> bool:
        """Whether the current step is recorded, and not paused."""
        return self.live and self.action.records and not self._pauses

    @property
    def stepped(self) -> bool:
        """Whether `step()` was called since the last start."""
        return self.number > self._first_step

    @property
    def steps_begun(self) -> int:
        """Steps of all starts."""
        return self._steps_before + (self.number - self._first_step if self.live else 0)

    @property
    def steps_elsewhere(self) -> bool:
        """Whether another thread steps, or may do so before anything is recorded."""
        if self.stepper == 0 and isinstance(self.schedule, PlannedSchedule):
            return self._scheduled(self.number)[0] is ProfilerAction.NONE
        others = (thread.ident for thread in threading.enumerate())
        return self.stepper not in (0, get_ident()) and self.stepper in others

    @property
    def cost_ns(self) -> int:
        """Time that changes of the action have cost the program's threads, in ns."""
        return self.transitions.recording_ns

    def set_number(self, step: int) -> None:
        """Continues with this step; see `Profiler.step_num`."""
        number = step_number(step)
        if number is None:
            wrong = f"step_num must be a whole number from 0, got {step!r}"
            if not self.live:
                raise ValueError(wrong)
            log.error("profiler %r goes on from step %d: %s", self.name, self.number, wrong)
            return
        by = number - self.number
        self.number = number
        if self.live:
            self._first_step += by
            if self._window_first is not None:
                self._window_first += by
            self._ask_next_step()
        with self.windows.lock:
            self.windows.step_was_set(by)

    def why_less(self) -> tuple[str, ...]:
        """Returns reasons why an ended run recorded less than the schedule wanted."""
        open_steps = self._open_steps
        if self.pipeline is not None:
            open_steps = open_steps or self.pipeline.cut_steps
        steps, first = self.number - self._first_step, max(self._first_step, 0)
        return explain(self.schedule, steps, recorded=self._recorded_steps, open_steps=open_steps, first=first)

    def _ask_next_step(self) -> None:
        """Makes the next `step()` ask the schedule."""
        self.next_change = self.number

    def replace_schedule(self, schedule: ScheduleFunction) -> None:
        self.schedule, self.schedule_error = schedule, None
        self._ask_next_step()

    def pause(self) -> None:
        self.call(partial(self._change_pauses, 1))

    def resume(self) -> None:
        self.call(partial(self._change_pauses, -1))

    def call(self, call: Callable[[], None], *, timeout_s: float = TURN_TIMEOUT_S) -> bool:
        """Runs a call that must not interleave with others, see `CallSerializer.run`.

        If the profiler was closed during the call, its messages are not needed any more.
        """
        try:
            return self.calls.run(call, timeout_s=timeout_s)
        except ClosedError:
            if self.state != "closed":
                raise
            return True

    def _change_pauses(self, by: int) -> None:
        if self.live and self.pipeline is not None and self._pauses + by >= 0:
            self._set_pauses(self._pauses + by)
            self.carry_out()

    def _set_pauses(self, pauses: int) -> None:
        """Sets the number of pauses, and pauses or resumes recorder and loop. If a signal handler interrupts that, it is done again:
        a second message of the same pause has no effect."""
        self._pauses = pauses
        _finish(self._follow_pauses)

    def _follow_pauses(self) -> None:
        paused = self._pauses > 0
        if paused is self._paused:
            return
        try:
            self._begin_change()
            if paused:
                # Before what is entered from here on, which counts as entered when recording was switched off.
                at = clock.now()
                self._want(False)
                self._send_pause(at)
            else:
                if self._pause_sent and self.pipeline is not None:
                    self.pipeline.inbox.put(Resumed(clock.now()), later=True)
                self._want(self.action.records)
                self._pause_sent = False
            self._paused = paused
        finally:
            self._end_change()

    def _send_pause(self, at: int) -> None:
        """Sends the pause to the loop. If the loop is too far behind, the pause is counted, and not drawn."""
        assert self.pipeline is not None
        self._pause_sent = self._pause_sent or not self.pipeline.crowded
        if self._pause_sent:
            self.pipeline.inbox.put(Paused(at), later=True)
        else:
            self.pauses_not_drawn += 1

    def become_inert(self, reason: str) -> None:
        """Makes every further call return at once without effect.

        Its objects are neither touched nor freed: in a forked child, threads of the parent may hold its locks, and its files
        belong to the parent.
        """
        self.live = False
        self.calls = CallSerializer()
        self.state, self.inert_because = "inert", reason
        self.windows.running = None
        self.windows.ends.clear()
        retain_untouched(self.pipeline, self.recorder)
        self.pipeline = self.recorder = None

    def begin(self) -> None:
        """Follows the schedule from the current step on. The run is open: pipeline and recorder are set."""
        self.state = "running"
        self._first_step = self.number
        self.live = True
        try:
            self._begin_change()
            self._planned = ProfilerAction.NONE
            self._want(False)
            planned, at = self._plan(self.number), clock.now()
            if self.live:
                self._apply_detail(self.number, at)
                self._change(planned, WindowEnds(at, True))
            self._deadline = self.windows.deadline
        except BaseException:
            self._retry()
            raise
        finally:
            self._end_change()

    def _retry(self) -> None:
        """A signal handler raised: the next step repeats the change of this one."""
        self._asked, self.next_change = True, self.number

    def end(self, reason: str) -> None:
        """Ends the open window, and with it the armed one."""
        alone, recorded = not self.stepped, self.action is ProfilerAction.RECORD
        if self.windows.cut(self.number, reason, alone=alone, recorded=recorded):
            self._was_last(clock.now())
        try:
            self._set_pauses(0)
            if self.live:
                self.live = False
                self._steps_before += self.number - self._first_step
            if self._window_first is not None and self.action is ProfilerAction.RECORD:
                self._open_steps = self.number - self._window_first
            whole = self.action is ProfilerAction.RECORD_AND_SAVE or self.schedule is always
            self._begin_change()
            self._change(ProfilerAction.NONE, WindowEnds(clock.now(), whole, "" if whole else reason, self.stepped))
            self._want(False)
        finally:
            self.live = False
            self._end_change()
            if self.state != "closed":
                self.state = "stopped"
            self._want(False)  # again: a signal handler may have raised before

    def abandon(self) -> None:
        """Stops recording while another thread is inside of a call that does not return."""
        self._want(False)
        self._end_change()

    def _transition(self, step: int, at: int) -> None:
        """Called by `step()` at a change, at every step if the schedule does not know the next change, and on request."""
        self.call(partial(self._follow, step, at))

    def _follow(self, step: int, at: int) -> None:
        try:
            self._decide(step, at)
            self.carry_out(stepping=True)
        except BaseException:
            self._retry()
            raise
        self.transitions.changed(clock.now() - at)

    def _decide(self, step: int, at: int) -> None:
        self._asked = False
        if self.live:
            due = step >= self.next_change or 0 < self.windows.deadline <= at
            planned = self._plan(step) if due else None
            if self.live:  # else the schedule has closed it
                self._apply_detail(step, at)
                if planned is not None:
                    self._change(planned, WindowEnds(at, True))
            self._deadline = self.windows.deadline
        self._end_change()

    def _step_ignored(self) -> None:
        """`step()` while not running: it is counted, and logged once. Training continues."""
        self.ignored += 1
        if self._asked:
            self.call(partial(self.carry_out, stepping=True))
        if self.ignored == 1:
            because = f" ({self.inert_because})" if self.inert_because else ""
            if self.state == "new":
                when, hint = "before start()", "; use `with trace() as profiler`, or call profiler.start()"
            else:
                when, hint = f"while it is {self.state}{because}", ""
            log.warning("step() of profiler %r %s: ignored, and counted%s", self.name, when, hint)

    def carry_out(self, *, stepping: bool = False) -> None:
        """Makes the changes of backends that are bound to this thread. `step()` calls again while others wait."""
        waiting = False
        for source in self.bound() if self.pipeline is not None and self.pipeline.sources else ():
            source.carry_out(self.action, clock.now(), stepping=stepping and self.live)
            waiting |= source.pending
        self._asked = waiting or self._level is not self._level_wanted

    def bound(self) -> list[BoundSource]:
        """The sources of thread-bound backends."""
        sources = self.pipeline.sources if self.pipeline is not None else []
        return [source for source in sources if isinstance(source, BoundSource)]

    # level of detail

    def request_detail(self, detail: Detail) -> None:
        """Sets the detail level from the next step on. Called on the loop; never waits."""
        self._level_wanted = detail
        self._asked = True

    def _apply_detail(self, step: int, at: int) -> None:
        """Applies the requested level, and the detail of the window that begins or ends, at the begin of a step. The loop waits for
        the message."""
        level, chosen = self._level_wanted, self.windows.detail
        detail = level if chosen is None else chosen.within(level)
        if (level is self._level and detail == self._detail) or self.pipeline is None:
            return
        self._level, self._detail = level, detail
        self.pipeline.inbox.put(DetailChanged(at, step, detail, level))
        for source in self.bound():
            source.set_detail(detail)
        self._want(self.action.records and not self._pauses)

    def _want(self, on: bool) -> None:
        """Switches recording. If only some steps are recorded, the native `step()` switches between them."""
        if self.recorder is None:
            return
        on = on and self.state != "closed"
        self._every = 0
        self.recorder.want(self.serial, on, self._detail.wanted(self.number), waits=self.live)
        if on and self._detail.every > 1:
            self._kinds, self._every = self._detail.kinds, self._detail.every

    def _plan(self, step: int) -> ProfilerAction:
        """The action from this step on: that of schedule and armed windows, but a window that would begin while the loop is too
        far behind is skipped as a whole, and counted. So memory is bounded even if windows begin faster than they are written."""
        assert self.pipeline is not None
        scheduled, self.next_change = self._scheduled(step)
        idle = self.windows.idle  # after `next_change`, which a later window lowers
        ended = None if idle else self.windows.end_before(step, self.action)
        if ended is not None:
            self._planned = ProfilerAction.RECORD_AND_SAVE
            if ended.state != "missed":
                self._was_last(clock.now())
        if idle:
            self.windows.detail = None
        wanted = scheduled if idle else self.windows.action(step, scheduled, self.action)
        before, self._planned = self._planned, wanted
        begins = self._planned.records and before is not ProfilerAction.RECORD
        if begins or not self._planned.records:
            self._skips = self.pipeline.crowded
        self.skipped_windows += begins and self._skips
        return ProfilerAction.NONE if self._skips else self._planned

    def _was_last(self, at: int) -> None:
        """Reports to backends that the step that ends now was the last of an armed window."""
        if self.pipeline is None:
            return
        before, last = ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE
        for source in self.bound():
            source.transition(before, last, at)
        self.pipeline.inbox.put(ActionChanged(before, last, at))
        self.action = last

    def _scheduled(self, step: int) -> tuple[ProfilerAction, int]:
        """The schedule's action, and the step of the next change. A schedule that raises is not asked again; its error is stored."""
        schedule = self.schedule
        if self.schedule_error is not None:
            return ProfilerAction.NONE, NEVER
        try:
            # A check against a protocol costs more than the rest of the change.
            if isinstance(schedule, Schedule):
                action, change = schedule.at(step)
                return action, min(change, NEVER)  # a cycle may be longer than the counter can count
            action = checked_action(schedule(step), step)
            if isinstance(schedule, Unchanging) or isinstance(schedule, PlannedSchedule):
                return action, min(operator.index(schedule.next_change(step)), NEVER)
            return action, step + 1
        except BaseException as error:
            if isinstance(schedule, (Schedule, Unchanging)) or from_signal_handler(error):
                raise
            self.schedule_error = error
            log.error("the schedule failed at step %d, nothing more is recorded: %s", step, error_text(error))
            return ProfilerAction.NONE, NEVER

    def _change(self, after: ProfilerAction, end: WindowEnds) -> None:
        """Changes the current action to `after`. `end` is for the window that this ends, if it does; its time was read after
        `_begin_change()`. Calls `_end_change`.

        Recording is switched, and the loop gets its messages, before backends are called, which may be slow. If a signal
        handler interrupts that, it is done again before its exception propagates: a second message has no effect.
        """
        _finish(partial(self._send_change, self.action, after, end))

    def _send_change(self, before: ProfilerAction, after: ProfilerAction, end: WindowEnds) -> None:
        self.action = after
        pipeline, at = self.pipeline, end.at
        assert pipeline is not None
        saved = before is ProfilerAction.RECORD_AND_SAVE
        ends = before.records and (saved or not after.records)
        begins = after.records and (ends or not before.records)
        if ends:
            self._end_window(before, after, end)
        # A window that follows another one begins where that ends, so that no event of another thread is between them. But the
        # time of backends that are bound to this thread is in neither window.
        follows = ends and begins and not any(source.backend.thread_bound for source in pipeline.sources)
        if not follows:
            self._end_change()
        if before is after and not ends:
            return
        for source in pipeline.sources:
            if source.backend.thread_bound:
                source.transition(before, after, at)
        if begins and self.state != "closed":
            try:
                self._begin_change()
                self._want(not self._pauses)  # before the mark, so that open spans reach back to the window's begin
                at, track, parent = self._mark(at if follows else 0)
                mark = StepMark(at, self.number, track, parent)
                armed = None if self.windows.running is None else self.windows.running.facts()
                pipeline.inbox.put(WindowBegins(mark, armed), later=True)
                if self._pauses and not self._pause_sent:
                    self._send_pause(at)
                self.windows_begun += 1
                self._window_first = self.number
            finally:
                self._end_change()
        if pipeline.sources:
            follows = any(not source.backend.thread_bound for source in pipeline.sources)
            pipeline.inbox.put(ActionChanged(before, after, at), later=not follows)

    def _end_window(self, before: ProfilerAction, after: ProfilerAction, end: WindowEnds) -> None:
        assert self.pipeline is not None
        saved = before is ProfilerAction.RECORD_AND_SAVE
        if not saved and end.complete and self.live:
            reason = f"the schedule went from RECORD to {after.name} without RECORD_AND_SAVE"
            end = msgspec.structs.replace(end, complete=False, reason=reason)
        self._want(after.records and not self._pauses)
        end = msgspec.structs.replace(end, needs_last=saved and self.schedule is not always)
        self.pipeline.inbox.put(self.windows.completed(end), later=True)
        if self._window_first is not None:
            self._recorded_steps += self.number - self._window_first
            self._window_first = None
