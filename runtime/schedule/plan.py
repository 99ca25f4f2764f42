"""The plan of a schedule: which steps of a loop it records, shown before the loop runs."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import ScheduleError
from stepscope.runtime.schedule.action import ProfilerAction, checked_action, step_text
from stepscope.runtime.schedule.diagnostics import explain, schedule_text
from stepscope.runtime.schedule.schedule import NEVER, PlannedSchedule, Schedule, ScheduleFunction
from stepscope.runtime.settings.arguments import number_argument

_ROWS_SHOWN = 40
_LINE_SHOWN = 100


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
