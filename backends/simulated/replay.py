"""The replay backend: plays a recorded journal as if it happened now."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import anyio

from stepscope.backends.simulated.playback import Playback, Recording
from stepscope.runtime.errors import BackendError, ClosedError, FormatError
from stepscope.runtime.events import clock as process_clock
from stepscope.runtime.events.record import Block
from stepscope.runtime.journal.frame_reader import Damage
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.loop_threads.loop_thread import call_in_thread
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.arguments import number_argument, path_argument
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads.native_threads import Event

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
        """Begins and ends as the profiler does."""
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
        """Delivers what is due; seconds until it is worth looking again."""
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
