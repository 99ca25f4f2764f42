"""The tracks that an output has written: each must be written before its first event."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepscope.runtime.events import tracks
from stepscope.runtime.events.record import Block
from stepscope.runtime.events.tracks import Track

_FEW = 256
"""Blocks of up to so many events are processed without numpy."""


class NamedTracks:
    """The tracks that one output has written. The table of the process may have many more, of other runs and of recordings."""

    def __init__(self) -> None:
        self._named = np.zeros(64, np.bool_)
        self._named[0] = True

    def missing(self, events: Block) -> list[Track]:
        """Tracks of these events that are not written yet, in the order of their ids. Call `add` once they are."""
        used = events["track"]
        if len(used) <= _FEW:  # numpy would release the interpreter's lock
            few = sorted(track for track in set(used.tolist()) if track not in self)
            return [track for track in map(tracks.get, few) if track is not None]
        top = int(used.max())
        if top >= len(self._named):
            # An invalid id must cost no memory.
            used = used[used <= tracks.MAX_TRACKS] if top > tracks.MAX_TRACKS else used
            self._grow(min(top, tracks.MAX_TRACKS))
        if self._named[used].all():
            return []
        # Not np.unique, which imports numpy.ma, and so would delay the first steps of training.
        new = sorted(set(used[~self._named[used]].tolist()))
        return [track for track in map(tracks.get, new) if track is not None]

    def add(self, named: Iterable[Track]) -> None:
        """Marks tracks as written."""
        for track in named:
            self._grow(track.id)
            self._named[track.id] = True

    def _grow(self, track: int) -> None:
        if track >= len(self._named):
            self._named = np.concatenate([self._named, np.zeros(track + 1, np.bool_)])

    def __contains__(self, track: int) -> bool:
        return track < len(self._named) and bool(self._named[track])
