"""A backend that plays a script: for tests of what consumes events, without a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.native_threads import get_ident

Moment = Literal["open", "warmup", "start", "stop", "aclose"]
"""When an item of the script is played. Two windows that follow each other directly are a stop and a start."""


class Span(msgspec.Struct, frozen=True):
    """A span; times in ns, `start` relative to the start of the recording that it is played in."""

    name: str
    start: int
    dur: int
    category: str = "user_annotation"
    track: str | int = "scripted"
    """Name of a thread's track, made when it is first used, or the id of any track."""
    arguments: Mapping[str, Any] = {}
    self_dur: int | None = None
    """Time not spent in child spans; all of it if not given."""
    id: int = 0
    parent: int = 0
    flags: int = 0


class Instant(msgspec.Struct, frozen=True):
    """Something that happened at `start`."""

    name: str
    start: int
    category: str = "user_annotation"
    track: str | int = "scripted"
    arguments: Mapping[str, Any] = {}


class Counter(msgspec.Struct, frozen=True):
    """A counter's value at `start`."""

    name: str
    start: int
    value: float
    category: str = "user_annotation"
    track: str | int = "scripted"


class Deliver(msgspec.Struct, frozen=True):
    """Delivers one block, its events in the order given, which may be any."""

    events: Sequence[Span | Instant | Counter]
    on: Moment = "stop"


class Lose(msgspec.Struct, frozen=True):
    """Reports `count` events lost around `start`, relative to the start of the recording."""

    count: int
    start: int = 0
    reason: str = "source"
    on: Moment = "stop"


class Raise(msgspec.Struct, frozen=True):
    """Raises out of `open` (on="open"), `transition` ("warmup", "start", "stop") or `aclose`."""

    error: BaseException
    on: Moment


Item = Deliver | Lose | Raise


def make_block(
    events: Sequence[Span | Instant | Counter], origin: int, track: Callable[[str], int]
) -> tuple[Block, bytes]:
    """The events as a block in the order given, and their arguments.

    Args:
        events: what to encode.
        origin: added to every `start`, in ns.
        track: gives the id of a named track.
    """
    block: Any = empty_block(len(events))
    args = bytearray()
    for record, item in zip(block, events, strict=True):
        record["ts"] = origin + item.start
        record["name"] = strings.intern(item.name)
        record["category"] = strings.category(item.category)
        record["track"] = track(item.track) if isinstance(item.track, str) else item.track
        if isinstance(item, Counter):
            record["kind"], record["value"] = Kind.COUNTER, item.value
            continue
        if isinstance(item, Span):
            record["kind"], record["dur"] = Kind.SPAN, item.dur
            record["self_dur"] = item.dur if item.self_dur is None else item.self_dur
            record["id"], record["parent"], record["flags"] = item.id, item.parent, item.flags
        else:
            record["kind"] = Kind.INSTANT
        if item.arguments:
            encoded = _core.encode_arguments(item.arguments)
            record["args_at"], record["args_len"] = len(args), len(encoded)
            args += encoded
    return block, bytes(args)


class ScriptedBackend:
    """Plays the items of a script at the profiler's transitions, in order. The watermark passes the end of each recording.

    Args:
        script: what to play.
        name: name of the source.
        thread_bound: where it wants to be called, see `Backend`. If True it raises `BackendError` on any other thread than
            that of `open`, where a real one would crash; and it says that it records that thread only.
        report: what `report()` says.
        auto_watermark: False states no watermark: a backend that windows wait for.
    """

    def __init__(
        self,
        script: Iterable[Item] = (),
        *,
        name: str = "scripted",
        thread_bound: bool = False,
        report: BackendReport | None = None,
        auto_watermark: bool = True,
    ) -> None:
        self.name = name
        self.thread_bound = thread_bound
        self._script = tuple(script)
        self._report = report or BackendReport(mode="scripted")
        self._auto_watermark = auto_watermark
        self._tracks: dict[str, int] = {}
        self._sink: Sink | None = None
        self._thread = self._origin = 0
        self._recorded = False

    @property
    def one_thread(self) -> bool:
        """True if it records now, and is bound to a thread."""
        return self.thread_bound and self._recorded

    def open(self, sink: Sink) -> None:
        """Opens the backend. Raises `BackendError` while it is open, and the errors of the script."""
        if self._sink is not None:
            raise BackendError(f"{self.name} is in use by another profiler: make a ScriptedBackend for each")
        self._thread, self._origin, self._recorded = get_ident(), 0, False
        self._play("open", sink)
        self._sink = sink

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """Plays the items of the script for this moment. Raises the errors of the script."""
        if self.thread_bound and get_ident() != self._thread:
            raise BackendError(f"{self.name} is bound to the thread that opened it, and was switched on another one")
        sink = self._sink
        if sink is None:
            return
        if self._recorded and (not after.records or before is ProfilerAction.RECORD_AND_SAVE):
            self._recorded = False
            try:
                self._play("stop", sink)
            finally:
                if self._auto_watermark:
                    sink.watermark(at)
        if after is ProfilerAction.WARMUP:
            self._play("warmup", sink)
        if after.records and not self._recorded:
            self._recorded, self._origin = True, at
            self._play("start", sink)

    async def aclose(self) -> None:
        """Closes the backend. Raises the errors of the script."""
        sink, self._sink = self._sink, None
        if sink is not None:
            self._play("aclose", sink)

    def report(self) -> BackendReport:
        return self._report

    def _play(self, moment: Moment, sink: Sink) -> None:
        for item in self._script:
            if item.on != moment:
                continue
            if isinstance(item, Raise):
                raise item.error
            if isinstance(item, Lose):
                sink.dropped(item.count, item.reason, self._origin + item.start)
            else:
                sink.deliver(*make_block(item.events, self._origin, self._track))

    def _track(self, name: str) -> int:
        # Ids of real threads are at most 2**22 on Linux.
        if name not in self._tracks:
            number = (1 << 23) + len(self._tracks)
            self._tracks[name] = tracks.new(TrackKind.THREAD, os.getpid(), number, name, tracks.process())
        return self._tracks[name]
