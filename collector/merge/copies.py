"""Copies: of a recording that lies in several files, a merge takes each event once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stepscope.collector.runs.recording import MAX_SYNCS, Recording
from stepscope.runtime.journal.records import ClockSync, RunRecord


def without_copies(recordings: Sequence[Recording]) -> tuple[list[Recording], list[str]]:
    """Leaves out copies of recordings. Their round trips are added to the recordings that stay.

    Of several files of one stream, as several collectors leave them when one takes it over, the one with most events stays. So it is
    with recordings of one run that overlap in time, such as its own journal and its stream.

    Returns:
        The recordings that stay, in their order, and a sentence for each recording that is left out though it has something else.
    """
    notes: list[str] = []
    by_run = dict[RunRecord, list[Recording]]()
    for recording in sorted(recordings, key=_most):
        stay = by_run.setdefault(recording.process, [])
        other = next((one for one in stay if _is_copy(one, recording)), None)
        if other is None:
            stay.append(recording)
            continue
        if not covers(other, recording):
            notes.append(
                f"{recording.path} has other events of the run in {other.path}: only those of that one are here, not the "
                f"{recording.events:,} of the first"
            )
        if recording.syncs:  # the round trips of a process hold for all its recordings
            other.syncs = _united((*other.syncs, *recording.syncs))
    staying = {id(one) for stay in by_run.values() for one in stay}
    return [recording for recording in recordings if id(recording) in staying], notes


def _is_copy(one: Recording, other: Recording) -> bool:
    """Whether two recordings of one run are of the same stream, or overlap in time."""
    if one.stream and one.stream == other.stream:
        return True
    return (one.first_ns < other.last_ns and other.first_ns < one.last_ns) or covers(one, other)


def _most(recording: Recording) -> tuple[int, bool, str]:
    return -recording.events, not recording.ended, recording.id


def covers(one: Recording, other: Recording) -> bool:
    """Whether all that is in `other` is in `one`, which is of the same run."""
    rows, others = one.all_rows(), other.all_rows()
    at = np.searchsorted(rows["window"], others["window"])
    if at.max(initial=-1) >= len(rows) or (rows["window"][at] != others["window"]).any():
        return False
    if (rows["events"][at] < others["events"]).any():
        return False
    return not other.events or (one.first_ns <= other.first_ns and other.last_ns <= one.last_ns)


def _united(syncs: Iterable[ClockSync]) -> list[ClockSync]:
    return list({(sync.clock, sync.sent, sync.returned): sync for sync in syncs}.values())[:MAX_SYNCS]
