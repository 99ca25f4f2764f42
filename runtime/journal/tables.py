"""What a journal says of names and tracks before the events that use them."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.runtime import strings, tracks
from stepscope.runtime.events import Block
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import records
from stepscope.runtime.named_tracks import NamedTracks
from stepscope.runtime.tracks import Track

_MOST_PER_ROW = 4096
"""Bytes that a name or a track takes at most, or nearly."""

Rows = list[tuple[fmt.FrameType, object]]
"""Frames to be: their type and what is in them."""


class Tables:
    """What one journal has said of this process's names and tracks: all names, and the tracks that its events are on.

    Args:
        max_frame: bytes of a frame's payload at most.
    """

    def __init__(self, max_frame: int) -> None:
        self._per_frame = min(fmt.STRINGS_PER_FRAME, max(max_frame // _MOST_PER_ROW, 1))
        self.forget()

    def forget(self) -> None:
        """Nothing is said any more: what was, is lost."""
        self._serial = 0
        self._named = NamedTracks()
        self._settled: tuple[int, list[Track]] = (0, [])

    def before(self, events: Block) -> Rows:
        """What is to be said before these events. Unless `settle` follows, it is said again."""
        serial, pairs = strings.since(self._serial)
        new: dict[int, Track] = {}
        for track in self._named.missing(events):
            found: Track | None = track
            while found is not None and found.id not in new and found.id not in self._named:
                new[found.id] = found
                found = tracks.get(found.parent)
        # Those to which others belong are older, and readers want them first.
        ordered = [new[number] for number in sorted(new)]
        self._settled = serial, ordered
        return self._frames(pairs, ordered)

    def settle(self) -> None:
        """Notes that what was asked for last is written."""
        self._serial, named = self._settled
        self._named.add(named)

    def all(self) -> Rows:
        """Everything that was said, and names that are new."""
        return self._frames(strings.since(0)[1], self._named.all())

    def _frames(self, pairs: list[tuple[int, str]], named: Iterable[Track]) -> Rows:
        rows = [records.TrackRecord(t.id, int(t.kind), t.pid, t.tid, t.parent, t.name) for t in named]
        found: Rows = []
        for at in range(0, len(pairs), self._per_frame):
            found.append((fmt.FrameType.STRINGS, pairs[at : at + self._per_frame]))
        for at in range(0, len(rows), self._per_frame):
            found.append((fmt.FrameType.TRACKS, rows[at : at + self._per_frame]))
        return found
