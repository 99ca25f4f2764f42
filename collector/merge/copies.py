"""What was recorded once and lies in several files: each event counts once in a merge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stepscope.collector.merge.recording import MAX_SYNCS, Recording
from stepscope.runtime.journal.records import ClockSync, RunRecord


def without_copies(recordings: Sequence[Recording]) -> tuple[list[Recording], list[str]]:
    """Leaves out recordings that others have as well; their round trips go to those.

    - Of several files of one stream, as several collectors leave them when one takes it over, the one with most events stays.
    - A stream that a collector marked as superseded is left out if the stream that took its place is there.
    - So is one of which another recording of the same run has every window, with as many events or more: where such a
      mark is missing, because it was not copied or the other went to another collector.

    Returns:
        The others, in their order, and what is to be said: that of two files of one stream, neither has all.
    """
    said: list[str] = []
    kept = dict[str, Recording]()
    for recording in sorted(recordings, key=_most):
        key = recording.stream or f"file {recording.id}"
        known = kept.get(key)
        if known is None:
            kept[key] = recording
            continue
        if not _covers(known, recording):
            said.append(
                f"stream {key} lies in {known.path} and, with other events, in {recording.path}: only those of the first "
                f"are here, not the {recording.events:,} of the second"
            )
        _add_syncs(known, recording)
    for key, recording in list(kept.items()):
        successor = _successor(recording, kept)
        if successor is not None:
            _add_syncs(successor, recording)
            del kept[key]
    by_run = dict[RunRecord, list[str]]()
    for key, recording in kept.items():
        by_run.setdefault(msgspec.structs.replace(recording.run, created_ns=0), []).append(key)
    for keys in by_run.values():
        stay = list[Recording]()
        for key in sorted(keys, key=lambda key: _most(kept[key])):
            recording = kept[key]
            other = next((one for one in stay if _covers(one, recording)), None)
            if other is None:
                stay.append(recording)
                continue
            _add_syncs(other, recording)
            del kept[key]
    there = {id(recording) for recording in kept.values()}
    return [recording for recording in recordings if id(recording) in there], said


def _most(recording: Recording) -> tuple[int, bool, str]:
    return -recording.events, not recording.ended, recording.id


def _successor(recording: Recording, kept: dict[str, Recording]) -> Recording | None:
    """The last of those that took its place, one after the other."""
    found: Recording | None = None
    seen = {recording.stream}
    next = recording.superseded
    while next and next not in seen and next in kept:
        seen.add(next)
        found = kept[next]
        next = found.superseded
    return found


def _covers(one: Recording, other: Recording) -> bool:
    """Whether all that is in `other` is in `one`, which is of the same run."""
    if not other.windows.keys() <= one.windows.keys():
        return False
    if any(one.counts.get(window, 0) < count for window, count in other.counts.items()):
        return False
    return not other.events or (one.first_ns <= other.first_ns and other.last_ns <= one.last_ns)


def _add_syncs(recording: Recording, others: Recording) -> None:
    """The round trips of a process hold for all its recordings."""
    if others.syncs:
        recording.syncs = _united((*recording.syncs, *others.syncs))


def _united(syncs: Iterable[ClockSync]) -> list[ClockSync]:
    return list({(sync.clock, sync.sent, sync.returned): sync for sync in syncs}.values())[:MAX_SYNCS]
