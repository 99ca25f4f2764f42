"""Copies: of a recording that lies in several files, a merge takes each event once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.collector.runs.recording import MAX_SYNCS, Recording
from stepscope.runtime.journal.index import Rows
from stepscope.runtime.journal.records import ClockSync, RunRecord


def without_copies(recordings: Sequence[Recording]) -> tuple[list[Recording], list[str]]:
    """Leaves out copies of recordings. Their round trips are added to the recordings that stay.

    - Of several files of one stream, as several collectors leave them when one takes it over, the one with most events stays.
    - A recording is left out if another one of the same run has every window, with as many events or more.
    - If no recording of a run has all its windows, as when its journal met its limit, windows that overlap in time are taken
      from one of them: from the one that has most events in these windows.

    Returns:
        The recordings that stay, in their order, and sentences for the report: streams of which no file has all events, and runs
        whose windows overlap.
    """
    notes: list[str] = []
    by_stream = dict[str, Recording]()
    for recording in sorted(recordings, key=_most):
        key = recording.stream or f"file {recording.id}"
        before = by_stream.get(key)
        if before is None:
            by_stream[key] = recording
            continue
        if not covers(before, recording):
            notes.append(
                f"stream {key} lies in {before.path} and, with other events, in {recording.path}: only those of the first "
                f"are here, not the {recording.events:,} of the second"
            )
        _add_syncs(before, recording)
    by_run = dict[RunRecord, list[str]]()
    for key, recording in by_stream.items():
        by_run.setdefault(recording.process, []).append(key)
    final = dict[int, Recording]()
    for keys in by_run.values():
        stay = list[Recording]()
        for key in sorted(keys, key=lambda key: _most(by_stream[key])):
            recording = by_stream[key]
            other = next((one for one in stay if covers(one, recording)), None)
            if other is None:
                stay.append(recording)
            else:
                _add_syncs(other, recording)
        divided = _divided(stay)
        some = any(len(one.marks) for one in stay)
        final |= {id(one): part for one, part in zip(stay, divided, strict=True) if len(part.marks) or not some}
        if sum(len(one.marks) for one in divided) < sum(len(one.marks) for one in stay):
            notes.append(
                f"{' and '.join(str(one.path) for one in stay)} have windows of one run that overlap in time: each time is read "
                "from one of them"
            )
    return [final[id(recording)] for recording in recordings if id(recording) in final], notes


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


def _divided(recordings: Sequence[Recording]) -> list[Recording]:
    """Recordings of one run, each event in one of them only as far as windows tell; the fullest first."""
    if len(recordings) < 2:
        return list(recordings)
    tables = [recording.all_rows() for recording in recordings]
    rows = np.concatenate(tables)
    owners = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    order = np.lexsort((rows["end_ns"], rows["start_ns"]))
    rows, owners = rows[order], owners[order]
    groups = _overlapping(rows)
    # Events by group and recording: of those of one group the recording with most events, of several the first.
    pairs, at = np.unique(np.stack([groups, owners], 1), axis=0, return_inverse=True)
    events = np.zeros(len(pairs), np.int64)
    np.add.at(events, at.reshape(-1), rows["events"])
    order = np.lexsort((pairs[:, 1], -events, pairs[:, 0]))
    best = pairs[order][np.diff(pairs[order, 0], prepend=-1) != 0, 1]
    here = best[groups] == owners if len(rows) else np.zeros(0, np.bool_)
    syncs = _united(sync for recording in recordings for sync in recording.syncs)
    return [
        recording.restricted(rows["window"][here & (owners == number)], list(syncs))
        for number, recording in enumerate(recordings)
    ]


def _overlapping(rows: Rows) -> NDArray[np.int64]:
    """A number for each window, sorted by time: those of one group overlap in time, one with the next. Two that begin at once do,
    however short."""
    starts, ends = rows["start_ns"], np.maximum.accumulate(rows["end_ns"])
    begins = np.zeros(len(rows), np.bool_)
    begins[1:] = (starts[1:] >= ends[:-1]) & (starts[1:] > starts[:-1])
    return np.cumsum(begins, dtype=np.int64)


def _add_syncs(recording: Recording, others: Recording) -> None:
    """The round trips of a process hold for all its recordings."""
    if others.syncs:
        recording.syncs = _united((*recording.syncs, *others.syncs))


def _united(syncs: Iterable[ClockSync]) -> list[ClockSync]:
    return list({(sync.clock, sync.sent, sync.returned): sync for sync in syncs}.values())[:MAX_SYNCS]
