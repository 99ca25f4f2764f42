"""The process-wide table of tracks: where an event is drawn."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.threads import locks

MOST = _core.MAX_TRACKS
"""Tracks of a process at most: further ones share the last."""
STEPS_TID = 1 << 30
"""Thread number shown for steps that do not nest on the training loop's track; above every real one."""


class TrackKind(IntEnum):
    """What a track stands for."""

    PROCESS = 1
    THREAD = 2
    TASK = 3
    """An asyncio task."""
    STREAM = 4
    """A queue of an accelerator: `pid` is the device's number, `tid` the stream's."""
    COUNTER = 5


class Track(msgspec.Struct, frozen=True, gc=False):
    """One row of a viewer. `pid` and `tid` are what Chrome traces show."""

    id: int
    kind: TrackKind
    pid: int
    tid: int
    parent: int
    """Id of the track that this one belongs to, 0 = none."""
    name: str


def new(kind: TrackKind, pid: int, tid: int, name: str, parent: int = 0) -> int:
    """Adds a track and returns its id. A row that may be asked for twice is kept by who asks."""
    return _core.track(int(kind), pid, tid, name, parent)


_read: set[int] = set()
_reading = locks.reentrant()
"""Held while a row is added that is not a living one, and is not known as that yet."""


def read(kind: TrackKind, pid: int, tid: int, name: str, parent: int = 0) -> int:
    """Adds a track that a recording speaks of, and returns its id. Nothing of this process is drawn there, though the
    recording may be its own: see `living`."""
    with _reading:
        track = new(kind, pid, tid, name, parent)
        _read.add(track)
    return track


def living(first: int) -> list[Track]:
    """Those of `since` that no recording spoke of first."""
    with _reading:
        return [track for track in since(first) if track.id not in _read]


_spare: dict[tuple[int, int, str], list[int]] = {}


def borrow(pid: int, tid: int, name: str) -> int:
    """A thread's track of the process that nobody else has at the moment: the table only grows, and a program may make
    profilers for ever. `release` ends the loan."""
    spare = _spare.get((pid, tid, name))
    return spare.pop() if spare else new(TrackKind.THREAD, pid, tid, name, process())


def release(track: int, pid: int, tid: int, name: str) -> None:
    """Ends a loan: nothing is drawn there any more by who borrowed it."""
    _spare.setdefault((pid, tid, name), []).append(track)


def process() -> int:
    """Id of the track of this process."""
    return _core.process_track()


def since(first: int) -> list[Track]:
    """Tracks with an id of `first` or more, in order; ids begin with 1."""
    return [_track(*row) for row in _core.tracks(first)]


def get(track: int) -> Track | None:
    """The track with this id, `None` if there is none."""
    found = _core.tracks(track, 1) if track > 0 else []
    return _track(*found[0]) if found else None


def _track(number: int, kind: int, pid: int, tid: int, parent: int, name: str) -> Track:
    return Track(number, TrackKind(kind), pid, tid, parent, name)
