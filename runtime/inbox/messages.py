"""Messages of the training thread and the backends to a pipeline, through its inbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from stepscope.runtime.events.record import Block
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.schedule.detail import Detail
from stepscope.runtime.threads.one_shot import OneShot
from stepscope.runtime.windows.step_marks import WindowBegins, WindowEnds


class Delivery(msgspec.Struct, frozen=True):
    """A block from a backend."""

    source: str
    events: Block
    args: bytes
    launched_before: int | None = None
    """The block belongs to the window that ends at this time, or contains it, even if the device ran later."""

    @property
    def nbytes(self) -> int:
        """Its bytes in the inbox."""
        return int(self.events.nbytes) + len(self.args)


class Watermark(msgspec.Struct, frozen=True):
    """A backend has delivered everything that began before `at`."""

    source: str
    at: int


class Dropped(msgspec.Struct, frozen=True):
    """A backend lost events, or the inbox refused them."""

    source: str
    reason: str
    count: int
    at: int


class Missing(msgspec.Struct, frozen=True):
    """A backend has no events of a time in which it should record."""

    source: str
    why: str
    start: int
    end: int


class Advancing(msgspec.Struct, frozen=True):
    """A backend makes progress with late events."""

    source: str


class SourceEnded(msgspec.Struct, frozen=True):
    """A backend delivers no further events."""

    source: str


class ActionChanged(msgspec.Struct, frozen=True):
    """The profiler's action has changed; for backends that are not thread-bound."""

    before: ProfilerAction
    after: ProfilerAction
    at: int


class DetailChanged(msgspec.Struct, frozen=True):
    """Steps from the time `at` on are recorded with this detail. The first of them is `step`."""

    at: int
    step: int
    detail: Detail
    level: Detail
    """The level of the overhead budget. The detail of a window may be lower."""


class Paused(msgspec.Struct, frozen=True):
    """Recording pauses."""

    at: int


class Resumed(msgspec.Struct, frozen=True):
    """Recording resumes."""

    at: int


class Flush(msgspec.Struct, frozen=True):
    """All events before `at`, and messages before this one, must reach the exporters. `done` gets whether they did."""

    at: int
    done: OneShot[bool]


class Spawn(msgspec.Struct, frozen=True):
    """Run a coroutine function of a backend on its loop."""

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
