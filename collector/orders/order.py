"""Orders of operators to running processes, and the answers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.window_request import RunId, Stage

MAX_RANKS_TEXT = 1 << 16
"""Characters of a list of ranks: any ranks of 10,000 fit."""
Name = Annotated[str, msgspec.Meta(max_length=255)]


class WindowOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command for the connected processes of one job. The fields from `start_step` on are those of `WindowRequest`."""

    command: Literal["arm", "extend", "abort", "status"] = "arm"
    name: Name = ""
    """Name of the runs that are meant; needed if runs of several names are connected."""
    job: Name = ""
    """The job that is meant, as `/v1/jobs` has it; needed where several are connected."""
    patience: Annotated[float, msgspec.Meta(gt=0, le=60)] = 10.0
    """Seconds that a process has to answer."""
    start_step: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] | Literal["next"] = "next"
    steps: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)] | None = None
    stop_step: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0, le=86400)] | None = None
    ranks: Annotated[str, msgspec.Meta(max_length=MAX_RANKS_TEXT)] | None = None
    """Ranks such as `0,3-5`; all if it is left out."""
    run_id: RunId = ""
    warmup: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 0
    granularity: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)] = 1
    past: Literal["refuse", "clip"] = "refuse"
    overlap: Literal["refuse", "queue"] = "refuse"
    stage: Stage = ""
    """Stage such as `fit`; the order is for processes in this stage only."""
    detail: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    """Detail such as `stacks,memory=off`; if it is left out, that of the programs."""


class OrderedRank(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one process."""

    id: str
    """The rank's id, as in `/v1/ranks`."""
    rank: int | None
    host: str
    pid: int
    step: int | None
    """Number of its current step, if it has sent it."""
    stage: str = ""
    """The stage of its training, such as `fit`; empty if the process names none."""
    obeys: bool
    """Whether it follows the order."""
    text: str
    """A sentence: the effect, or why there is none."""
    armed: Armed | None = None
    windows: tuple[ArmedStatus, ...] = ()


class OrderResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an order."""

    outcome: Literal["done", "partly", "refused"]
    """`partly`: some processes do not do what the others do."""
    reason: str = ""
    """The reason for a refusal, or a remark."""
    first: int | None = None
    """The first recorded step, the same on all ranks."""
    last: int | None = None
    ranks: list[OrderedRank]
