"""Events of a dead process that are in its rings and stacks, and not in its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.accounting.ledger import Ledger, SourceLedger, losses
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.intervals import FOREVER, Mask, ends
from stepscope.runtime.events.record import NO_STEP, Block, EventBatch, Flag, Kind, distinct, empty_block, join_blocks
from stepscope.runtime.events.survey import survey
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.journal.records import WindowSoFar
from stepscope.runtime.recovery.flight_files import retained_blocks
from stepscope.runtime.recovery.session_files import MAX_RINGS, SessionFiles
from stepscope.runtime.windows.open_window import RECORDER, STEPS, OpenWindow
from stepscope.runtime.windows.step_marks import StepMark
from stepscope.runtime.windows.window import Window

Keys = NDArray[np.uint64]
_NO_KEYS: Keys = np.empty(0, np.uint64)
MAX_TIME_NS = 1 << 62
"""No event is later, 146 years after the machine began. Times of a damaged frame may be any."""


class UnsavedEvents:
    """Events of the directories of a session, with ids of this process.

    The rings are read twice: first the keys, to find them in the journal; then the missing events. So only one ring is in memory
    at a time.
    """

    def __init__(
        self, parts: Sequence[tuple[SessionFiles, IdMap]], profiler: int = 0, *, released: bool = True
    ) -> None:
        """
        Args:
            parts: the session's own directory, then those of joined processes, each with its ids.
            profiler: number of the profiler whose retained steps are read; 0 = all.
            released: whether to read all released slots, not only the latest. A complete journal has their events.
        """
        self._parts = parts
        self._profiler = profiler
        self.released = released
        self._counted: list[dict[int, int]] = [{} for _ in parts]
        """By part and ring, the serial number below which gaps of the journal, or of a flight recorder, count lost events."""
        self._part_of = {
            int(files.directory.name.split("-")[0]): number for number, (files, _) in enumerate(parts) if number
        }
        self.last_ns = 0
        """Latest time in the rings and stacks."""
        self.first_ns = int(FOREVER)
        """End of the first event that was not drained. The journal reports losses before that."""
        self.saved_until_ns = 0
        """Drained events that ended by this time are in the journal, in frames that recovery does not read."""
        keys: list[Keys] = []
        ended: list[Keys] = []
        begins: list[NDArray[np.int64]] = []
        marks: list[Block] = []
        self._oldest_ns = int(FOREVER)
        """Begin of the first event in the rings."""
        for events, _, _, _, released in self._rings():
            self._oldest_ns = min(self._oldest_ns, int(events["ts"].min(initial=FOREVER)))
            if not released:
                self.first_ns = min(self.first_ns, int(ends(events).min(initial=FOREVER)))
            kinds = events["kind"]
            keys.append(keys_of(events))
            self.last_ns = max(self.last_ns, int(ends(events).max(initial=0)))
            ended.append(events["id"][kinds == int(Kind.SPAN)])
            marks.append(events[kinds == int(Kind.STEP)])
            begins.append(events["ts"][(kinds != int(Kind.STEP)) & (kinds != int(Kind.GAP)) & ~_early(events)])
        for files, _ in parts:
            self.last_ns = max(self.last_ns, int(files.open_spans(MAX_TIME_NS)["ts"].max(initial=0)))
        for files, _ in parts:
            spans = files.open_spans(self.last_ns)
            begins.append(spans["ts"][~_early(spans)])
            keys.append(keys_of(spans))
        self.marks = join_blocks(marks)
        """The events of step marks; `id` is the number of their profiler."""
        self._keys: Keys = np.sort(np.concatenate([_NO_KEYS, *keys]))
        self._ended: Keys = np.sort(np.concatenate([_NO_KEYS, *ended]))
        self._begins: NDArray[np.int64] = np.sort(np.concatenate([np.empty(0, np.int64), *begins]))

    def among(self, events: Block) -> Keys:
        """Keys of the events that are in the rings, too."""
        if not len(events) or survey(events).end_ns < self._oldest_ns:
            return _NO_KEYS
        keys = keys_of(events)
        both: Keys = keys[_among(keys, self._keys)]
        return both

    def note_gaps(self, events: Block) -> None:
        """Registers gaps of the journal, so that the rings do not report the same losses."""
        of_rings = (events["kind"] == int(Kind.GAP)) & (events["parent"] > 0) & (events["parent"] <= MAX_RINGS)
        for index in np.flatnonzero(of_rings) if self._counted else ():
            gap: Any = events[index]
            track = tracks.get(int(gap["track"]))
            counted = self._counted[self._part_of.get(track.pid, 0) if track else 0]
            ring = int(gap["parent"]) - 1
            counted[ring] = max(counted.get(ring, 0), int(gap["self_dur"]))

    def begin_after(self, at: int) -> int | None:
        """Begin of the first event after `at`, in ns; `None` if there is none."""
        index = int(np.searchsorted(self._begins, at, side="right"))
        return int(self._begins[index]) if index < len(self._begins) else None

    def pieces(self, profiler: int) -> Iterator[tuple[Block, bytes, str, bool]]:
        """All events and gaps, without duplicates, with arguments and source; step marks of one profiler only.

        The last value says whether the events had been drained from a ring.
        """
        for events, args, gaps, source, drained in self._rings():
            wanted = (events["kind"] != int(Kind.STEP)) | (events["id"] == profiler)
            if drained:
                wanted &= ends(events) > self.saved_until_ns
            yield events[wanted], args, source, drained
            gaps["ts"] = np.where(gaps["ts"] == 0, self.last_ns, gaps["ts"])
            gaps["dur"] = np.where(gaps["dur"] < 0, self.last_ns - gaps["ts"], gaps["dur"])
            yield gaps, b"", RECORDER, False

    def open_spans(self, until: int) -> Block:
        """Open spans, cut at `until`, without those whose end is in a ring."""
        blocks: list[Block] = []
        for files, ids in self._parts:
            spans = files.open_spans(until)
            ids.localise(spans, bytearray())
            blocks.append(spans[~_among(spans["id"], self._ended)])
        return join_blocks(blocks)

    def _rings(self) -> Iterator[tuple[Block, bytes, Block, str, bool]]:
        """The retained blocks of a flight recorder, and the rings, without duplicates."""
        retained = _NO_KEYS
        for number, (files, ids) in enumerate(self._parts):
            if number == 0:  # only the session's owner retains steps
                found = [retained]
                for piece in retained_blocks(files, self._profiler):
                    ids.localise(piece.events, piece.args)
                    self.note_gaps(piece.events)
                    found.append(keys_of(piece.events))
                    yield piece.events, bytes(piece.args), piece.gaps, piece.source, False
                retained = np.sort(np.concatenate(found))
            for ring in files.rings(self._counted[number], released=self.released):
                ids.localise(ring.events, ring.args)
                ids.localise(ring.gaps, bytearray())
                ring.gaps["name"] = strings.intern("dropped")
                # Drained events stay in the ring until they are overwritten. Only steps of the session's owner count.
                new = ~_among(keys_of(ring.events), retained)
                new &= (number == 0) | (ring.events["kind"] != int(Kind.STEP))
                drained = np.ones(len(new), np.bool_) if ring.drained is None else ring.drained
                args = bytes(ring.args)
                yield ring.events[new & drained], args, empty_block(), ring.source, True
                yield ring.events[new & ~drained], args, ring.gaps, ring.source, False


class UnfinishedWindow:
    """A window without an end in the journal: statistics of its events there, and the events that recovery adds."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.start = FOREVER
        self.last = 0
        self.added = 0
        """Events that the journal lacked, without gaps."""
        self.dropped = 0
        """Lost events, according to gaps that the journal lacked."""
        self.profiler = 0
        """Number of the profiler in its step marks; 0 = unknown."""
        self._marks: list[Block] = []
        self._step_spans: list[NDArray[np.int32]] = []
        self._step_track = 0
        self._counts: Counter[str] = Counter()
        self._dropped: dict[str, Counter[str]] = {}
        self._seen: list[Keys] = []  # of events that are in the journal and in the rings
        self._saved_keys: Keys = _NO_KEYS
        self._window: OpenWindow | None = None

    @property
    def window(self) -> OpenWindow:
        """Its borders and steps, once they are fixed."""
        assert self._window is not None
        return self._window

    def add_counts(self, window: WindowSoFar) -> None:
        """Adds the counts and times of its frames before an index."""
        self.start, self.last = min(self.start, _possible(window.first_ns)), max(self.last, _possible(window.last_ns))
        self._counts.update(window.events)

    def count(self, batch: EventBatch) -> None:
        """Adds the counts and times of a batch of the journal."""
        self.start = min(self.start, _possible(int(batch.events["ts"].min(initial=FOREVER))))
        self.last = max(self.last, _possible(int(ends(batch.events).max(initial=0))))
        self._counts[batch.source] += len(batch)

    def add(self, batch: EventBatch, unsaved: UnsavedEvents) -> None:
        """Registers the step marks, gaps and spans of steps of a batch, and its events that are in the rings, too."""
        events = batch.events
        gaps = events["kind"] == int(Kind.GAP)
        self._counts[batch.source] -= int(gaps.sum())
        self._dropped.setdefault(batch.source, Counter()).update(losses(events))
        marks = events[events["kind"] == int(Kind.STEP)]
        if len(marks):
            self._marks.append(marks)
            self.profiler = int(marks["id"][0])
        spans = events[events["kind"] == int(Kind.SPAN)]
        if batch.source == STEPS and len(spans):
            self._step_spans.append(spans["step"])
            rows = [track for track in map(tracks.get, distinct(spans["track"])) if track is not None]
            self._step_track = next((row.id for row in rows if row.tid == tracks.STEPS_TID), self._step_track)
        self._seen.append(unsaved.among(events))

    def begin(self, marks: Block, end: int) -> None:
        """Sets the borders. `marks` are the profiler's step marks that the journal lacks."""
        if self.start == FOREVER:  # none of its events could be read
            self.start = max(end - 1, 0)
        all_marks = join_blocks([*self._marks, marks])
        # The same mark may be in the journal and in a ring.
        all_marks = all_marks[np.unique(all_marks["ts"], return_index=True)[1]]
        before = all_marks[all_marks["ts"] <= self.start][-1:]
        first = StepMark(self.start, int(before["step"][0]) if len(before) else NO_STEP)
        if len(before) and int(before["ts"][0]) == self.start:
            first = StepMark(self.start, first.number, int(before["track"][0]), int(before["parent"][0]))
        self._window = OpenWindow(self.index, first)
        self._window.end_at(max(end, self.start + 1))
        self._window.add_marks(all_marks)
        self._saved_keys = np.sort(np.concatenate([_NO_KEYS, *self._seen]))
        self._seen.clear()

    def add_unsaved(self, events: Block, args: bytes, source: str = RECORDER) -> EventBatch:
        """Counts and returns the events, or parts of events, within this window that the journal lacks."""
        events = events[~_among(keys_of(events), self._saved_keys)]
        accepted = self.window.accept(source, events) if len(events) else events
        gaps = accepted["kind"] == int(Kind.GAP)
        self.dropped += int(accepted["id"][gaps].sum())
        self.added += len(accepted) - int(gaps.sum())
        return EventBatch(source, self.index, accepted, args)

    def step_spans(self, pid: int) -> EventBatch:
        """Spans of steps that the journal lacks; the last step is flagged as open."""
        track = self._step_track or tracks.read(tracks.TrackKind.THREAD, pid, tracks.STEPS_TID, "steps")
        spans = self.window.step_spans(track, last=True)
        if len(spans):
            spans["flags"][-1] |= int(Flag.OPEN)
        written = np.concatenate([np.empty(0, np.int32), *self._step_spans])
        return self.add_unsaved(spans[(spans["step"] >= 0) & ~np.isin(spans["step"], written)], b"", STEPS)

    def finish(self, profiler: str, wall_start_ns: int, metadata: dict[str, Any], note: str) -> Window:
        assert self.window.end is not None
        sources: dict[str, SourceLedger] = {}
        recovered = self.window.ledger()
        for source in sorted({*self._counts, *recovered}):
            added = recovered.get(source, SourceLedger())
            accepted = self._counts[source] + added.accepted
            dropped = self._dropped.get(source, Counter()) + Counter(added.dropped)
            sources[source] = SourceLedger(accepted + dropped.total(), accepted, dict(dropped))
        return Window(
            index=self.index,
            profiler=profiler,
            start_ns=self.start,
            end_ns=self.window.end,
            steps=tuple(step for step in self.window.steps() if step.number >= 0),
            complete=False,
            diagnostics=(note,),
            ledger=Ledger(sources),
            metadata=metadata,
            wall_start_ns=wall_start_ns,
        )


