"""What a journal is written to when it goes to a collector: the backlog takes the place of the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from stepscope.exporters.collector.backlog import Backlog
from stepscope.exporters.collector.piece import Piece, events_in
from stepscope.runtime.journal import format as fmt

PIECE_BYTES = 1 << 20


class Outgoing:
    """A target of `JournalWriter` that hands whole frames to the backlog.

    Its `size` is what waits, so that the writer's limit is one of what waits.
    """

    def __init__(self, path: Path, backlog: Backlog, limit: int, news: Callable[[], object]) -> None:
        """Args: the name shown in messages; where the frames go; the writer's limit in bytes; called after each write."""
        self.path = path
        self._backlog, self._limit, self._news = backlog, limit, news
        self._begun = False

    @property
    def size(self) -> int:
        """Bytes of the limit that are taken."""
        return self._limit - self._backlog.room

    def write(self, pieces: list[fmt.Bytes], sync: bool) -> None:
        """Takes the frames of one write."""
        if not self._begun and pieces:
            # The collector writes the file's header itself.
            self._begun, pieces = True, pieces[1:]
        data = b"".join(pieces)
        at = start = count = 0
        events = Counter[int]()
        while at < len(data):
            _, kind, _, _, _, length, _, _ = fmt.FRAME_HEADER.unpack_from(data, at)
            end = at + fmt.FRAME_HEADER.size + length
            if count and end - start > PIECE_BYTES:
                self._put(count, events, data[start:at])
                start, count, events = at, 0, Counter[int]()
            events.update(events_in(kind, data[at + fmt.FRAME_HEADER.size : at + 512]))
            count += 1
            at = end
        if count:
            self._put(count, events, data[start:] if start else data)
            self._news()

    def _put(self, count: int, events: Counter[int], data: bytes) -> None:
        self._backlog.put(Piece(self._backlog.next, count, len(data), events, data))

    def deleted(self, within_s: float) -> bool:
        """Never: a backlog is in memory, or in files of the spool."""
        return False

    def close(self) -> None:
        """What is in the backlog stays there until it is confirmed."""
