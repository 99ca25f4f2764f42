"""The backlog: frames that the collector has not confirmed, in order, in bounded memory and then on disk."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import chain, islice

from stepscope.exporters.collector.piece import OVERHEAD, Piece
from stepscope.exporters.collector.protocol import MAX_FRAMES
from stepscope.exporters.collector.spool import Spool
from stepscope.exporters.outcomes import Outcomes
from stepscope.runtime.export.exporter import DeliveryResult

MERGED = 256 << 10
"""Bytes up to which pieces that lie next to each other on disk are one: there may be many small ones."""


class Backlog:
    """Keeps what was written until it is confirmed, and knows what is to be sent next.

    The oldest pieces are on disk, the others in memory. While any are on disk, what is put goes there as well, so that
    the spool has all that is not confirmed.
    """

    def __init__(self, max_bytes: int, spool: Spool | None = None) -> None:
        """Args: bytes that it may keep in memory; where more goes."""
        self._max = max_bytes
        self._spool = spool
        self._pieces: deque[Piece] = deque()
        self._ahead: deque[Piece] = deque()
        """What the collector is to have before the pieces, as it has lost what was confirmed before."""
        self._ahead_sent = 0
        """How many of these were sent since the last `resume`."""
        self._sent = 0
        """How many of the pieces were sent since the last `resume`."""
        self._outcomes = Outcomes()
        self.next = 0
        """Number of the next frame."""
        self.on_disk = 0
        """How many of the pieces, the oldest, are on disk."""
        self.memory = 0
        """Bytes in memory."""
        self.sent_bytes = 0
        """Bytes of those that were sent and not confirmed."""
        self.error = ""
        """Why the spool could not be used, the last time that it was tried; empty if it could."""

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Backlog:
        """One of pieces that are in files already. The collector may have frames that follow them."""
        made = cls(0)
        made._pieces.extend(pieces)
        made.on_disk = len(made._pieces)
        made.next = 1 << 62
        return made

    @property
    def oldest(self) -> int:
        """Number of the oldest frame that is kept, or of the next one."""
        if self._ahead:
            return self._ahead[0].first
        return self._pieces[0].first if self._pieces else self.next

    @property
    def restated(self) -> bool:
        """Whether something is to be sent ahead of what was put."""
        return bool(self._ahead)

    @property
    def waiting(self) -> int:
        """Bytes that are kept."""
        return sum(piece.size for piece in self._pieces)

    @property
    def room(self) -> int:
        """Bytes that can be put."""
        spool = 0 if self._spool is None or self.error else max(self._spool.room, 0)
        return max(self._max - self.memory, 0) + spool

    def put(self, piece: Piece) -> None:
        """Adds a piece; it follows those that were put before."""
        self._pieces.append(piece)
        self.next = piece.next
        self.memory += piece.size + OVERHEAD
        if self.on_disk or self.memory > self._max:
            self.spill()

    def put_ahead(self, frames: list[bytes]) -> None:
        """Has frames sent before all others, whose numbers are those before `oldest`. They stay in memory, and hold no events."""
        first = self.oldest - len(frames)
        self._ahead.extend(Piece(number, 1, len(frame), Counter(), frame) for number, frame in enumerate(frames, first))

    def spill(self) -> None:
        """Moves everything to disk, as far as that takes it; why not all is in `error`."""
        if self._spool is None:
            return
        self.error = ""
        try:
            while self.on_disk < len(self._pieces):
                piece = self._pieces[self.on_disk]
                self._spool.append(piece)
                self.memory -= piece.size + OVERHEAD
                self.on_disk += 1
                self._merge()
        except OSError as error:
            self.error = str(error)

    def _merge(self) -> None:
        """Makes the last two pieces on disk one, if they are small, adjacent and not sent."""
        last = self.on_disk - 1
        if last <= self._sent:
            return
        one, other = self._pieces[last - 1], self._pieces[last]
        if (
            other.segment is not None
            and one.segment is other.segment
            and one.at + one.size == other.at
            and one.size + other.size <= MERGED
        ):
            one.events.update(other.events)
            one.count += other.count
            one.size += other.size
            other.segment.pieces -= 1
            del self._pieces[last]
            self.on_disk -= 1

    def take(self, max_bytes: int) -> list[Piece]:
        """What to send next: as many pieces as fit `max_bytes` and a message, but one at least if there is any."""
        taken: list[Piece] = []
        size = frames = 0
        ahead = len(self._ahead) - self._ahead_sent
        for piece in chain(islice(self._ahead, self._ahead_sent, None), islice(self._pieces, self._sent, None)):
            if taken and (size + piece.size > max_bytes or frames + piece.count > MAX_FRAMES):
                break
            taken.append(piece)
            size += piece.size
            frames += piece.count
        ahead = min(ahead, len(taken))
        self._ahead_sent += ahead
        self._sent += len(taken) - ahead
        self.sent_bytes += size
        return taken

    def confirm(self, next: int) -> None:
        """Forgets the frames below `next`.

        Raises:
            OSError: if a file that is not needed any more cannot be deleted.
        """
        while self._ahead and self._ahead[0].next <= next:
            piece = self._ahead.popleft()
            if self._ahead_sent:
                self._ahead_sent -= 1
                self.sent_bytes -= piece.size
        while self._pieces and self._pieces[0].next <= next:
            piece = self._pieces.popleft()
            if self._sent:
                self._sent -= 1
                self.sent_bytes -= piece.size
            for window, count in piece.events.items():
                self._outcomes.export(window, count)
            if piece.segment is None:
                self.memory -= piece.size + OVERHEAD
                continue
            self.on_disk -= 1
            if self._spool is not None:
                self._spool.forget(piece)

    def resume(self, next: int) -> None:
        """Begins again at the first piece that holds a frame from `next` on."""
        self._sent = self._ahead_sent = self.sent_bytes = 0
        self.confirm(next)

    def leave(self, reason: str) -> Counter[str]:
        """Nothing is sent any more: what is on disk is kept there, what is not is given up.

        Args:
            reason: by which events count that are given up.

        Returns:
            Events: `kept` and `lost`.
        """
        found: Counter[str] = Counter()
        for index, piece in enumerate(self._pieces):
            for window, count in piece.events.items():
                if index < self.on_disk:
                    self._outcomes.keep(window, count)
                else:
                    self._outcomes.drop(window, reason, count)
            found["kept" if index < self.on_disk else "lost"] += piece.events.total()
        self._pieces.clear()
        self._ahead.clear()
        self._sent = self._ahead_sent = self.sent_bytes = self.memory = self.on_disk = 0
        return found

    def refuse(self, window: int, count: int, reason: str) -> None:
        """So many events of a window were given to the exporter and not put here."""
        self._outcomes.drop(window, reason, count)

    def outcomes(self) -> list[DeliveryResult]:
        """What became of events since the last call."""
        return self._outcomes.take()

    def __len__(self) -> int:
        return len(self._pieces)
