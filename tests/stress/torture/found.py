"""What a journal tells of the victim."""

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
from tests.stress.torture.diary import LANES, lane_name
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
        self._settle(last)

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

    def _settle(self, last_window: int) -> None:
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
    held = ~inline & (spans["args_len"] >= 16)
    if held.any():
        heap = np.frombuffer(args, np.uint8)
        at = spans["args_at"][held].astype(np.int64)[:, None] + np.arange(8, 16)
        numbers[held] = np.ascontiguousarray(heap[at]).view("<i8").reshape(-1)
    return numbers
