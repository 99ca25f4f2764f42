"""The tracks that an output has written: each must be written before its first event."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.events import tracks
from stepscope.runtime.events.record import Block
from stepscope.runtime.events.tracks import Track


class NamedTracks:
    """The tracks that one output has written. The table of the process may have many more, of other runs and of recordings."""

    def __init__(self) -> None:
        self._named = np.zeros(64, np.bool_)
        self._named[0] = True

    def missing(self, events: Block) -> list[Track]:
        """Tracks of these events that are not written yet, in the order of their ids. Call `add` once they are."""
        # Numpy would release the interpreter's lock, and go over the events several times.
        unnamed = sorted(_core.unnamed_tracks(events, self._named))
        return [track for track in map(tracks.get, unnamed) if track is not None]

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
