"""The process-wide table of tracks, the rows of a trace."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.threads import locks

MAX_TRACKS = _core.MAX_TRACKS
"""Limit of tracks of a process. Further ones share the last."""
STEPS_TID = 1 << 30
"""Thread number of the track for steps that do not nest on the training loop's track. It exceeds all real ones."""


class TrackKind(IntEnum):
    """Kind of a track."""

    PROCESS = 1
    THREAD = 2
    TASK = 3
    """An asyncio task."""
    STREAM = 4
    """A queue of an accelerator: `pid` is the device's number, `tid` the stream's."""
    COUNTER = 5


class Track(msgspec.Struct, frozen=True, gc=False):
    """One row of a viewer. Chrome traces show `pid` and `tid`."""

    id: int
    kind: TrackKind
    pid: int
    tid: int
    parent: int
    """Id of the parent track, 0 = none."""
    name: str


def new(kind: TrackKind, pid: int, tid: int, name: str, parent: int = 0) -> int:
    """Adds a track and returns its id. Each call adds one: the caller must remember the id."""
    return _core.track(int(kind), pid, tid, name, parent)


_read: set[int] = set()
_reading = locks.reentrant()
"""Held while a track of a recording is added, until it is in `_read`."""


def read(kind: TrackKind, pid: int, tid: int, name: str, parent: int = 0) -> int:
    """Adds a track of a recording, and returns its id. This process has no live events on it, even if the recording is its own: see
    `living`."""
    with _reading:
        track = new(kind, pid, tid, name, parent)
        _read.add(track)
    return track


def living(first: int) -> list[Track]:
    """The tracks of `since` that are not from recordings."""
    with _reading:
        return [track for track in since(first) if track.id not in _read]


_spare: dict[tuple[int, int, str], list[int]] = {}


def borrow(pid: int, tid: int, name: str) -> int:
    """Returns a track of kind thread that is not in use. Call `release` afterwards, so that it can be reused: a program may create
    profilers for ever, and the table never shrinks."""
    spare = _spare.get((pid, tid, name))
    return spare.pop() if spare else new(TrackKind.THREAD, pid, tid, name, process())


def release(track: int, pid: int, tid: int, name: str) -> None:
    """Makes a track of `borrow` available again."""
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
