"""`schedule`, which is stepscope's with MindSpore's defaults, and `tensorboard_trace_handler`, which has products made of each window."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepscope.runtime.schedule import schedule as ours
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import check_names, suggesting

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


class TraceHandler:
    """Chooses the directory of each window's products, and who waits for them. Calling it makes another one.

    A handler belongs to the profiler that it is given to; MindSpore keeps the directory for the process.

    Args:
        dir_name: directory below which every window gets one of its own. Default: that of the profiler.
        worker_name: how their names begin. Default: the name of the host.
        analyse_flag: False keeps the raw data and makes no products; `Profiler.offline_analyse` makes them later.
        async_mode: True lets the end of profiling not wait for the products.

    Raises:
        TypeError: naming the argument, its value and the type that it should have.
        ValueError: if the worker's name cannot be part of a file's name.
    """

    @suggesting
    def __init__(
        self,
        dir_name: str | os.PathLike[str] | None = None,
        worker_name: str | None = None,
        analyse_flag: bool = True,
        async_mode: bool = False,
    ) -> None:
        if dir_name is not None and not isinstance(dir_name, str | os.PathLike):
            raise TypeError(f"dir_name must be a path, {got(dir_name)}")
        if worker_name is not None and not isinstance(worker_name, str):
            raise TypeError(f"worker_name must be a str, {got(worker_name)}")
        if worker_name is not None and not re.fullmatch(r"[^/\\\0]+", worker_name):
            raise ValueError(f"worker_name must be a part of a file's name, got {worker_name!r}")
        for name, value in (("analyse_flag", analyse_flag), ("async_mode", async_mode)):
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be a bool, {got(value)}")
        self.dir_name = None if dir_name is None else os.fspath(dir_name)
        self.worker_name = worker_name
        self.analyse_flag = analyse_flag
        self.async_mode = async_mode

    @suggesting
    def __call__(
        self,
        dir_name: str | os.PathLike[str] | None = None,
        worker_name: str | None = None,
        analyse_flag: bool = True,
        async_mode: bool = False,
    ) -> TraceHandler:
        """Makes another handler with these arguments, see the class."""
        return TraceHandler(dir_name, worker_name, analyse_flag, async_mode)


tensorboard_trace_handler: Final = TraceHandler()
"""Called as in MindSpore 2.4 and later, `tensorboard_trace_handler(dir_name)`; a handler itself, too."""

tensor_board_trace_handler: Final = tensorboard_trace_handler
"""The name of earlier versions, given without being called: `on_trace_ready=tensor_board_trace_handler`."""
