"""The replay backend: plays a recorded journal as if it happened now."""

from __future__ import annotations

import math
import os
from pathlib import Path

import anyio
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.errors import BackendError, ClosedError, FormatError
from stepscope.runtime.events import clock, tracks
from stepscope.runtime.events.intervals import FOREVER, clip, ends, has_duration
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind, empty_block, join_blocks
from stepscope.runtime.journal.format import gather_arguments, heap_arguments
from stepscope.runtime.journal.frame_reader import Damage
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.arguments import number_argument, path_argument
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.native_threads import Event

STEPS = "steps"
"""Source of what the runtime itself adds to a journal; a replay gets its own."""
CHUNK = 16_384
"""Events delivered at a time."""
INTERVAL_S = 0.02
"""Seconds between two deliveries."""
OTHER_IDS = np.uint64(0x80 << 56)
"""Changes the recorded ids, so that they differ from those of this process, and still link what belongs together."""

_LINKED = (Kind.SPAN, Kind.FLOW_START, Kind.FLOW_STEP, Kind.FLOW_END, Kind.ASYNC_BEGIN, Kind.ASYNC_END)


class ReplayBackend:
    """A source that gives the events of a journal, on their tracks, at the time of the profiler.

    The recording starts when the profiler first records. Its time then goes on: what lies in steps that are not recorded is
    skipped, and with a speed of 2 everything lasts half as long. Step marks and pauses of the recorded run are left out.

    Args:
        path: a journal, which `open` reads; a torn or damaged one is played as far as it can be read.
        speed: how fast time goes, a finite number above 0.
        window: index of the only window to play.
        max_bytes: largest recording, in bytes of memory.
        name: name of the source.

    Raises:
        TypeError: the path is none, or the speed no number.
        ValueError: for a speed that is not above 0, or not finite.
    """

    thread_bound = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        speed: float = 1.0,
        window: int | None = None,
        max_bytes: int = 1 << 30,
        name: str = "replay",
    ) -> None:
        number_argument("speed", speed)
        if not 0 < speed < math.inf:
            raise ValueError(f"speed must be a finite number above 0, got {speed!r}")
        self.name = name
        self.finished = Event()
        """Set when the whole recording was delivered; for callers on any thread."""
        self._path = Path(path_argument("path", path))
        self._speed, self._window, self._max_bytes = speed, window, max_bytes
        self._sink: Sink | None = None
        self._damage = Damage()
        self._refused = 0
        self._args = b""
        self._place(empty_block())
        self._started = False
        self._since: int | None = None
        """When recording began; `None` while nothing is recorded."""

    def _place(self, events: Block) -> None:
        """Args: what is played, from its begin on."""
        self._events: Block = events[np.argsort(ends(events), kind="stable")]
        self._ends: NDArray[np.int64] = ends(self._events)
        self._first_begin: NDArray[np.int64] = np.minimum.accumulate(self._events["ts"][::-1])[::-1]
        """For each event, the earliest begin of those that end when it does or later."""
        self._at = 0
        """How many events were delivered or skipped."""

    def open(self, sink: Sink) -> None:
        """Takes the sink and reads the journal.

        Raises:
            BackendError: if it cannot be read, or holds more than `max_bytes`.
        """
        self._sink = None
        try:
            with JournalReader(self._path) as reader:
                events, self._args = load(reader, self._window, self._max_bytes)
                self._damage = reader.damage
        except (OSError, FormatError) as error:
            raise BackendError(f"cannot replay {self._path}: {error}") from error
        self._place(events)
        self._started, self._since = False, None
        self.finished.clear()
        self._sink = sink

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        sink = self._sink
        if sink is None:
            return
        if after.records and self._since is None:
            self._since = at
            if not self._started:
                self._started = True
                self._shift_to(at)
                sink.run_soon(self._run)
        elif not after.records and self._since is not None:
            # Of events that go on, the part that was recorded.
            self._deliver(sink, clip(self._events[self._at :], [(self._since, at)]))
            self._since = None
            self._skip(sink, at)

    async def aclose(self) -> None:
        self.transition(ProfilerAction.RECORD, ProfilerAction.NONE, clock.now())
        self._sink = None

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

    def _shift_to(self, at: int) -> None:
        """Has the recording begin at a time of ours, at its speed."""
        events = self._events
        long, first = has_duration(events), int(events["ts"].min(initial=FOREVER))
        events["ts"] = at + np.rint((events["ts"] - first) / self._speed).astype(np.int64)
        for field in ("dur", "self_dur"):
            events[field][long] = np.rint(events[field][long] / self._speed).astype(np.int64)
        self._place(events)

    async def _run(self) -> None:
        """Delivers what has ended, until all was or `aclose`."""
        sink = self._sink
        try:
            while sink is not None and self._sink is sink and not self.finished.is_set():
                now = clock.now()
                if self._since is not None:
                    due = self._events[self._at : self._ended(now)]
                    self._deliver(sink, clip(due, [(self._since, FOREVER)]))
                self._skip(sink, now)
                await anyio.sleep(INTERVAL_S)
        except ClosedError:
            # The profiler was closed, and has nowhere to put the rest.
            return

    def _ended(self, now: int) -> int:
        """How many events have ended."""
        return int(np.searchsorted(self._ends, now, side="right"))

    def _skip(self, sink: Sink, now: int) -> None:
        """Goes on behind the events that have ended, and states the watermark."""
        self._at = self._ended(now)
        if self._at == len(self._events):
            self.finished.set()
        begun = int(self._first_begin[self._at]) if self._at < len(self._events) else now
        sink.watermark(now if self._since is None else max(min(now, begun), self._since))

    def _deliver(self, sink: Sink, events: Block) -> None:
        for first in range(0, len(events), CHUNK):
            block = events[first : first + CHUNK].copy()
            args = gather_arguments(block, self._args)
            self._refused += len(block) - sink.deliver(block, args)


def load(reader: JournalReader, window: int | None, max_bytes: int) -> tuple[Block, bytes]:
    """The events of a journal and their arguments; steps and pauses of the recorded run are left out.

    Raises:
        BackendError: if the events need more than `max_bytes`.
    """
    blocks: list[Block] = []
    heaps: list[bytes] = []
    size = heap = 0
    for item in reader.items(window):
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
    return _tidied(join_blocks(blocks)), b"".join(heaps)


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
    linked = np.isin(events["kind"], [int(kind) for kind in _LINKED])
    events["id"][linked & (events["id"] != 0)] ^= OTHER_IDS
    events["parent"][events["parent"] != 0] ^= OTHER_IDS
    return events