def _possible(ns: int) -> int:
    return min(max(ns, 0), MAX_TIME_NS)


def _among(keys: Keys, sorted_keys: Keys) -> Mask:
    """Mask of the keys that are in `sorted_keys`. With millions of them it is much faster than `np.isin`."""
    if not len(sorted_keys):
        return np.zeros(len(keys), np.bool_)
    found: Mask = sorted_keys[np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)] == keys
    return found


def keys_of(events: Block) -> Keys:
    """A number for each event that is the same in the ring and in the journal. For a span, it is the id.

    Times of spans, times and counts of gaps, and `step` do not matter, as a window changes them.
    """
    # Ids are nearly sorted: a search for millions of them goes through memory once.
    keys: Keys = events["id"].copy()
    others = np.flatnonzero((events["kind"] != int(Kind.SPAN)) | (keys == 0))
    if len(others):
        keys[others] = _mixed(events[others])
    return keys


def _mixed(events: Block) -> Keys:
    unsigned = np.uint64
    gaps = (events["kind"] == int(Kind.GAP)) & (events["parent"] != 0)
    events["ts"][gaps], events["id"][gaps] = 0, events["parent"][gaps]
    # Odd constants, so that collisions are as unlikely as 64 bits allow.
    mixed: Keys = events["ts"].astype(unsigned) * unsigned(0x9E3779B97F4A7C15)
    for field, factor in (
        ("self_dur", 0xC2B2AE3D27D4EB4F),
        ("id", 0x165667B19E3779F9),
        ("name", 0xFF51AFD7ED558CCD),
        ("track", 0xC4CEB9FE1A85EC53),
        ("kind", 0x27D4EB2F165667C5),
    ):
        mixed = (mixed ^ (mixed >> unsigned(29))) + events[field].astype(unsigned) * unsigned(factor)
    return mixed


def _early(events: Block) -> Mask:
    """Mask of the spans that were entered before recording began. Their `ts` is when recording had stopped before."""
    early: Mask = events["flags"] & int(Flag.CLIPPED) != 0
    return early
