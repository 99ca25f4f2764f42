"""Schedules that count the batches of each epoch, as Composer's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.schedule import schedule

BatchSchedule = Callable[[Any], object]
"""A function of Composer's state at the begin of a batch that returns an action, ours or Composer's."""


def cyclic_schedule(
    skip_first: int = 0, wait: int = 0, warmup: int = 1, active: int = 4, repeat: int = 1
) -> Callable[[Any], ProfilerAction]:
    """A schedule that begins anew in every epoch, with the arguments of `composer.profiler.cyclic_schedule`.

    The last batch of an epoch ends the window, however long it is. In the epoch in which a training is resumed, the
    first cycle begins `skip_first` batches after that.

    Args:
        skip_first: batches of each epoch before the first cycle.
        wait: batches at the beginning of each cycle that do nothing.
        warmup: batches after these that record and throw away.
        active: batches after these that are recorded: one window. At least 1.
        repeat: cycles in each epoch; 0 for no limit.

    Raises:
        TypeError: if a value is not an integer.
        ScheduleError: if a value is out of its range. A `ValueError`.
    """
    cycle = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    if isinstance(skip_first, bool) or not isinstance(skip_first, int) or skip_first < 0:
        schedule(wait=0, warmup=0, active=1, skip_first=skip_first)  # says what is wrong with it

    def action(state: Any) -> ProfilerAction:
        batch = int(state.timestamp.batch_in_epoch)
        resumed = 0 if state.profiler is None else int(state.profiler.resumption_batch_idx)
        position = batch - skip_first - resumed
        found = cycle(position) if position >= 0 else ProfilerAction.NONE
        length = state.dataloader_len
        if found is ProfilerAction.RECORD and length is not None and batch == int(length) - 1:
            return ProfilerAction.RECORD_AND_SAVE
        return found

    return action


_NAMES = {
    "SKIP": ProfilerAction.NONE,
    "WARMUP": ProfilerAction.WARMUP,
    "ACTIVE": ProfilerAction.RECORD,
    "ACTIVE_AND_SAVE": ProfilerAction.RECORD_AND_SAVE,
}


def our_action(action: object) -> object:
    """Converts Composer's actions to ours. Other values stay, for the profiler to judge."""
    name = getattr(action, "name", "")
    return _NAMES.get(name, action) if isinstance(name, str) else action
