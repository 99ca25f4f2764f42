"""What a journal says of names and tracks before the events that use them."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.runtime.events import tracks
from stepscope.runtime.events.named_texts import NamedTexts
from stepscope.runtime.events.named_tracks import NamedTracks
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.events.tracks import Track
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import records

_MOST_PER_ROW = 4096
"""Bytes that a name or a track takes at most, or nearly."""

Rows = list[tuple[fmt.FrameType, object]]
"""Frames to be: their type and what is in them."""


class Tables:
    """What one journal has said of this process's names and tracks: those that its events use.

    Args:
        max_frame: bytes of a frame's payload at most.
    """

    def __init__(self, max_frame: int) -> None:
        self._per_frame = min(fmt.STRINGS_PER_FRAME, max(max_frame // _MOST_PER_ROW, 1))
        self._texts, self._tracks = NamedTexts(), NamedTracks()
        self._ever: tuple[NamedTexts, NamedTracks] | None = None
        self._settled: tuple[list[tuple[int, str]], list[Track]] = ([], [])

    def forget(self) -> None:
        """What was said is lost: it is said again before the next events that use it."""
        ever = self._ever or (NamedTexts(), NamedTracks())
        ever[0].add(self._texts.all())
        ever[1].add(self._tracks.all())
        self._texts, self._tracks, self._ever = NamedTexts(), NamedTracks(), ever

    def before(self, batch: EventBatch) -> Rows:
        """What is to be said before these events. Unless `settle` follows, it is said again."""
        texts = self._texts.missing(batch.events, batch.args)
        new: dict[int, Track] = {}
        for track in self._tracks.missing(batch.events):
            found: Track | None = track
            while found is not None and found.id not in new and found.id not in self._tracks:
                new[found.id] = found
                found = tracks.get(found.parent)
        # Those to which others belong are older, and readers want them first.
        ordered = [new[number] for number in sorted(new)]
        self._settled = texts, ordered
        return self._frames(texts, ordered)

    def settle(self) -> None:
        """Notes that what was asked for last is written."""
        self._texts.add(self._settled[0])
        self._tracks.add(self._settled[1])

    def all(self) -> Rows:
        """Everything that was ever said: frames that wait may need what is lost."""
        texts, named = dict(self._texts.all()), {track.id: track for track in self._tracks.all()}
        if self._ever:
            texts |= dict(self._ever[0].all())
            named |= {track.id: track for track in self._ever[1].all()}
        return self._frames(sorted(texts.items()), [named[number] for number in sorted(named)])

    def _frames(self, pairs: list[tuple[int, str]], named: Iterable[Track]) -> Rows:
        rows = [records.TrackRecord(t.id, int(t.kind), t.pid, t.tid, t.parent, t.name) for t in named]
        found: Rows = []
        for at in range(0, len(pairs), self._per_frame):
            found.append((fmt.FrameType.STRINGS, pairs[at : at + self._per_frame]))
        for at in range(0, len(rows), self._per_frame):
            found.append((fmt.FrameType.TRACKS, rows[at : at + self._per_frame]))
        return found
