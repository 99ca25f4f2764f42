"""What the training thread and the backends tell a pipeline, through its inbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from stepscope.runtime.events.record import Block
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import Detail
from stepscope.runtime.threads.one_shot import OneShot
from stepscope.runtime.windows.borders import WindowBegins, WindowEnds


class Delivery(msgspec.Struct, frozen=True):
    """A block from a backend."""

    source: str
    events: Block
    args: bytes
    launched_before: int | None = None
    """The block belongs to the window that ends at this time, or that it lies in, whenever the device did what is in it."""

    @property
    def nbytes(self) -> int:
        """What it takes in the inbox."""
        return int(self.events.nbytes) + len(self.args)


class Watermark(msgspec.Struct, frozen=True):
    """A backend has delivered everything that began before `at`."""

    source: str
    at: int


class Dropped(msgspec.Struct, frozen=True):
    """A backend, or the inbox on its behalf, lost events."""

    source: str
    reason: str
    count: int
    at: int


class Missing(msgspec.Struct, frozen=True):
    """A backend has nothing of a time in which it was to record."""

    source: str
    why: str
    start: int
    end: int


class Advancing(msgspec.Struct, frozen=True):
    """A backend works on what it has yet to deliver."""

    source: str


class SourceEnded(msgspec.Struct, frozen=True):
    """A backend has delivered its last."""

    source: str


class ActionChanged(msgspec.Struct, frozen=True):
    """The profiler's action has changed; for the backends that are not bound to a thread."""

    before: ProfilerAction
    after: ProfilerAction
    at: int


class DetailChanged(msgspec.Struct, frozen=True):
    """The steps that begin at `at` or later are recorded with this detail; the first of them is `step`."""

    at: int
    step: int
    detail: Detail
    level: Detail
    """What the overhead budget allows, which the detail of a window may go below."""


class Paused(msgspec.Struct, frozen=True):
    """Recording pauses."""

    at: int


class Resumed(msgspec.Struct, frozen=True):
    """Recording goes on."""

    at: int


class Flush(msgspec.Struct, frozen=True):
    """Everything recorded by `at`, and put before this, is to reach the exporters; what is given then is whether it has."""

    at: int
    done: OneShot[bool]


class Spawn(msgspec.Struct, frozen=True):
    """A backend's coroutine function is to run on its loop."""

    source: str
    work: Callable[[], Awaitable[None]]


Message: TypeAlias = (
    Delivery
    | Watermark
    | Dropped
    | Missing
    | Advancing
    | SourceEnded
    | WindowBegins
    | WindowEnds
    | ActionChanged
    | DetailChanged
    | Paused
    | Resumed
    | Flush
    | Spawn
)
