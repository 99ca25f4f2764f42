"""What was recorded once and lies in several files: each event counts once in a merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from stepscope.collector.runs.recording import MAX_SYNCS, Recording
from stepscope.runtime.accounting.ledger import sum_ledgers
from stepscope.runtime.journal.records import ClockSync, RunRecord


def without_copies(recordings: Sequence[Recording]) -> tuple[list[Recording], list[str]]:
    """Leaves out recordings that others have as well; their round trips go to those.

    - Of several files of one stream, as several collectors leave them when one takes it over, the one with most events stays.
    - A recording is left out if another one of the same run has every window, with as many events or more.
    - Where none of a run's recordings has all, as when its journal met its limit, each window is in one of them only: of
      windows that overlap in time, all those of the recording that has most events in them.

    Returns:
        The others, in their order, and what is to be said: that of several files of one stream none has all, and that windows of a run overlap.
    """
    said: list[str] = []
    kept = dict[str, Recording]()
    for recording in sorted(recordings, key=_most):
        key = recording.stream or f"file {recording.id}"
        known = kept.get(key)
        if known is None:
            kept[key] = recording
            continue
        if not covers(known, recording):
            said.append(
                f"stream {key} lies in {known.path} and, with other events, in {recording.path}: only those of the first "
                f"are here, not the {recording.events:,} of the second"
            )
        _add_syncs(known, recording)
    by_run = dict[RunRecord, list[str]]()
    for key, recording in kept.items():
        by_run.setdefault(recording.process, []).append(key)
    final = dict[int, Recording]()
    for keys in by_run.values():
        stay = list[Recording]()
        for key in sorted(keys, key=lambda key: _most(kept[key])):
            recording = kept[key]
            other = next((one for one in stay if covers(one, recording)), None)
            if other is None:
                stay.append(recording)
            else:
                _add_syncs(other, recording)
        divided = _divided(stay)
        unread = not any(one.windows for one in stay)  # only their indexes were read
        final |= {
            id(one): part for one, part in zip(stay, divided, strict=True) if part.windows or unread or len(stay) == 1
        }
        if sum(len(one.windows) for one in divided) < sum(len(one.windows) for one in stay):
            said.append(
                f"{' and '.join(str(one.path) for one in stay)} have windows of one run that overlap in time: each time is read "
                "from one of them"
            )
    return [final[id(recording)] for recording in recordings if id(recording) in final], said


def _most(recording: Recording) -> tuple[int, bool, str]:
    return -recording.events, not recording.ended, recording.id


def covers(one: Recording, other: Recording) -> bool:
    """Whether all that is in `other` is in `one`, which is of the same run."""
    if not other.windows.keys() <= one.windows.keys():
        return False
    if any(one.counts.get(window, 0) < count for window, count in other.counts.items()):
        return False
    return not any(other.counts.values()) or (one.first_ns <= other.first_ns and other.last_ns <= one.last_ns)


class _Row(msgspec.Struct, frozen=True):
    """A window of one of several recordings of a run."""

    start_ns: int
    end_ns: int
    index: int
    whose: int
    events: int


def _divided(recordings: Sequence[Recording]) -> list[Recording]:
    """Recordings of one run, each event in one of them only as far as windows tell; the fullest first."""
    if len(recordings) < 2:
        return list(recordings)
    rows = [
        _Row(window.start_ns, window.end_ns, index, whose, recording.counts.get(index, 0))
        for whose, recording in enumerate(recordings)
        for index, window in recording.windows.items()
    ]
    parts: list[set[int]] = [set() for _ in recordings]
    for overlapping in _overlapping(rows):
        events = Counter[int]()
        for row in overlapping:
            events[row.whose] += row.events
        fullest = max(sorted(events), key=lambda whose: events[whose])
        parts[fullest].update(row.index for row in overlapping if row.whose == fullest)
    syncs = _united(sync for recording in recordings for sync in recording.syncs)
    made: list[Recording] = []
    for recording, part in zip(recordings, parts, strict=True):
        windows = {index: window for index, window in recording.windows.items() if index in part}
        made.append(
            msgspec.structs.replace(
                recording,
                windows=windows,
                counts={index: count for index, count in recording.counts.items() if index in part},
                ledger=sum_ledgers(window.ledger for window in windows.values()),
                syncs=list(syncs),
            )
        )
    return made


def _overlapping(rows: list[_Row]) -> Iterator[list[_Row]]:
    """Windows in groups: those of one group overlap in time, one with the next. Two that begin at once do, however short."""
    group: list[_Row] = []
    end = 0
    for row in sorted(rows, key=lambda row: (row.start_ns, row.end_ns)):
        if group and row.start_ns >= end and row.start_ns > group[-1].start_ns:
            yield group
            group = []
        end = max(end, row.end_ns) if group else row.end_ns
        group.append(row)
    if group:
        yield group


def _add_syncs(recording: Recording, others: Recording) -> None:
    """The round trips of a process hold for all its recordings."""
    if others.syncs:
        recording.syncs = _united((*recording.syncs, *others.syncs))


def _united(syncs: Iterable[ClockSync]) -> list[ClockSync]:
    return list({(sync.clock, sync.sent, sync.returned): sync for sync in syncs}.values())[:MAX_SYNCS]
