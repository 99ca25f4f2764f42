"""Explains why a run recorded nothing, or less than its schedule wanted."""

from __future__ import annotations

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.schedule.action import step_text
from stepscope.runtime.schedule.schedule import NEVER, Always, Never, Schedule, ScheduleFunction

_HOW_TO_STEP = "call step() at the end of each iteration"


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
    if isinstance(schedule, Always):
        return ()  # it records everything, so nothing can be missing
    if isinstance(schedule, Never):
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
    if isinstance(schedule, Schedule | Always | Never):
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
