"""Which tracks an output has named: each is, before its first event."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepscope.runtime.events import tracks
from stepscope.runtime.events.record import Block
from stepscope.runtime.events.tracks import Track

_FEW = 256
"""Events that are looked at one by one."""


class NamedTracks:
    """The tracks that one output has named so far. A process may know many more than a run of it uses: those of other
    runs, and of recordings that it has read."""

    def __init__(self) -> None:
        self._named = np.zeros(64, np.bool_)
        self._named[0] = True

    def missing(self, events: Block) -> list[Track]:
        """Tracks of these events that were not named yet, in the order of their ids. It names none: see `add`."""
        used = events["track"]
        if len(used) <= _FEW:  # numpy would hand the interpreter's lock over
            few = sorted(track for track in set(used.tolist()) if track not in self)
            return [track for track in map(tracks.get, few) if track is not None]
        top = int(used.max())
        if top >= len(self._named):
            # An id that was never given is none of a track, and must cost no memory.
            used = used[used <= tracks.MOST] if top > tracks.MOST else used
            self._reach(min(top, tracks.MOST))
        if self._named[used].all():
            return []
        # Not np.unique, which imports numpy.ma: that would hold up the first steps of training.
        new = sorted(set(used[~self._named[used]].tolist()))
        return [track for track in map(tracks.get, new) if track is not None]

    def add(self, named: Iterable[Track]) -> None:
        """Notes that they are named."""
        for track in named:
            self._reach(track.id)
            self._named[track.id] = True

    def _reach(self, track: int) -> None:
        if track >= len(self._named):
            self._named = np.concatenate([self._named, np.zeros(track + 1, np.bool_)])

    def __contains__(self, track: int) -> bool:
        return track < len(self._named) and bool(self._named[track])

    def all(self) -> list[Track]:
        """Those that are named, in the order of their ids."""
        return [track for track in map(tracks.get, np.flatnonzero(self._named).tolist()) if track is not None]
