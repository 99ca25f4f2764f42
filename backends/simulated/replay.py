"""The replay backend: plays a recorded journal as if it happened now."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.errors import BackendError, ClosedError, FormatError
from stepscope.runtime.events import clock as process_clock
from stepscope.runtime.events import tracks
from stepscope.runtime.events.intervals import FOREVER, clip, ends, has_duration
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, join_blocks
from stepscope.runtime.journal.format import gather_arguments, heap_arguments
from stepscope.runtime.journal.frame_reader import Damage
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.loop_threads.loop_thread import call_in_thread
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.arguments import number_argument, path_argument
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.native_threads import Event

STEPS = "steps"
"""Source of what the runtime itself adds to a journal; a replay gets its own."""
CHUNK = 16_384
"""Events delivered at a time."""

_LINKED = (Kind.SPAN, Kind.FLOW_START, Kind.FLOW_STEP, Kind.FLOW_END, Kind.ASYNC_BEGIN, Kind.ASYNC_END)


class Recording(msgspec.Struct, frozen=True):
    """The events of a journal, ordered by their ends."""

    events: Block
    args: bytes
    start_ns: int
    length_ns: int

    @classmethod
    def load(
        cls, reader: JournalReader, window: int | None, max_bytes: int, stop: Callable[[], bool] = lambda: False
    ) -> Recording | None:
        """Reads a journal; steps and pauses of the recorded run are left out. `None` if `stop` ended it meanwhile.

        Raises:
            BackendError: if the events need more than `max_bytes`.
        """
        blocks: list[Block] = []
        heaps: list[bytes] = []
        size = heap = 0
        for item in reader.items(window):
            if stop():
                return None
            if not isinstance(item, EventBatch) or item.source == STEPS:
                continue
            block = item.events[item.events["kind"] != int(Kind.STEP)]
            with_arguments, _ = heap_arguments(block, len(item.args))
            size += item.nbytes
            if size > max_bytes or heap + len(item.args) >= 1 << 32:
                raise BackendError(
                    f"the recording {reader.path} holds more than {max_bytes >> 20} MiB of events; choose one of its "
                    "windows, or a larger max_bytes"
                )
            block["args_at"][with_arguments] += heap
            heap += len(item.args)
            heaps.append(item.args)
            blocks.append(block)
        events = _tidied(join_blocks(blocks))
        events = events[np.argsort(ends(events), kind="stable")]
        start = int(events["ts"].min()) if len(events) else 0
        return cls(events, b"".join(heaps), start, int(ends(events).max()) - start if len(events) else 0)


class Playback:
    """A recording on its way, at one speed, once or for ever.

    With a finite speed its time goes on whether or not anything is recorded, and durations shrink as it grows. With
    an infinite one it waits while nothing is recorded, and keeps durations: times lie ahead of the clock.
    """

    def __init__(self, recording: Recording, speed: float, loop: bool) -> None:
        self.rounds = 0
        """Times that the recording has been played to its end."""
        self._recording = recording
        self._speed = speed
        self._loop = loop and len(recording.events) > 0 and recording.length_ns > 0
        self._since: int | None = None
        self._origin: int | None = None
        self._end = 0
        self._at = 0
        self._events = recording.events[:0]
        self._ends: NDArray[np.int64] = np.empty(0, np.int64)
        self._first_remaining: NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def finite(self) -> bool:
        """True if its time goes on by itself."""
        return not math.isinf(self._speed)

    @property
    def finished(self) -> bool:
        """True if all was played."""
        return self._origin is not None and self._at >= len(self._events) and not self._loop

    def begin(self, at: int) -> None:
        """Begins recording. The first time, the recording starts here."""
        self._since = at
        if self._origin is None:
            self._wind(at)
        elif not self.finite and self._at < len(self._events):
            remaining = self._events[self._at :]
            remaining["ts"] += at - int(remaining["ts"].min())
            self._index()

    def end(self, at: int) -> tuple[Block, bytes]:
        """Ends recording: returns the parts before `at` of all events that are under way."""
        since, self._since = self._since, None
        if since is None or not self.finite:
            return self._events[:0], b""
        remaining = self._events[self._at :]
        begun = np.flatnonzero(remaining["ts"] < at)
        part = clip(remaining[begun], [(since, at)])
        cut = begun[has_duration(remaining[begun]) & (ends(remaining[begun]) > at)]
        if len(cut):
            # Both parts at once, so that self time is shared between them; the later ones come last.
            remaining[cut] = clip(remaining[cut], [(min(since, at), at), (at, FOREVER)])[-len(cut) :]
        remaining["kind"][np.setdiff1d(begun, cut)] = 0
        self._index()
        return self._packed(part)

    def due(self, now: int) -> tuple[Block, bytes, int | None, bool]:
        """The events that are due at the time `now`, as far as they are recorded.

        Returns:
            Events, their arguments, the watermark after them (every event that began before it was given) if there is
            one, and whether more is due.
        """
        if self._origin is None or (not self.finite and self._since is None):
            return self._events[:0], b"", None, False
        until = int(np.searchsorted(self._ends, now, side="right")) if self.finite else len(self._ends)
        stop = min(until, self._at + CHUNK)
        block = self._events[self._at : stop]
        self._at = stop
        since = self._since
        recorded = block[:0] if since is None else clip(block[block["kind"] > 0], [(since, FOREVER)])
        watermark = int(self._first_remaining[stop]) if stop < len(self._first_remaining) else 1 << 62
        if stop >= len(self._events):
            self.rounds += 1 if stop and len(block) else 0
            if self._loop and (not self.finite or now >= self._end):
                watermark = self._end
                self._wind(watermark)
                return *self._packed(recorded), watermark, True
            watermark = self._end if self._loop else watermark
        return *self._packed(recorded), watermark, stop < until

    def next_ns(self, now: int) -> int | None:
        """Nanoseconds until something is due; `None` if nothing is unless recording begins."""
        if self._origin is None or self.finished or not self.finite:
            return None
        due = int(self._ends[self._at]) if self._at < len(self._ends) else self._end
        return max(due - now, 0)

    def _wind(self, origin: int) -> None:
        """Places the whole recording at a time of ours."""
        events = self._recording.events.copy()
        rate = self._speed if self.finite else 1.0
        for field, zero in (("ts", self._recording.start_ns), ("dur", 0), ("self_dur", 0)):
            spans = np.ones(len(events), np.bool_) if field == "ts" else has_duration(events)
            if rate != 1.0:
                events[field][spans] = np.rint((events[field][spans] - zero) / rate).astype(np.int64)
            elif zero:
                events[field][spans] -= zero
        events["ts"] += origin
        # Ids must differ from those of this process and of other rounds, and still link what belongs together.
        salt = np.uint64((0x80 | self.rounds & 0x7F) << 56)
        linked = np.isin(events["kind"], [int(kind) for kind in _LINKED])
        events["id"][linked & (events["id"] != 0)] ^= salt
        events["parent"][events["parent"] != 0] ^= salt
        order = np.argsort(ends(events), kind="stable")
        self._origin, self._events, self._at = origin, events[order], 0
        self._index()
        self._end = int(self._ends[-1]) if len(self._ends) else origin

    def _index(self) -> None:
        self._ends = ends(self._events)
        self._first_remaining = np.minimum.accumulate(self._events["ts"][::-1])[::-1]

    def _packed(self, block: Block) -> tuple[Block, bytes]:
        block = block.copy()
        return block, gather_arguments(block, self._recording.args)


def _tidied(events: Block) -> Block:
    """Events as a live source would give them, whatever was in the file."""
    events = events[(events["kind"] > 0) & (events["kind"] <= max(Kind))]
    events["dur"] = np.maximum(events["dur"], 0)
    spans = events["kind"] == int(Kind.SPAN)
    events["self_dur"][spans] = np.clip(events["self_dur"][spans], 0, events["dur"][spans])
    # Beyond centuries, sums of times would overflow.
    events = events[(np.abs(events["ts"]) < 1 << 61) & (events["dur"] < 1 << 61)]
    events["flags"] &= 0xFF ^ int(Flag.OPEN | Flag.CLIPPED)
    nowhere = events["track"] == 0
    if nowhere.any():
        events["track"][nowhere] = tracks.new(tracks.TrackKind.THREAD, 0, 0, "replay")
    return events


_LOOK = 0.02
"""Seconds between two deliveries at most often."""


class ReplayBackend:
    """A source that gives the events of a journal, on their tracks, at the time of the profiler.

    The recording starts when the profiler first records. At a finite speed its time then goes on: what lies in steps
    that are not recorded is skipped, and with a speed of 2 everything lasts half as long. At infinite speed events
    keep their durations and come as fast as the loop takes them, with times ahead of the clock; they belong to the
    window that is open then, and wait while none is. Step marks and pauses of the recorded run are left out.

    Args:
        path: a journal; a torn or damaged one is played as far as it can be read.
        speed: how fast time goes, above 0; `math.inf` for as fast as possible.
        loop: begin anew after the end, for ever.
        window: index of the only window to play.
        max_bytes: largest recording, in bytes of memory.
        name: name of the source.
        clock: our clock in ns.

    Raises:
        TypeError: the path is none, or the speed no number.
        ValueError: for a speed that is not above 0.
    """

    thread_bound = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        speed: float = 1.0,
        loop: bool = False,
        window: int | None = None,
        max_bytes: int = 1 << 30,
        name: str = "replay",
        clock: Callable[[], int] = process_clock.now,
    ) -> None:
        number_argument("speed", speed)
        if not speed > 0:
            raise ValueError(f"speed must be above 0, got {speed!r}")
        self.name = name
        self.finished = Event()
        """Set when the whole recording was delivered; for callers on any thread."""
        self._path = Path(path_argument("path", path))
        self._speed, self._loop, self._window, self._max_bytes = speed, loop, window, max_bytes
        self._clock = clock
        self._sink: Sink | None = None
        self._playback: Playback | None = None
        self._changes: list[tuple[bool, int]] = []
        self._wake: anyio.Event | None = None
        self._ended: anyio.Event | None = None
        self._records = False
        self._damage = Damage()
        self._refused = 0

    def open(self, sink: Sink) -> None:
        """Takes the sink and looks at the journal.

        Raises:
            BackendError: if it cannot be read.
        """
        try:
            JournalReader(self._path).close()
        except (OSError, FormatError) as error:
            raise BackendError(f"cannot replay {self._path}: {error}") from error
        self._sink = sink
        self._playback = None
        self._changes.clear()
        self._wake = self._ended = None
        self._records = False
        self.finished.clear()

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        sink = self._sink
        if sink is None or after.records == self._records:
            return
        self._records = after.records
        self._changes.append((after.records, at))
        if self._playback is not None:
            self._follow(sink, self._playback)
        elif self._ended is None:
            self._ended = anyio.Event()
            sink.run_soon(self._run)
        if self._wake is not None:
            self._wake.set()

    async def aclose(self) -> None:
        self.transition(ProfilerAction.RECORD, ProfilerAction.NONE, self._clock())
        self._sink = None
        if self._wake is not None:
            self._wake.set()
        if self._ended is not None:
            await self._ended.wait()

    def report(self) -> BackendReport:
        notes: list[str] = []
        if self._damage:
            notes.append(f"the recording is damaged: {self._damage}")
        if self._refused:
            notes.append(f"{self._refused} events came faster than the inbox takes them, and were dropped")
        return BackendReport(
            mode=f"replay of {self._path.name} at {self._speed:g} times its speed",
            clock="the recording's, shifted to CLOCK_MONOTONIC",
            notes=tuple(notes),
        )

    async def _run(self) -> None:
        """Loads the recording and delivers what is due until `aclose`."""
        sink, ended = self._sink, self._ended
        assert ended is not None
        try:
            recording = None if sink is None else await call_in_thread(self._load)
            if sink is None or recording is None:
                return
            self._wake = anyio.Event()
            playback = self._playback = Playback(recording, self._speed, self._loop)
            self._follow(sink, playback)
            while self._sink is sink:
                with anyio.move_on_after(self._deliver_due(sink, playback)):
                    await self._wake.wait()
                    self._wake = anyio.Event()
        except ClosedError:
            # The profiler was closed, and has nowhere to put the rest.
            return
        finally:
            ended.set()

    def _load(self) -> Recording | None:
        with JournalReader(self._path) as reader:
            recording = Recording.load(reader, self._window, self._max_bytes, lambda: self._sink is None)
            self._damage = reader.damage
        return recording

    def _follow(self, sink: Sink, playback: Playback) -> None:
        """Begins and ends recording as the profiler does."""
        for records, at in self._changes:
            if records:
                playback.begin(at)
                continue
            while playback.finite and self._deliver_until(sink, playback, at):
                pass
            part, args = playback.end(at)
            self._deliver(sink, part, args, at)
        self._changes.clear()

    def _deliver_due(self, sink: Sink, playback: Playback) -> float:
        """Delivers the events that are due. Returns the seconds until the next look."""
        now = self._clock()
        if self._deliver_until(sink, playback, now):
            return 0.0
        if playback.finished:
            self.finished.set()
        wait = playback.next_ns(now)
        return math.inf if wait is None else max(wait / 1e9, _LOOK)

    def _deliver_until(self, sink: Sink, playback: Playback, now: int) -> bool:
        events, args, watermark, more = playback.due(now)
        self._deliver(sink, events, args, watermark)
        return more

    def _deliver(self, sink: Sink, events: Block, args: bytes, watermark: int | None) -> None:
        if len(events):
            self._refused += len(events) - sink.deliver(events, args)
        if watermark is not None:
            sink.watermark(watermark)
