"""The plan of a schedule: which steps of a loop it records, shown before the loop runs; and why a run recorded less than that."""

from __future__ import annotations

from html import escape
from itertools import pairwise

import msgspec

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import ScheduleError
from stepscope.runtime.schedule.action import ProfilerAction, checked_action, step_text
from stepscope.runtime.schedule.schedule import (
    NEVER,
    PlannedSchedule,
    Schedule,
    ScheduleFunction,
    Unchanging,
    always,
    never,
)
from stepscope.runtime.settings.arguments import number_argument

_ROWS_SHOWN = 40
_LINE_SHOWN = 100
_HOW_TO_STEP = "call step() at the end of each iteration"


class Run(msgspec.Struct, frozen=True):
    """Consecutive steps with one purpose."""

    first: int
    """Number of the first step, 0-based."""
    last: int
    """Number of the last step."""
    action: ProfilerAction
    """NONE or WARMUP; RECORD for a window that has no end, RECORD_AND_SAVE for one that has."""

    @property
    def line(self) -> str:
        """One symbol for each step."""
        steps = self.last - self.first + 1
        if self.action is ProfilerAction.RECORD_AND_SAVE:
            return "R" * (steps - 1) + "S"
        return self.action.symbol * steps


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The actions of a schedule in a loop of `steps` steps."""

    schedule: str
    """The schedule, as it is written in code."""
    first: int
    """Number of the first step."""
    steps: int
    """Length of the loop."""
    finished: bool
    """Whether the schedule is known to record nothing after the loop's last step."""
    runs: tuple[Run, ...]
    diagnostics: tuple[str, ...]
    """Likely mistakes, a sentence each, with what to do."""

    @property
    def line(self) -> str:
        """One symbol for each step: `-` nothing, `W` warm-up, `R` record, `S` record and end the window."""
        return "".join(run.line for run in self.runs)

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Numbers of the first and last step of each window, one without an end included."""
        return [(run.first, run.last) for run in self.runs if run.action.records]

    def __str__(self) -> str:
        line = self.line
        shown = line if len(line) <= _LINE_SHOWN else line[:_LINE_SHOWN] + "..."
        windows = len(self.windows)
        rows = [f"{self.schedule}: {human_count(self.steps, 'step')}, {human_count(windows, 'window')}", f"  {shown}"]
        named = [
            (step_text(run.first, run.last), purpose) for run, purpose in zip(self.runs, self._purposes(), strict=True)
        ]
        width = max((len(name) for name, _ in named[:_ROWS_SHOWN]), default=0)
        rows += [f"  {name:<{width}}  {purpose}" for name, purpose in named[:_ROWS_SHOWN]]
        if len(named) > _ROWS_SHOWN:
            rows.append(f"  and {len(named) - _ROWS_SHOWN} more rows")
        rows += [f"  ! {sentence}" for sentence in self.diagnostics]
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return f"<pre>{escape(str(self))}</pre>"

    def _purposes(self) -> list[str]:
        purposes: list[str] = []
        window = 0
        for run in self.runs:
            if run.action.records:
                ending = "" if run.action is ProfilerAction.RECORD_AND_SAVE else ", without an end"
                purposes.append(f"record, window {window}{ending}")
                window += 1
            else:
                purposes.append("warm up" if run.action is ProfilerAction.WARMUP else "wait")
        if self.finished and not self.runs[-1].action.records:
            purposes[-1] = "off, no more windows"
        return purposes


def plan_of(schedule: ScheduleFunction, steps: int, *, first: int = 0) -> Plan:
    """Makes the plan of a schedule.

    Args:
        schedule: a `Schedule`, or any callable, which is called once for each step, in order.
        steps: length of the loop.
        first: number of its first step.

    Raises:
        TypeError: if `steps` or `first` is no whole number.
        ScheduleError: if one of them is negative, or the callable returned something unknown.
    """
    for name, value in (("steps", steps), ("first", first)):
        number_argument(name, value, whole=True)
        if value < 0:
            raise ScheduleError(f"{name} must be 0 or more, got {value}")
    planned = schedule if isinstance(schedule, PlannedSchedule) else None
    runs = _runs(schedule, planned, first, first + steps)
    recorded = sum(run.last - run.first + 1 for run in runs if run.action.records)
    unfinished = runs[-1] if runs and runs[-1].action is ProfilerAction.RECORD else None
    open_steps = unfinished.last - unfinished.first + 1 if unfinished else 0
    return Plan(
        schedule=schedule_text(schedule),
        first=first,
        steps=steps,
        finished=planned is not None and steps > 0 and planned.next_change(first + steps - 1) == NEVER,
        runs=tuple(runs),
        diagnostics=(
            *_no_warmup(schedule, recorded),
            *_abandoned(runs),
            *(explain(schedule, steps, first=first, recorded=recorded, open_steps=open_steps) if steps else ()),
        ),
    )


def _runs(schedule: ScheduleFunction, planned: PlannedSchedule | None, first: int, end: int) -> list[Run]:
    """Groups the steps from `first` up to `end`; a window is one run, from its first RECORD to its end."""
    runs: list[Run] = []
    step = first
    while step < end:
        action = checked_action(schedule(step), step)
        change = min(planned.next_change(step) if planned else step + 1, end)
        previous = runs[-1] if runs else None
        continues = previous is not None and (
            previous.action is ProfilerAction.RECORD if action.records else previous.action is action
        )
        if previous is not None and continues:
            runs[-1] = Run(previous.first, change - 1, action)
        else:
            runs.append(Run(step, change - 1, action))
        step = change
    return runs


def _no_warmup(schedule: ScheduleFunction, recorded: int) -> tuple[str, ...]:
    if not isinstance(schedule, Schedule) or schedule.warmup or not recorded:
        return ()
    return ("no warmup: with warmup=0 the first step of each window also pays for switching the recording on",)


def _abandoned(runs: list[Run]) -> tuple[str, ...]:
    endless = [a for a, b in pairwise(runs) if a.action is ProfilerAction.RECORD and not b.action.records]
    if not endless:
        return ()
    which = step_text(endless[0].first, endless[0].last)
    text = f"window incomplete: {human_count(len(endless), 'window')} without RECORD_AND_SAVE, the first one {which}"
    return (f"{text}; return RECORD_AND_SAVE for the last step of each",)


def explain(
    schedule: ScheduleFunction, steps: int, *, recorded: int, open_steps: int = 0, first: int = 0
) -> tuple[str, ...]:
    """Explains why an ended run has recorded nothing, or less than its schedule wanted. A user's schedule is not called.

    Args:
        schedule: the run's schedule.
        steps: number of calls of `step()`.
        recorded: number of recorded steps.
        open_steps: number of these in a window that was open when the run ended.
        first: number of the first step.

    Returns:
        A sentence for each finding, which begins with the name of the finding and a colon.
    """
    if schedule is always:
        return ()  # it records everything, so nothing can be missing
    if schedule is never:
        if recorded:
            return (_incomplete(open_steps),) if open_steps else ()
        return ("no step records: the profiler records only windows that are asked for, and none was recorded",)
    if steps == 0:
        return (_never_stepped(schedule, first),)
    if not isinstance(schedule, Schedule):
        if not recorded:
            return (f"no step records: {schedule_text(schedule)} recorded none of the {human_count(steps, 'step')}",)
        return (_incomplete(open_steps),) if open_steps else ()
    if not recorded:
        return _too_short(schedule, first, steps)
    sentences: list[str] = []
    ended = first + steps
    if open_steps:
        # The window that is open at the step before `ended` ends with the cycle of that step.
        rest = schedule.cycle - (ended - 1 - schedule.origin) % schedule.cycle - 1
        sentences.append(_incomplete(open_steps) + f"; run {human_count(steps + rest, 'step')} for a whole window")
        ended += rest
    if schedule.repeat and ended < schedule.end:
        missing = -(-(schedule.end - ended) // schedule.cycle)
        sentences.append(
            f"windows missing: {missing} of the {schedule.repeat} that repeat={schedule.repeat} asks for; "
            f"run {human_count(schedule.end - first, 'step')} for all of them"
        )
    return tuple(sentences)


def schedule_text(schedule: ScheduleFunction) -> str:
    """Returns a schedule as it is written in code, or the name of the callable, for a message."""
    if isinstance(schedule, Schedule | Unchanging):
        return repr(schedule)
    name = getattr(schedule, "__qualname__", None)
    return name if isinstance(name, str) else type(schedule).__qualname__


def _never_stepped(schedule: ScheduleFunction, first: int) -> str:
    text = "never stepped: step() was never called, so the whole run is one step"
    if isinstance(schedule, Schedule) and not schedule(first).records:
        text += f", {step_text(first)}, which {schedule_text(schedule)} does not record"
    return f"{text}; {_HOW_TO_STEP}"


def _too_short(schedule: Schedule, first: int, steps: int) -> tuple[str, ...]:
    begins = schedule.next_record(first)
    if begins == NEVER:
        return (f"no step records: the last window of {schedule!r} ended before {step_text(first)}",)
    if begins < first + steps:
        return ()  # a pause or stop() is the reason, which is reported elsewhere
    loop = f"the loop of {human_count(steps, 'step')}"
    needed = f"run {human_count(begins - first + 1, 'step')} or more"
    if first:
        start = f"{loop} from {step_text(first)} on"
        return (f"no step records: {start} ends before {step_text(begins)} is recorded; {needed}",)
    waits = ["skip_first", "warmup"] if schedule.skip_first_wait else ["skip_first", "wait", "warmup"]
    names = [name for name in waits if getattr(schedule, name)]
    relation = "as long as" if steps == begins else "shorter than"
    return (f"no step records: {loop} is {relation} {'+'.join(names)}={begins}; lower these, or {needed}",)


def _incomplete(open_steps: int) -> str:
    which = "its one step is" if open_steps == 1 else f"its {open_steps} steps are"
    return f"window incomplete: the loop ends inside a window; {which} delivered, marked as incomplete"
