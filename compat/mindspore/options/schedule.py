"""MindSpore's schedule: the one of stepscope, with MindSpore's defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.runtime.schedule import schedule as ours
from stepscope.runtime.settings.validation import check_names

if TYPE_CHECKING:
    _Suggesting = msgspec.StructMeta
else:

    class _Suggesting(msgspec.StructMeta):
        """The message about an unknown argument suggests a similar name."""

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            check_names("schedule", kwargs, cls.__struct_fields__)
            return super().__call__(*args, **kwargs)


class Schedule(ours.Schedule, metaclass=_Suggesting, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which steps are recorded; called with a step's number, 0 for the first.

    It has the arguments of `mindspore.profiler.schedule`. Wrong values raise; MindSpore replaces them by others.

    Args:
        wait: steps at the beginning of each cycle that do nothing.
        active: steps that are recorded: one window. At least 1.
        warmup: steps between these that record and throw away.
        repeat: number of cycles; 0 for no limit.
        skip_first: steps before the first cycle.

    Raises:
        TypeError: if a value is no whole number.
        ScheduleError: if a value is out of its range. A `ValueError`.
    """

    warmup: int = 0

    def to_dict(self) -> dict[str, int]:
        """The arguments by name, as in MindSpore's `profiler_info`."""
        fields = msgspec.structs.asdict(self)
        return {name: int(fields[name]) for name in ("wait", "active", "warmup", "repeat", "skip_first")}


schedule = Schedule
"""MindSpore's name of the class."""
