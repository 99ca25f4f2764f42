"""What is asked for when a window is armed: which steps of a running loop are to be recorded."""

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
"""The last number that a step can have: JSON has larger numbers, and many programs that read it have not."""

StepNumber = Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_STEP)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]
Stage = Annotated[str, msgspec.Meta(max_length=80)]
RunId = Annotated[str, msgspec.Meta(max_length=MAX_RUN_ID, pattern=r"^[A-Za-z0-9._@:+-]*$")]
Rank = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class WindowRequest(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A window to be recorded, on top of what the profiler's schedule records. Steps are numbered as `step_num`: from 0.

    How long it is one of three fields says: `steps`, `stop_step` or `seconds`.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    start_step: StepNumber | Literal["next"] = "next"
    """Its first step. `next`: the first that still can be."""
    steps: Count | None = None
    """How many steps it has."""
    stop_step: StepNumber | None = None
    """Its last step, which is recorded, too."""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=86400)] | None = None
    """How long it lasts: it ends with the first step that ends so long after its begin."""
    ranks: tuple[Rank, ...] | None = None
    """The ranks that record; `None` for all."""
    run_id: RunId = ""
    """Tells requests apart that are the same otherwise: the same steps are recorded again only for another one."""
    warmup: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    """Steps before the first that backends warm up in, as far as there are still so many."""
    granularity: Count = 1
    """The window is made of whole groups of so many steps: its start is rounded down to a multiple, its end up."""
    past: Literal["refuse", "clip"] = "refuse"
    """What happens if the first step has begun already: nothing is recorded, or what is left of the window."""
    overlap: Literal["refuse", "queue"] = "refuse"
    """What happens if another window is recorded in some of its steps: it is refused, or begins when that has ended."""
    stage: Stage = ""
    """Only in the stage of this name, such as `fit`, of profilers that follow each other; empty for whichever it is."""
    detail: WindowDetail | None = None
    """How much it has; default: as much as the program has set. What the profiler cannot do is refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = {name: getattr(self, name) for name in ("steps", "stop_step", "seconds")}
        given = [name for name, value in lengths.items() if value is not None]
        if len(given) != 1:
            found = " and ".join(f"{name}={lengths[name]!r}" for name in given) or "none of them"
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
        """Whether a process of this rank is to record; one without a rank counts as rank 0."""
        return self.ranks is None or (rank or 0) in self.ranks

    @property
    def length(self) -> int | None:
        """Steps that it has before it is rounded; `None` if it is measured in seconds."""
        if self.stop_step is not None and self.start_step != "next":
            return self.stop_step - self.start_step + 1
        return self.steps

    def rounded(self, ahead: int) -> tuple[int, int]:
        """First and last step, rounded to the granularity; the last is `NEVER` for a window of seconds.

        Args:
            ahead: the first step that still can be recorded.
        """
        group = self.granularity
        if self.start_step == "next":
            first = -(-ahead // group) * group
            start = first
        else:
            start = self.start_step
            first = start // group * group
        if self.length is None:
            return first, NEVER
        return first, -(-(start + self.length) // group) * group - 1

    def text(self) -> str:
        """The request in a few words: `steps 10-12`."""
        if self.start_step == "next":
            first = "from the next step on"
        else:
            first = f"from step {self.start_step} on"
        if self.seconds is not None:
            return f"{self.seconds:g} s {first}"
        if self.stop_step is not None:
            return f"steps {self.start_step}-{self.stop_step}"
        return f"{human_count(self.steps or 0, 'step')} {first}"
