"""The request for a window: which steps of a running loop to record."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.requests.window_detail import WindowDetail
from stepscope.runtime.schedule.schedule import NEVER
from stepscope.runtime.settings.checked import Checked

MAX_RUN_ID = 80
"""Characters of a run id."""

MAX_STEP = (1 << 53) - 1
"""The largest step number: many programs that read JSON do not support larger numbers."""

StepNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_STEP)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
Stage = Annotated[str, msgspec.Meta(max_length=80)]
RunId = Annotated[str, msgspec.Meta(max_length=MAX_RUN_ID, pattern=r"^[A-Za-z0-9._@:+-]*$")]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class WindowRequest(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A window to record, in addition to those of the profiler's schedule. Steps are numbered as `step_num`: from 0.

    Set its length by one of the fields `steps`, `stop_step` and `seconds`.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    start_step: StepNumber | Literal["next"] = "next"
    """Its first step. `next`: the first possible step."""
    steps: Count | None = None
    """Number of steps."""
    stop_step: StepNumber | None = None
    """Its last step, inclusive."""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=86400)] | None = None
    """Duration: it ends with the first step that ends so many seconds after its begin."""
    ranks: tuple[Rank, ...] | None = None
    """The ranks that record; `None` for all."""
    run_id: RunId = ""
    """Identifies the request: only with another one, the same steps are recorded again."""
    warmup: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """Steps before the first in which backends warm up; fewer if the window begins sooner."""
    granularity: Count = 1
    """The window is made of whole groups of so many steps: it begins with the group of its start and ends with that of its end."""
    group_start: StepNumber = 0
    """Number of the first step of a group, such as 1 where steps count from 1."""
    past: Literal["refuse", "clip"] = "refuse"
    """If the first step has begun already: record nothing, or the rest of the window."""
    overlap: Literal["refuse", "queue"] = "refuse"
    """If another window has some of its steps: refuse, or begin when that has ended. A window of seconds is not waited for."""
    stage: Stage = ""
    """Records only in the stage of this name, such as `fit`, if profilers follow each other; empty for any stage."""
    detail: WindowDetail | None = None
    """Level of detail; default: as set by the program. A detail that the profiler does not support is refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = {name: getattr(self, name) for name in ("steps", "stop_step", "seconds")}
        present = [name for name, value in lengths.items() if value is not None]
        if len(present) != 1:
            found = " and ".join(f"{name}={lengths[name]!r}" for name in present) or "none of them"
            raise ValueError(f"WindowRequest takes one of steps, stop_step and seconds, got {found}")
        if self.stop_step is not None:
            if self.start_step == "next":
                raise ValueError(
                    f"WindowRequest.stop_step is {self.stop_step}, and start_step is 'next': give steps=... instead"
                )
            if self.stop_step < self.start_step:
                raise ValueError(
                    f"WindowRequest.stop_step is {self.stop_step}, before start_step {self.start_step}: it is the last "
                    f"step that is recorded, so {self.start_step} at least"
                )
        if self.ranks is not None and not self.ranks:
            raise ValueError("WindowRequest.ranks is empty: name one rank at least, or leave it out for all")

    def wants(self, rank: int | None) -> bool:
        """Whether a process of this rank must record. A process without a rank counts as rank 0."""
        return self.ranks is None or (rank or 0) in self.ranks

    @property
    def length(self) -> int | None:
        """Number of steps before rounding; `None` if its length is in seconds."""
        if self.stop_step is not None and self.start_step != "next":
            return self.stop_step - self.start_step + 1
        return self.steps

    def rounded(self, ahead: int) -> tuple[int, int]:
        """Returns first and last step, rounded to the granularity; the last is `NEVER` if the length is in seconds. `ahead` is
        the first step that can still be recorded."""
        if self.start_step == "next":
            start = first = self.group_from(ahead)
        else:
            start = self.start_step
            first = max(self.group_from(start - self.granularity + 1), 0)
        if self.length is None:
            return first, NEVER
        return first, self.group_from(start + self.length) - 1

    def group_from(self, step: int) -> int:
        """Returns the first step, from this one on, that begins a group."""
        return self.group_start - (self.group_start - step) // self.granularity * self.granularity

    def text(self) -> str:
        """Returns the request as text: `steps 10-12`."""
        if self.start_step == "next":
            first = "from the next step on"
        else:
            first = f"from step {self.start_step} on"
        if self.seconds is not None:
            return f"{self.seconds:g} s {first}"
        if self.stop_step is not None:
            return f"steps {self.start_step}-{self.stop_step}"
        return f"{human_count(self.steps or 0, 'step')} {first}"
