"""The victim's events in a journal, and its accounts: its diary against the journal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.events import strings
from stepscope.runtime.events.intervals import ends
from stepscope.runtime.events.record import Block, EventBatch, Flag, Kind
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.windows.window import Window
from tests.stress.torture.diary import LANES, Diary, lane_name
from tests.stress.torture.fault import Outcome
from tests.stress.torture.victim import MAIN, TASKS, THREADS
from tests.support.window_audit import audit_ledger, audit_window

Numbers = NDArray[np.int64]


class Found:
    """Spans of the lanes, and what else the victim's threads record.

    Args:
        journal: the file; that it is not whole is one of `problems`.
        whole: whether all that was recorded was in its windows.
    """

    def __init__(self, journal: Path, *, whole: bool = True) -> None:
        self.open: Counter[int] = Counter()
        """Spans of each lane that had not ended when the last window did."""
        self.gaps = 0
        """Events that gaps count."""
        self.last_begin_ns = 0
        """When the latest span of the lanes began."""
        self.last_gap_ns = 0
        """When the last gap ended, clipped to its window."""
        self.end_ns = 0
        """When the last window ended."""
        self.windows: list[Window] = []
        self.problems: tuple[str, ...] = ()
        self._lanes = {strings.intern(lane_name(lane)): lane for lane in range(LANES)}
        self._ended: list[Any] = []
        self._opened: list[Any] = []
        self._marks: set[int] = set()
        self._gaps: list[int] = []
        self._waits: dict[int, int] = {}
        last = 0
        ledger: Ledger | None = None
        with JournalReader(journal) as reader:
            for item in reader:
                if isinstance(item, EventBatch):
                    self._add(item)
                elif isinstance(item, Window):
                    self.end_ns = max(self.end_ns, item.end_ns)
                    self.windows.append(item)
                    last = max(last, item.index)
                    self.problems += tuple(audit_window(item))
                elif isinstance(item, Ledger):
                    ledger = item
                    self.problems += tuple(audit_ledger("the run", item))
                    if whole and item.windows_left_out:
                        self.problems += (f"{item.windows_left_out} windows were left out: nobody can say what of",)
            if reader.end is None or reader.damage:
                self.problems += (f"the journal is not whole: {reader.damage}",)
        # A gap that goes on in another window is drawn there as well, and counts in the first that was still open.
        self.gaps = sum(self._gaps)
        self.counted = 0
        """Events that the ledger of the run counts: of a thread that was silent, the gap may come after the window; and those for which
        the journal's queue had no room."""
        if ledger is not None:
            account = ledger.outputs.get("journal")
            self.counted = ledger.dropped() + (0 if account is None else sum(account.dropped.values()))
        # The end of a span that was written as open when the last window closed may be lost after that.
        opened = sum(map(len, self._opened))
        if whole and ledger is not None and not self.gaps <= ledger.dropped() <= self.gaps + opened:
            self.problems += (f"gaps name {self.gaps} events, the ledger of the run {ledger.dropped()}",)
        self._check_window(last)

    def ended(self, lane: int) -> Numbers:
        """Numbers of the spans of a lane whose end is there, in order, each once."""
        numbers: Numbers = np.unique(self._rows[self._rows[:, 0] == lane, 1])
        return numbers

    @property
    def marks(self) -> int:
        """Step marks."""
        return len(self._marks)

    def waits(self, before: float) -> int:
        """How often a task waited and went on before some time in ns."""
        return sum(end < before for end in self._waits.values())

    def _add(self, batch: EventBatch) -> None:
        events = batch.events
        gaps = events[events["kind"] == int(Kind.GAP)]
        self._gaps += gaps["id"].tolist()
        self.last_gap_ns = max(self.last_gap_ns, int(ends(gaps).max(initial=0)))
        self._marks.update(events["step"][events["kind"] == int(Kind.STEP)].tolist())
        opened = events["flags"] & int(Flag.OPEN) != 0
        waits = events[(events["name"] == strings.intern("suspended")) & ~opened]
        for span, end in zip(waits["id"].tolist(), ends(waits).tolist(), strict=True):
            self._waits[span] = max(end, self._waits.get(span, 0))
        of_lanes = (events["kind"] == int(Kind.SPAN)) & np.isin(events["name"], list(self._lanes))
        spans, opened = events[of_lanes], opened[of_lanes]
        self.last_begin_ns = max(self.last_begin_ns, int(spans["ts"].max(initial=0)))
        lanes = np.array([self._lanes[int(name)] for name in spans["name"]], np.int64)
        ids = spans["id"].astype(np.int64)
        windows = np.full(len(spans), batch.window, np.int64)
        self._opened.append(np.stack([lanes, ids, windows], axis=1)[opened])
        self._ended.append(np.stack([lanes, _numbers(spans, batch.args), ids, windows], axis=1)[~opened])

    def _check_window(self, last_window: int) -> None:
        self._rows: Any = np.concatenate([np.empty((0, 4), np.int64), *self._ended])
        opened: Any = np.concatenate([np.empty((0, 3), np.int64), *self._opened])
        parts = np.concatenate([self._rows[:, 2:], opened[:, 1:]])
        self.parts = len(parts)
        """Spans in all windows: one that crosses a border is in both."""
        # A span that crosses the border of two windows has a part in each, all with its id.
        twice = len(parts) - len(np.unique(parts, axis=0))
        spans = np.unique(self._rows[:, :3], axis=0)
        twice += len(spans) - len(np.unique(spans[:, :2], axis=0))
        if twice:
            self.problems += (f"{twice} spans came back twice",)
        self.cut_short = len(
            np.unique(opened[(opened[:, 2] != last_window) & ~np.isin(opened[:, 1], self._rows[:, 2]), 1])
        )
        """Spans that are there as open at the end of a window before the last. Of one whose thread waited for room in its ring then the
        record is passed over that came later."""
        # One that was open at the border of two windows and whose record was dropped later is open in the first only.
        opened = opened[(opened[:, 2] == last_window) & ~np.isin(opened[:, 1], self._rows[:, 2])]
        self.open = Counter(opened[:, 0].tolist())


