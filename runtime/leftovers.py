"""What a dead process left in its rings and on its stacks, and did not write to its journal any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import strings, tracks
from stepscope.runtime.events import NO_STEP, Block, EventBatch, Flag, Kind, empty_block
from stepscope.runtime.intervals import FOREVER, ends
from stepscope.runtime.journal_ids import IdMap
from stepscope.runtime.ledger import Ledger, SourceLedger
from stepscope.runtime.open_window import OpenWindow
from stepscope.runtime.session_files import SessionFiles
from stepscope.runtime.step_marks import StepMark
from stepscope.runtime.window import Window

RECORDER = "recorder"
STEPS = "steps"

Keys = NDArray[np.uint64]


class Leftovers:
    """Events of a session directory, in this process's ids.

    Reads the rings twice: their keys first, so that the journal can be searched for them while it is copied, and
    their events when it is known which are missing. So memory holds one ring at a time.
    """

    def __init__(self, session: SessionFiles | None, ids: IdMap) -> None:
        self._session = session
        self._ids = ids
        self.last_ns = 0
        """Latest time in the rings and stacks."""
        self.marks: list[tuple[int, StepMark]] = []
        """Step marks, each with the number of its profiler."""
        self._recorded: list[int] = []
        keys: list[Keys] = []
        self._ended: set[int] = set()
        for events, _, _ in self._rings():
            keys.append(keys_of(events))
            self.last_ns = max(self.last_ns, int(ends(events).max(initial=0)))
            spans = events[events["kind"] == int(Kind.SPAN)]
            self._ended.update(spans["id"].tolist())
            for mark in events[events["kind"] == int(Kind.STEP)]:
                self.marks.append((int(mark["id"]), mark_of(mark)))
            others = events[(events["kind"] != int(Kind.STEP)) & (events["kind"] != int(Kind.GAP))]
            self._recorded += others["ts"].tolist()
        if session is not None:
            self.last_ns = max(self.last_ns, session.last_begin())
            self._recorded += session.open_spans(self.last_ns)["ts"].tolist()
        self._keys: Keys = np.unique(np.concatenate(keys)) if keys else np.empty(0, np.uint64)

    def among(self, events: Block) -> Keys:
        """Keys of those of the events that the rings hold as well."""
        if not len(self._keys):
            return self._keys
        keys = keys_of(events)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return keys[self._keys[at] == keys]

    def begin_after(self, at: int) -> int | None:
        """When the first event began that lies wholly after `at`, in ns; `None` if there is none."""
        return min((ts for ts in self._recorded if ts > at), default=None)

    def missing(self, seen: Keys, profiler: int) -> Iterator[tuple[Block, bytes]]:
        """Events of the rings that are not among `seen`; step marks of one profiler only."""
        for events, args, gaps in self._rings():
            foreign = (events["kind"] == int(Kind.STEP)) & (events["id"] != profiler)
            yield events[~foreign & ~np.isin(keys_of(events), seen)], args
            gaps["ts"] = np.where(gaps["ts"] == 0, self.last_ns, gaps["ts"])
            yield gaps, b""

    def open_spans(self, until: int) -> Block:
        """Spans that had not ended, up to `until`; those left out whose end is in a ring."""
        if self._session is None:
            return empty_block()
        spans = self._session.open_spans(until)
        self._ids.localise(spans, bytearray())
        return spans[~np.isin(spans["id"], np.array(sorted(self._ended), np.uint64))]

    def _rings(self) -> Iterator[tuple[Block, bytes, Block]]:
        for ring in self._session.rings() if self._session else ():
            self._ids.localise(ring.events, ring.args)
            self._ids.localise(ring.gaps, bytearray())
            ring.gaps["name"] = strings.intern("dropped")
            yield ring.events, bytes(ring.args), ring.gaps


class UnfinishedWindow:
    """A window that the journal does not close: what it has of it, and what is added."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.start = FOREVER
        self.last = 0
        self.seen: list[Keys] = []
        """Keys of events that are in the journal and in the rings."""
        self.marks: list[StepMark] = []
        self.profiler = 0
        """Number that the profiler's step marks bear; 0 = unknown."""
        self._step_spans: set[int] = set()
        self._step_track = 0
        self._counts: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._window: OpenWindow | None = None

    def add(self, batch: EventBatch, leftovers: Leftovers) -> None:
        """Takes note of a batch of the journal."""
        events = batch.events
        self.start = min(self.start, int(events["ts"].min(initial=FOREVER)))
        self.last = max(self.last, int(ends(events).max(initial=0)))
        gaps = events["kind"] == int(Kind.GAP)
        self._counts[batch.source] += len(events) - int(gaps.sum())
        self._dropped[batch.source] += int(events["id"][gaps].sum())
        for mark in events[events["kind"] == int(Kind.STEP)]:
            self.marks.append(mark_of(mark))
            self.profiler = int(mark["id"])
        if batch.source == STEPS:
            spans = events[events["kind"] == int(Kind.SPAN)]
            self._step_spans.update(spans["step"].tolist())
            self._step_track = int(spans["track"][0]) if len(spans) else self._step_track
        self.seen.append(leftovers.among(events))

    def begin(self, marks: list[StepMark], end: int) -> None:
        """Fixes the borders; `marks` are all that are known of the profiler, also those outside."""
        known = sorted({*self.marks, *marks}, key=lambda mark: mark.ts)
        before = [mark for mark in known if mark.ts <= self.start]
        number = before[-1].number if before else NO_STEP
        first = before[-1] if before and before[-1].ts == self.start else StepMark(self.start, number)
        self._window = OpenWindow(self.index, first)
        self._window.end = max(end, self.start + 1)
        for mark in known:
            self._window.marks.put(mark, self._window.end)

    def take(self, events: Block, args: bytes, source: str = RECORDER) -> EventBatch:
        """The events, or parts of them, that lie in this window."""
        assert self._window is not None
        taken = self._window.take(source, events) if len(events) else events
        return EventBatch(source, self.index, taken, args)

    def step_spans(self, pid: int) -> EventBatch:
        """Spans of the steps that the journal lacks; the one that was under way is flagged as open."""
        assert self._window is not None
        track = self._step_track or tracks.new(tracks.TrackKind.THREAD, pid, 1 << 30, "steps")
        spans = self._window.step_spans(track, last=True)
        if len(spans):
            spans["flags"][-1] |= int(Flag.OPEN)
        known = np.array(sorted(self._step_spans), np.int32)
        return self.take(spans[(spans["step"] >= 0) & ~np.isin(spans["step"], known)], b"", STEPS)

    def finish(self, profiler: str, wall_start_ns: int, metadata: dict[str, Any], note: str) -> Window:
        """The window as it is recovered."""
        assert self._window is not None and self._window.end is not None
        sources: dict[str, SourceLedger] = {}
        recovered = self._window.ledger()
        for source in sorted({*self._counts, *recovered}):
            added = recovered.get(source, SourceLedger())
            accepted = self._counts[source] + added.accepted
            dropped = self._dropped[source] + sum(added.dropped.values())
            sources[source] = SourceLedger(accepted + dropped, accepted, {"overflow": dropped} if dropped else {})
        return Window(
            index=self.index,
            profiler=profiler,
            start_ns=self.start,
            end_ns=self._window.end,
            steps=tuple(step for step in self._window.steps() if step.number >= 0),
            complete=False,
            diagnostics=(note,),
            ledger=Ledger(sources),
            metadata=metadata,
            wall_start_ns=wall_start_ns,
        )


def mark_of(event: Any) -> StepMark:
    """A step mark from its event."""
    return StepMark(int(event["ts"]), int(event["step"]), int(event["track"]), int(event["parent"]))


def keys_of(events: Block) -> Keys:
    """A number for each event that is the same in the ring and in the journal: of a span, its id.

    A window cuts spans and numbers steps, so times of spans and `step` do not count.
    """
    unsigned = np.uint64
    spans = (events["kind"] == int(Kind.SPAN)) & (events["id"] != 0)
    # Odd constants, so that equal sums of different fields are as unlikely as 64 bits make them.
    mixed = events["ts"].astype(unsigned) * unsigned(0x9E3779B97F4A7C15)
    for field, factor in (
        ("self_dur", 0xC2B2AE3D27D4EB4F),
        ("id", 0x165667B19E3779F9),
        ("name", 0xFF51AFD7ED558CCD),
        ("track", 0xC4CEB9FE1A85EC53),
        ("kind", 0x27D4EB2F165667C5),
    ):
        mixed = (mixed ^ (mixed >> unsigned(29))) + events[field].astype(unsigned) * unsigned(factor)
    keys: Keys = np.where(spans, events["id"] * unsigned(0xD6E8FEB86659FD93), mixed)
    return keys
