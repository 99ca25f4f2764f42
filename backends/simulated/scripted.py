"""A backend that plays a script: for tests of what consumes events, without a device."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Literal

import anyio
import msgspec

from stepscope.backends.simulated.script import Deliver, Item, Lose, Moment, Raise, Watermark, make_block
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import tracks
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.native_threads import get_ident


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
