"""Maps the ids of another process's tables to those of this process."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, Flag
from stepscope.runtime.journal.columns import TrackRecord
from stepscope.runtime.journal.format import heap_arguments
from stepscope.runtime.threads.native_threads import Lock

LOST_NAME = "(name lost)"
"""Text for a name that the file does not have."""

MAX_IDS = 1 << 21
MAX_TRACKS = 1 << 20
MAX_ARGUMENTS = 4096
"""Limit of arguments of an event; a recorder writes fewer (16 KiB, 8 bytes or more each)."""

_UNKNOWN = 0xFFFFFFFF
_TrackIdentity = tuple[int, int, int, int, str]


class _Table:
    """A map from ids to ids that grows up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._map = np.full(1024, _UNKNOWN, np.uint32)
        self._map[0] = 0

    def set(self, theirs: int, ours: int) -> None:
        if theirs >= self._limit:
            return
        if theirs >= len(self._map):
            longer = np.full(max(len(self._map) * 2, theirs + 1), _UNKNOWN, np.uint32)
            longer[: len(self._map)] = self._map
            self._map = longer
        self._map[theirs] = ours

    def get(self, theirs: int) -> int:
        return int(self._map[theirs]) if theirs < len(self._map) else _UNKNOWN

    def map(self, theirs: NDArray[np.unsignedinteger]) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Our ids, and a mask of those that are unknown."""
        inside = theirs < len(self._map)
        ours = self._map[np.where(inside, theirs, 0)]
        return ours, ~inside | (ours == _UNKNOWN)


class _OwnTracks:
    """The tracks of this process by identity. All maps share it: of a thousand processes, each has few tracks."""

    def __init__(self) -> None:
        self._ids: dict[_TrackIdentity, list[int]] = {}
        self._next = 1
        self._lock = Lock()

    def of(self, identity: _TrackIdentity) -> list[int]:
        """The ids of tracks with this identity, in order."""
        with self._lock:
            for track in tracks.since(self._next):
                found = (int(track.kind), track.pid, track.tid, track.parent, track.name)
                self._ids.setdefault(found, []).append(track.id)
                self._next = track.id + 1
            return self._ids.get(identity, []).copy()


class IdMap:
    """Stores the strings and tracks of a file, and rewrites events that use them.

    Memory is bounded: ids beyond the limits of the tables are unknown. Texts are interned; the table of the process counts those
    that it cuts or refuses.

    Args:
        reuse: whether to use existing tracks of this process. The time is proportional to their number.
    """

    def __init__(self, *, reuse: bool = True) -> None:
        self._names = _Table(MAX_IDS)
        self._tracks = _Table(MAX_TRACKS)
        self._used: dict[_TrackIdentity, int] = {}
        """By identity, how many of our first such tracks must not be assigned to a further one of theirs."""
        self._reuse = reuse
        self._lost_name = -1

    def add_strings(self, pairs: Iterable[tuple[int, str]]) -> None:
        """Adds `(id, text)` pairs; ids below `strings.FIRST_NAME` are categories."""
        for theirs, text in pairs:
            self._names.set(theirs, strings.category(text) if theirs < strings.FIRST_NAME else strings.intern(text))

    def add_tracks(self, records: Iterable[TrackRecord]) -> None:
        """Adds tracks. An existing track of this process with the same identity is used again. But two tracks of one file never
        become one, even with the same identity."""
        for record in records:
            if not 0 < record.id < MAX_TRACKS or self._tracks.get(record.id) != _UNKNOWN:
                continue
            try:
                kind = tracks.TrackKind(record.kind)
            except ValueError:
                # A kind of a later version: its track is shown as a thread.
                kind = tracks.TrackKind.THREAD
            parent = self._tracks.get(record.parent)
            parent = 0 if parent == _UNKNOWN else parent
            if not self._reuse:
                self._tracks.set(record.id, tracks.read(kind, record.pid, record.tid, record.name, parent))
                continue
            identity = (int(kind), record.pid, record.tid, parent, record.name)
            used, same = self._used.get(identity, 0), _own_tracks.of(identity)
            if used < len(same):
                ours = same[used]
                self._used[identity] = used + 1
            else:
                ours = tracks.read(kind, record.pid, record.tid, record.name, parent)
                self._used[identity] = len(_own_tracks.of(identity))
            self._tracks.set(record.id, ours)

    def track(self, theirs: int) -> int:
        """Our id of one of their tracks; 0 if it is unknown."""
        ours = self._tracks.get(theirs)
        return 0 if ours == _UNKNOWN else ours

    def name(self, theirs: int) -> int:
        """Our id of one of their names; 0 if its text is unknown."""
        ours = self._names.get(theirs)
        return 0 if ours == _UNKNOWN else ours

    def localise(self, events: Block, args: bytearray) -> None:
        """Rewrites names, categories, tracks and argument keys in place.

        Arguments beyond `args` are dropped.
        """
        events["name"] = self._names_of(events["name"])
        categories, lost = self._names.map(events["category"])
        categories[lost | (categories >= strings.FIRST_NAME)] = 0
        events["category"] = categories
        track_ids, lost = self._tracks.map(events["track"])
        track_ids[lost] = 0
        events["track"] = track_ids
        inline = events["flags"] & int(Flag.ARG_INLINE) != 0
        if inline.any():
            events["args_at"][inline] = self._names_of(events["args_at"][inline])
        self._localise_heap(events, args)

    def _names_of(self, theirs: NDArray[np.uint32]) -> NDArray[np.uint32]:
        ours, lost = self._names.map(theirs)
        if lost.any():
            if self._lost_name < 0:
                self._lost_name = strings.intern(LOST_NAME)
            ours[lost] = self._lost_name
        return ours

    def _localise_heap(self, events: Block, args: bytearray) -> None:
        has_args, invalid = heap_arguments(events, len(args))
        events["args_len"][invalid] = 0
        if len(args) < 8 or not has_args.any():
            events["args_len"][has_args] = 0
            return
        heap = np.frombuffer(args, np.uint8)
        # Unaligned views: element i is the integer that begins at byte i.
        keys = np.ndarray((len(args) - 3,), np.dtype("<u4"), args, 0, (1,))
        lengths = np.ndarray((len(args) - 5,), np.dtype("<u2"), args, 4, (1,))
        # All events iterate over their items together. Each item is visited once, even if several events share it, so that the
        # work is bounded by the heap, even for a damaged file.
        seen = np.zeros(len(heap), np.bool_)
        where = np.flatnonzero(has_args)
        at = events["args_at"][where].astype(np.int64)
        end = at + events["args_len"][where]
        found: list[NDArray[np.int64]] = []
        for _ in range(MAX_ARGUMENTS):
            broken = at + 8 > end
            at_inside = np.where(broken, 0, at)
            following = at_inside + 8 + lengths[at_inside]
            broken |= following > end
            events["args_len"][where[broken]] = 0
            at, end, where, following = at[~broken], end[~broken], where[~broken], following[~broken]
            new = np.unique(at)
            new = new[~seen[new]]
            seen[new] = True
            found.append(new)
            more = (following < end) & ~seen[np.minimum(following, len(heap) - 1)]
            at, end, where = following[more], end[more], where[more]
            if not len(at):
                break
        events["args_len"][where[: len(at)]] = 0
        if found:
            items = np.concatenate(found)
            keys[items] = self._names_of(keys[items])


_own_tracks = _OwnTracks()


def _forked() -> None:
    """A thread of the parent may have held the lock."""
    global _own_tracks
    _own_tracks = _OwnTracks()


os.register_at_fork(after_in_child=_forked)
