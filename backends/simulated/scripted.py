"""A backend that plays a script: for tests of what consumes events, without a device."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import anyio
import msgspec

from stepscope.runtime import _core
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads import locks
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
    recording: int | None = None
    """Number of the recording, from 0, that this is played in; `None` is every one."""
    delay: float = 0.0
    """Seconds after the moment; what is still to come when the backend is closed is delivered then."""
    late: bool = False
    """True breaks the promise: the watermark does not wait for the delay."""
    watermark: int | None = None
    """Stated with the block, relative to the start of the recording."""


class Watermark(msgspec.Struct, frozen=True):
    """States that everything before `start` was delivered."""

    start: int
    on: Moment = "stop"
    recording: int | None = None


class Lose(msgspec.Struct, frozen=True):
    """Reports `count` events lost around `start`."""

    count: int
    start: int = 0
    reason: str = "source"
    on: Moment = "stop"
    recording: int | None = None


class Raise(msgspec.Struct, frozen=True):
    """Raises out of `open` (on="open"), `transition` ("warmup", "start", "stop") or `aclose`."""

    error: BaseException
    on: Moment
    recording: int | None = None


Item = Deliver | Watermark | Lose | Raise


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


class Call(msgspec.Struct, frozen=True):
    """One call that the backend got."""

    what: Literal["open", "transition", "aclose"]
    thread: int
    """Identity of the thread that called."""
    before: ProfilerAction | None = None
    after: ProfilerAction | None = None
    at: int | None = None


class ScriptedBackend:
    """Plays the items of a script at the profiler's transitions, in order.

    After each recording the watermark passes its end, once everything delayed was delivered.

    Args:
        script: what to play.
        name: name of the source.
        thread_bound: where it wants to be called, see `Backend`. If True it raises `BackendError` on any other thread than
            that of `open`, where a real one would crash; and it says that it records that thread only.
        report: what `report()` says.
        auto_watermark: False states no watermark but those of the script: a backend that windows wait for.
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
        self.calls: list[Call] = []
        """Every call but `report`, in order."""
        self._script = tuple(script)
        self._report = report or BackendReport(mode="scripted")
        self._auto = auto_watermark
        self._tracks: dict[str, int] = {}
        self._lock = locks.reentrant()
        self._sink: Sink | None = None
        self._reset()

    def _reset(self) -> None:
        self._thread = 0
        self._recording = -1
        self._origin = 0
        self._recorded = False
        self._delayed: dict[int, Callable[[], None]] = {}  # by number
        self._number = 0
        self._holding: defaultdict[int, int] = defaultdict(int)  # per recording: deliveries its watermark waits for
        self._ends: dict[int, int] = {}

    @property
    def one_thread(self) -> bool:
        """True if it records now, and is bound to a thread."""
        return self.thread_bound and self._recorded

    def open(self, sink: Sink) -> None:
        """Takes the sink. Raises `BackendError` while open, and what the script says."""
        self.calls.append(Call("open", get_ident()))
        if self._sink is not None:
            raise BackendError(f"{self.name} is in use by another profiler: make a ScriptedBackend for each")
        self._reset()
        self._thread = get_ident()
        self._sink = sink
        try:
            self._play("open", sink)
        except BaseException:
            self._sink = None
            raise

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """Plays what the script has for this moment. Raises what the script says."""
        self.calls.append(Call("transition", get_ident(), before, after, at))
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
                with self._lock:
                    self._ends[self._recording] = at
                self._report_watermark(self._recording, sink)
        if after is ProfilerAction.WARMUP:
            self._play("warmup", sink)
        if after.records and not self._recorded:
            self._recorded, self._origin = True, at
            self._recording += 1
            self._play("start", sink)

    async def aclose(self) -> None:
        """Delivers what is delayed, at once. Raises what the script says."""
        self.calls.append(Call("aclose", get_ident()))
        sink = self._sink
        if sink is None:
            return
        try:
            for number in sorted(self._delayed):
                self._deliver_delayed(number)
            self._play("aclose", sink)
        finally:
            self._sink = None

    def report(self) -> BackendReport:
        """The argument of the constructor."""
        return self._report

    def _play(self, moment: Moment, sink: Sink) -> None:
        for item in self._script:
            if item.on != moment or item.recording not in (None, self._recording):
                continue
            if isinstance(item, Raise):
                raise item.error
            if isinstance(item, Watermark):
                sink.watermark(self._origin + item.start)
            elif isinstance(item, Lose):
                sink.dropped(item.count, item.reason, self._origin + item.start)
            elif item.delay > 0:
                self._deliver_later(item, sink)
            else:
                self._deliver(item, self._origin, sink)

    def _deliver(self, item: Deliver, origin: int, sink: Sink) -> None:
        events, args = make_block(item.events, origin, self._track)
        sink.deliver(events, args, watermark=None if item.watermark is None else origin + item.watermark)

    def _deliver_later(self, item: Deliver, sink: Sink) -> None:
        recording, origin = self._recording, self._origin

        def deliver() -> None:
            self._deliver(item, origin, sink)
            if not item.late:
                with self._lock:
                    self._holding[recording] -= 1
                self._report_watermark(recording, sink)

        with self._lock:
            self._number += 1
            number = self._number
            self._delayed[number] = deliver
            if not item.late:
                self._holding[recording] += 1

        async def later() -> None:
            await anyio.sleep(item.delay)
            if self._sink is sink:
                self._deliver_delayed(number)

        sink.run_soon(later)

    def _deliver_delayed(self, number: int) -> None:
        # Either the delay or aclose() comes first; they may be on different threads.
        with self._lock:
            deliver = self._delayed.pop(number, None)
        if deliver is not None:
            deliver()

    def _report_watermark(self, recording: int, sink: Sink) -> None:
        with self._lock:
            done = recording in self._ends and not self._holding[recording]
            at = self._ends.pop(recording) if done else None
        if at is not None and self._auto:
            sink.watermark(at)

    def _track(self, name: str) -> int:
        # Ids of real threads are at most 2**22 on Linux.
        if name not in self._tracks:
            number = (1 << 23) + len(self._tracks)
            self._tracks[name] = tracks.new(TrackKind.THREAD, os.getpid(), number, name, tracks.process())
        return self._tracks[name]