def _numbers(spans: Block, args: bytes) -> Numbers:
    """The first argument of each span, an integer; -1 of those that have none."""
    numbers = np.full(len(spans), -1, np.int64)
    inline = spans["flags"] & int(Flag.ARG_INLINE) != 0
    numbers[inline] = spans["args_len"][inline]
    in_heap = ~inline & (spans["args_len"] >= 16)
    if in_heap.any():
        heap = np.frombuffer(args, np.uint8)
        at = spans["args_at"][in_heap].astype(np.int64)[:, None] + np.arange(8, 16)
        numbers[in_heap] = np.ascontiguousarray(heap[at]).view("<i8").reshape(-1)
    return numbers


UNDER_WAY = THREADS + 2
"""Threads that record. Each may be inside of one call when the end comes: its event may be dropped, and counted, unnoted."""


def check_accounts(place: Path, journal: Path, *, closed: bool, recovered: bool = False, bare: bool = False) -> Outcome:
    """Compares a journal with the diary.

    Every span whose exit had returned before the end is there, or dropped and counted; any other is lost. Of the rest,

    - one whose enter had returned before the end was open then: it is there marked so, or whole if its record came before
      the window closed, or its record was dropped and is among those counted;
    - one that each thread was just entering or leaving at the end may be there or not;
    - one that was begun after the end, which only a thread that outlives the profiler can do, is not recorded.

    Args:
        place: where the diary is.
        journal: what was written or recovered.
        closed: whether the profiler closed in order. The end is then that of the last window, which must not be before
            the program was about to end, and the other threads go on after it; else it is that of the process.
        recovered: whether it had begun to close, and did not come to say when its last window ended: that is not before the
            program was about to end, nor before anything began that is there.
        bare: whether nothing may have been recorded in the step that was going on, which is then in no window.
    """
    found, diary = Found(journal), Diary(place / "diary")
    problems = list(found.problems)
    end = float("inf")
    if closed:
        # The diary notes a begin when the enter has returned, which may be a turn of the interpreter's lock later.
        end = max(diary.ending_ns, found.last_begin_ns) if recovered else found.end_ns
    if closed and not recovered and end < max(diary.ending_ns, int(diary.lane(MAIN)[1].max(initial=0))):
        problems.append("the last window ended before the program's main thread was about to")
    produced = exported = waited = after = 0
    for lane in range(LANES):
        entered, left = diary.lane(lane)
        before = (left > 0) & (left < end)
        ended = found.ended(lane)
        if (ended > len(entered)).any():
            problems.append(f"lane {lane}: a span came back that was not recorded")
        # Those that are there without a note: of one the process may have died, of those that were open at the end of the
        # last window the record may have come before it closed.
        known = ended[ended < len(entered)]
        more = int((ended >= len(entered)).sum()) + int(
            (~before[known] & ((entered[known] > end) | (not closed))).sum()
        )
        if more > 1:
            problems.append(f"lane {lane}: {more} spans came back that had not ended")
        after += int((left > end).sum()) + int((entered > end).sum())
        produced += int(before.sum()) + len(ended) - int(before[known].sum())
        exported += len(ended)
        still_open = ~before & (entered < end)
        still_open[known] = False
        # A window that is neither there nor open lost its record later: the accounts below must have it.
        unseen = int(still_open.sum()) - found.open[lane]
        produced += max(unseen, 0)
        if unseen < -1 or (unseen > 0 and not closed):
            problems.append(f"lane {lane}: {still_open.sum()} spans were open, {found.open[lane]} are there")
        if THREADS <= lane < THREADS + TASKS:  # a task waits once before each inner span, and once in it
            inner = slice(1, None, 2)
            waited += int((entered[inner] < end).sum()) + int(before[inner].sum())
    # Gaps count waits and step marks as well.
    begun = diary.steps + int(not bare or found.marks > diary.steps)
    others = (waited - found.waits(end)) + (begun - found.marks)
    dropped = found.gaps - others
    surplus = exported + dropped - produced
    # Events may be dropped in the very moment of the end, without a note that they had returned. A gap that reaches the end
    # of the last window counts those after it as well.
    uncertain = UNDER_WAY + (after if found.last_gap_ns >= found.end_ns else 0)
    if 0 < surplus <= uncertain:
        produced += surplus
    if -found.cut_short <= surplus < 0:
        exported -= surplus
    return Outcome(
        produced=produced, exported=exported, dropped=dropped, blocked_ns=diary.blocked_ns, problems=tuple(problems)
    )
