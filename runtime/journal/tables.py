"""Selects the names and tracks that a journal must write before the events that use them."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.runtime.events import tracks
from stepscope.runtime.events.named_texts import NamedTexts
from stepscope.runtime.events.named_tracks import NamedTracks
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.events.tracks import Track
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import records

_MAX_ROW_BYTES = 4096
"""Approximate limit of a name or a track."""

Rows = list[tuple[fmt.FrameType, object]]
"""Contents of frames: type and record."""


class Tables:
    """The names and tracks of this process that one journal has written.

    Args:
        max_frame: limit of a frame's payload, in bytes.
    """

    def __init__(self, max_frame: int) -> None:
        self._per_frame = min(fmt.STRINGS_PER_FRAME, max(max_frame // _MAX_ROW_BYTES, 1))
        self._texts, self._tracks = NamedTexts(), NamedTracks()
        self._lost: tuple[NamedTexts, NamedTracks] | None = None
        self._new: tuple[list[tuple[int, str]], list[Track]] = ([], [])
        """The result of the last `missing`."""

    def reset(self) -> None:
        """All frames so far were lost. `missing` returns names and tracks again."""
        lost = self._lost or (NamedTexts(), NamedTracks())
        lost[0].add(self._texts.all())
        lost[1].add(self._tracks.all())
        self._texts, self._tracks, self._lost = NamedTexts(), NamedTracks(), lost

    def missing(self, batch: EventBatch) -> Rows:
        """The frames to write before these events. Call `mark_written` after they are written."""
        texts = self._texts.missing(batch.events, batch.args)
        new: dict[int, Track] = {}
        for track in self._tracks.missing(batch.events):
            found: Track | None = track
            while found is not None and found.id not in new and found.id not in self._tracks:
                new[found.id] = found
                found = tracks.get(found.parent)
        # Parents are older than their children, and readers need them first.
        ordered = [new[number] for number in sorted(new)]
        self._new = texts, ordered
        return self._frames(texts, ordered)

    def mark_written(self) -> None:
        """The frames of the last `missing` are written."""
        self._texts.add(self._new[0])
        self._tracks.add(self._new[1])

    def all(self) -> Rows:
        """All names and tracks, including those of lost frames."""
        texts, named = dict(self._texts.all()), {track.id: track for track in self._tracks.all()}
        if self._lost:
            texts |= dict(self._lost[0].all())
            named |= {track.id: track for track in self._lost[1].all()}
        return self._frames(sorted(texts.items()), [named[number] for number in sorted(named)])

    def _frames(self, pairs: list[tuple[int, str]], named: Iterable[Track]) -> Rows:
        rows = [records.TrackRecord(t.id, int(t.kind), t.pid, t.tid, t.parent, t.name) for t in named]
        found: Rows = []
        for at in range(0, len(pairs), self._per_frame):
            found.append((fmt.FrameType.STRINGS, pairs[at : at + self._per_frame]))
        for at in range(0, len(rows), self._per_frame):
            found.append((fmt.FrameType.TRACKS, rows[at : at + self._per_frame]))
        return found
