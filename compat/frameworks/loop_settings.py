"""Settings that all framework callbacks share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypedDict

import msgspec

from stepscope.backends.base import Backend
from stepscope.build import trace
from stepscope.exporters.base import Exporter
from stepscope.exporters.tensorboard import tensorboard_trace_handler
from stepscope.runtime.control.entry_points.environment import options_from_environment
from stepscope.runtime.control.settings import Control
from stepscope.runtime.flight.settings import FlightRecorder
from stepscope.runtime.lifecycle.output_directory import Output
from stepscope.runtime.options import Options
from stepscope.runtime.overhead.budget import OverheadBudget
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.schedule.schedule import ScheduleFunction, schedule
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked
from stepscope.runtime.settings.validation import did_you_mean

ExporterFactory = Callable[[Path], Exporter]
"""Makes an exporter for the directory of one run of one rank. A function of a module, so that it can be pickled."""

DEFAULT = schedule(wait=1, warmup=1, active=25, repeat=1)
"""One window, of as many steps as a verdict needs. A callback that was added and forgotten costs nothing afterwards."""


Unit = Literal["step", "epoch"]


class LoopArguments(TypedDict, total=False):
    """The fields of `LoopSettings`, as keywords of every callback."""

    schedule: ScheduleFunction | None
    unit: Unit
    output_dir: str | None
    name: str
    ranks: Sequence[int] | None
    tensorboard: bool
    backends: Sequence[Backend] | None
    exporters: Sequence[Exporter | ExporterFactory]
    on_trace_ready: Callable[..., Any] | Exporter | None
    keep_last: int | FlightRecorder | None
    metadata: Mapping[str, Any] | None
    overhead_budget: float | OverheadBudget | None
    options: Options | None
    control: str | os.PathLike[str] | Control | None


class LoopSettings(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a framework's loop: the steps, the sources and the outputs.

    Raises:
        TypeError, ValueError: naming the field, the value and what it should be, when it is made and not in training.
    """

    __keywords__ = True
    __unchecked__: ClassVar[tuple[str, ...]] = (
        "schedule",
        "backends",
        "exporters",
        "on_trace_ready",
        "keep_last",
        "metadata",
        "overhead_budget",
        "options",
        "control",
    )

    schedule: Any = DEFAULT
    """Which steps are recorded, counted from 0 over the whole training; `None` for all. By default, one step is left
    out, one warms up, 25 are recorded, from where the first training begins, which may be resumed; a schedule that is equal counts as this one. With `keep_last` it is not
    used; with `control`, nothing is recorded by default or with `None` but what is asked for."""
    unit: Unit = "step"
    """The unit that the schedule counts. Of frameworks that report only whole epochs, nothing finer can be had."""
    output_dir: str | None = None
    """Each run gets a directory in it, named for its stage (`fit`, `validate`, ...). Default: the directory where the
    framework writes its logs; `stepscope_runs` if it has none."""
    name: str = "stepscope"
    """Name of the run, in reports and outputs."""
    ranks: tuple[int, ...] | None = None
    """Ranks that record; `None` for all. A process that has no rank counts as rank 0."""
    tensorboard: bool = True
    """True if a file for TensorBoard is written for each window, to `tensorboard` beside the run."""
    backends: Any = None
    """Sources beside spans. Default: operators of torch, where the framework runs on torch."""
    exporters: Any = ()
    """Further outputs: exporters, and functions that make one of a directory, such as
    `tensorboard_trace_handler`. An exporter is closed when its run ends, so of training and a test that follow each
    other only the first has it; a function is asked for each run."""
    on_trace_ready: Any = None
    """Called with each finished `Window`, off the training thread."""
    keep_last: Any = None
    """Instead of the schedule: a flight recorder, as in `trace`."""
    metadata: Any = None
    """Facts for every output."""
    overhead_budget: Any = None
    """The share of the time that recording may cost, as in `trace`."""
    options: Any = None
    """A `stepscope.Options`, as in `trace`."""
    control: Any = None
    """As in `trace`: by which ways an operator can ask for windows while a run goes on. Each run of the callback listens
    from its begin to its end."""

    def __post_init__(self) -> None:
        if isinstance(self.ranks, list):
            msgspec.structs.force_setattr(self, "ranks", tuple(self.ranks))
        if not self.is_default and self.keep_last is not None and self.schedule is not None:
            raise ValueError("keep_last records at all times, so it takes no schedule; leave one out")
        super().__post_init__()
        if self.ranks is not None and min(self.ranks, default=0) < 0:
            raise ValueError(f"ranks must be whole numbers from 0, got {min(self.ranks)}")
        value: object = self.exporters
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise TypeError(f"exporters must be a list, {got(value)}; write exporters=[...]")
        for item in self.exporters:
            if isinstance(item, type) or not (isinstance(item, Exporter) or callable(item)):
                raise TypeError(f"{item!r} is neither an exporter nor a function that makes one of a directory")
        self.build()  # trace() checks the rest now

    @classmethod
    def of(cls, arguments: Mapping[str, Any], also: Mapping[str, tuple[str, Any]] | None = None) -> LoopSettings:
        """Settings of keywords.

        Args:
            arguments: by name.
            also: settings under names that users of the framework know: name of the field and value, by their name.
                `None` is no value.

        Raises:
            TypeError: for one that does not exist; names the nearest that does.
            ValueError: for one that is given under two names.
        """
        settings = dict(arguments)
        for theirs, (name, value) in (also or {}).items():
            if value is not None and name in settings:
                raise ValueError(f"{name} and {theirs} say the same; give one of them")
            if value is not None:
                settings[name] = value
        fields = cls.__struct_fields__
        for name in settings:
            if name not in fields:
                raise TypeError(f"unknown setting {name!r}{did_you_mean(name, fields)}")
        return cls(**settings)

    def build(
        self,
        output: Output | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        backends: Sequence[Backend] = (),
        instances: bool = True,
        first: int = 0,
    ) -> Profiler:
        """Makes the profiler of one run, of the environment's rank unless that is given.

        Args:
            output: directory of the run, all ranks; `None` for a new one.
            rank, world_size: of this process.
            backends: what records if the user has not chosen.
            instances: whether exporters that were given ready-made take part.
            first: the step from which the schedule counts.
        """
        exporters: list[Exporter] = []
        directory = None if output is None else output.path
        own = None if directory is None else directory if rank is None else directory / f"rank{rank}"
        for item in self.exporters:
            if isinstance(item, Exporter):
                if instances:
                    exporters.append(item)
            elif own is not None:
                exporters.append(item(own))
        if self.tensorboard and directory is not None:
            exporters.append(tensorboard_trace_handler(directory / "tensorboard"))
        ready = self.on_trace_ready
        unused = self.keep_last is not None or (self.is_default and self._is_controlled())
        steps = self.schedule
        if first:
            steps = msgspec.structs.replace(steps, skip_first=steps.skip_first + first)
        return trace(
            schedule=None if unused else steps,
            keep_last=self.keep_last,
            backends=backends if self.backends is None else self.backends,
            exporters=exporters,
            on_trace_ready=None if isinstance(ready, Exporter) and not instances else ready,
            name=self.name,
            output_dir=output,
            metadata=self.metadata,
            rank=rank,
            world_size=world_size,
            overhead_budget=self.overhead_budget,
            options=self.options,
            control=self.control,
            fixed=("output_dir",),
        )

    @property
    def is_default(self) -> bool:
        """True if no schedule was chosen, or the default one; also of a copy that was sent to another process."""
        return bool(self.schedule == DEFAULT)

    def _is_controlled(self) -> bool:
        """Whether windows can be requested."""
        options = options_from_environment()
        return self.control is not None or (options is not None and options.control is not None)

    @property
    def ready_made(self) -> list[str]:
        """Names of the exporters that serve one run only."""
        return [item.name for item in (*self.exporters, self.on_trace_ready) if isinstance(item, Exporter)]
