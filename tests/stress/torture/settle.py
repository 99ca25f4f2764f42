"""Accounts of the victim: its diary against the journal that it left."""

from __future__ import annotations

from pathlib import Path

from tests.stress.torture.diary import LANES, Diary
from tests.stress.torture.fault import Outcome
from tests.stress.torture.found import Found
from tests.stress.torture.victim import MAIN, TASKS, THREADS

UNDER_WAY = THREADS + 2
"""Threads that record. Each may be inside of one call when the end comes: its event may be dropped, and counted, unnoted."""


def settle(place: Path, journal: Path, *, closed: bool, recovered: bool = False, bare: bool = False) -> Outcome:
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
        # What is neither there nor open was left later, and its record dropped: the accounts below must know of it.
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
        produced=produced, exported=exported, dropped=dropped, held_ns=diary.held_ns, problems=tuple(problems)
    )
