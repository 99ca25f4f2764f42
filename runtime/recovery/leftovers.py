"""What a dead process left in its rings and on its stacks, and did not write to its journal any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime import strings, tracks
from stepscope.runtime.events import NO_STEP, Block, EventBatch, Flag, Kind, join_blocks
from stepscope.runtime.intervals import FOREVER, ends
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.ledger import Ledger, SourceLedger
from stepscope.runtime.open_window import STEPS, OpenWindow
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.step_marks import StepMark
from stepscope.runtime.window import Window

RECORDER = "recorder"

Keys = NDArray[np.uint64]
_NO_KEYS: Keys = np.empty(0, np.uint64)


class Leftovers:
    """Events of the directories of a session, in this process's ids.

    Reads the rings twice: their keys first, so that the journal can be searched for them while it is copied, and
    their events when it is known which are missing. So memory holds one ring at a time.
    """

    def __init__(self, parts: Sequence[tuple[SessionFiles, IdMap]]) -> None:
        """Args: the session's own directory, then those of processes that joined; each with its ids."""
        self._parts = parts
        self.last_ns = 0
        """Latest time in the rings and stacks."""
        keys: list[Keys] = []
        ended: list[Keys] = []
        begins: list[NDArray[np.int64]] = []
        marks: list[Block] = []
        for events, _, _ in self._rings():
            kinds = events["kind"]
            keys.append(keys_of(events))
            self.last_ns = max(self.last_ns, int(ends(events).max(initial=0)))
            ended.append(events["id"][kinds == int(Kind.SPAN)])
            marks.append(events[kinds == int(Kind.STEP)])
            begins.append(events["ts"][(kinds != int(Kind.STEP)) & (kinds != int(Kind.GAP))])
        self.last_ns = max([self.last_ns, *(files.last_begin() for files, _ in parts)])
        for files, _ in parts:
            spans = files.open_spans(self.last_ns)
            begins.append(spans["ts"])
            keys.append(keys_of(spans))
        self.marks = join_blocks(marks)
        """The events of step marks; `id` is the number of their profiler."""
        self._keys: Keys = np.unique(np.concatenate([_NO_KEYS, *keys]))
        self._ended: Keys = np.concatenate([_NO_KEYS, *ended])
        self._begins: NDArray[np.int64] = np.sort(np.concatenate([np.empty(0, np.int64), *begins]))

    def among(self, events: Block) -> Keys:
        """Keys of those of the events that the rings hold as well."""
        if not len(self._keys):
            return self._keys
        keys = keys_of(events)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        both: Keys = keys[self._keys[at] == keys]
        return both

    def begin_after(self, at: int) -> int | None:
        """When the first event began that lies wholly after `at`, in ns; `None` if there is none."""
        index = int(np.searchsorted(self._begins, at, side="right"))
        return int(self._begins[index]) if index < len(self._begins) else None

    def missing(self, seen: Keys, profiler: int) -> Iterator[tuple[Block, bytes]]:
        """Events of the rings that are not among `seen`; step marks of one profiler only."""
        for events, args, gaps in self._rings():
            foreign = (events["kind"] == int(Kind.STEP)) & (events["id"] != profiler)
            yield events[~foreign & ~np.isin(keys_of(events), seen)], args
            gaps["ts"] = np.where(gaps["ts"] == 0, self.last_ns, gaps["ts"])
            yield gaps, b""

    def open_spans(self, until: int, seen: Keys) -> Block:
        """Spans that had not ended, up to `until`; those left out whose end is in a ring, or that are among `seen`."""
        blocks: list[Block] = []
        for files, ids in self._parts:
            spans = files.open_spans(until)
            ids.localise(spans, bytearray())
            blocks.append(spans[~np.isin(spans["id"], self._ended) & ~np.isin(keys_of(spans), seen)])
        return join_blocks(blocks)

    def _rings(self) -> Iterator[tuple[Block, bytes, Block]]:
        for number, (files, ids) in enumerate(self._parts):
            for ring in files.rings():
                ids.localise(ring.events, ring.args)
                ids.localise(ring.gaps, bytearray())
                ring.gaps["name"] = strings.intern("dropped")
                # Steps are those of the session's owner.
                own = ring.events if number == 0 else ring.events[ring.events["kind"] != int(Kind.STEP)]
                yield own, bytes(ring.args), ring.gaps


class UnfinishedWindow:
    """A window that the journal does not close: what it has of it, and what is added."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.start = FOREVER
        self.last = 0
        self.seen: list[Keys] = []
        """Keys of events that are in the journal and in the rings."""
        self.profiler = 0
        """Number that the profiler's step marks bear; 0 = unknown."""
        self._marks: list[Block] = []
        self._step_spans: list[NDArray[np.int32]] = []
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
        marks = events[events["kind"] == int(Kind.STEP)]
        if len(marks):
            self._marks.append(marks)
            self.profiler = int(marks["id"][0])
        spans = events[events["kind"] == int(Kind.SPAN)]
        if batch.source == STEPS and len(spans):
            self._step_spans.append(spans["step"])
            self._step_track = int(spans["track"][0])
        self.seen.append(leftovers.among(events))

    def begin(self, marks: Block, end: int) -> None:
        """Fixes the borders; `marks` are all that are known of the profiler, also those outside."""
        known = join_blocks([*self._marks, marks])
        # The same mark may be in the journal and in a ring.
        known = known[np.unique(known["ts"], return_index=True)[1]]
        before = known[known["ts"] <= self.start][-1:]
        first = StepMark(self.start, int(before["step"][0]) if len(before) else NO_STEP)
        if len(before) and int(before["ts"][0]) == self.start:
            first = StepMark(self.start, first.number, int(before["track"][0]), int(before["parent"][0]))
        self._window = OpenWindow(self.index, first)
        self._window.end = max(end, self.start + 1)
        self._window.add_marks(known)

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
        known = np.concatenate([np.empty(0, np.int32), *self._step_spans])
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
