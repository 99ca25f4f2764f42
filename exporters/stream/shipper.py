"""Reads a journal in the order of its frames, and keeps account of what of it the collector has."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from stepscope.exporters.stream.protocol import MAX_FRAMES, short
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.records import RunRecord, decode_record


class Head(msgspec.Struct, frozen=True):
    """Says whose journal it is."""

    run: RunRecord
    sync: bytes
    """Sync word of its frames."""
    stream: str
    """Id of the stream that this journal is: the same whenever it is sent."""

    @classmethod
    def of(cls, path: Path) -> Head:
        """Reads the first frame of a journal's first file. Raises `FormatError` if it is no journal, or its first frame
        is damaged, and `OSError` if it cannot be read."""
        reader = FrameReader(path, follow=False)
        try:
            first, sync = reader.peek(), reader.sync_word
        finally:
            reader.close()
        run = decode_record(first[0], first[2]) if first is not None and first[0] == fmt.FrameType.RUN else None
        if first is None or sync is None or not isinstance(run, RunRecord):
            raise FormatError(f"{path} does not say whose journal it is; `stepscope recover` it first")
        return cls(short(run), sync, hashlib.sha256(sync + first[2]).hexdigest()[:32])


def has_end(path: Path) -> bool:
    """Whether the last frame of a journal, or of one segment, is its end. Raises `FormatError` if it is no journal, and
    `OSError` if it cannot be read."""
    reader = FrameReader(path, follow=False)
    try:
        last = reader.last()
    finally:
        reader.close()
    return last is not None and last[0] == fmt.FrameType.END


class Place(msgspec.Struct, frozen=True):
    """The begin of a frame."""

    number: int
    """Number of the frame, over all segments."""
    at: int
    """Position in the journal, in bytes."""


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive frames of one segment, as they stand in the file."""

    begin: Place
    end: Place
    """The begin of the frame after the last one."""
    segment: int
    """Number of the segment."""
    data: bytes
    checksum: int
    """Checksum in the header of the last frame."""
    events: Counter[int]
    """Number of events by window, without those that were confirmed before."""
    left_out: int | None = None
    """Number of events of a chunk that is not sent."""

    @property
    def count(self) -> int:
        """Number of frames."""
        return self.end.number - self.begin.number


class Shipper:
    """The frames of one journal that are to be sent, in order.

    Unconfirmed frames stay in the journal, and are read again after a lost connection. Memory is bounded by the
    largest frame and the size of a chunk. One thread at a time may use it.

    Args:
        end: returns the position up to which frames may be read; default: the end of the files.
        advanced: called with the position up to which the collector has all frames.

    Raises:
        FormatError: if it is no journal.
        OSError: if it cannot be read.
    """

    def __init__(
        self, path: Path, end: Callable[[], int] | None = None, advanced: Callable[[int], object] = lambda _: None
    ) -> None:
        self.path = path
        self._reader = FrameReader(path, follow=False)
        sync = self._reader.sync_word
        if sync is None:
            self._reader.close()
            raise FormatError(f"{path} ends before its first frame")
        self.sync: bytes = sync
        """Sync word of the frames."""
        self._end, self._advanced = end, advanced
        self.confirmed = Place(*self._reader.position)
        """The collector has all frames before this one."""
        self.left_out = self.left_out_frames = 0
        """Number of events and frames before this one that were left out: the frames are too large for the collector."""
        self._checksum: int | None = None
        """Checksum of the frame before `confirmed`, if known."""
        self._counted = self.confirmed.number
        """Events of frames before this one were counted."""
        self._unconfirmed: deque[Chunk] = deque()
        self.sent_bytes = 0
        """Bytes that were taken and not confirmed."""
        self._events: Counter[int] = Counter()

    def close(self) -> None:
        """Closes the files. Idempotent."""
        self._reader.close()

    @property
    def end(self) -> int:
        """Position up to which frames may be read."""
        if self._end is not None:
            return self._end()
        self._reader.files.find_later(self.sync)
        return self._reader.files.end

    @property
    def is_confirmed(self) -> bool:
        """Whether the collector has all frames."""
        return self.confirmed.at >= self.end

    @property
    def unsent_bytes(self) -> int:
        """Bytes that can be taken."""
        return max(self.end - self._reader.position[1], 0)

    def next_chunk(self, max_bytes: int) -> Chunk | None:
        """The next frames to send: up to `max_bytes`, but at least one frame. `None` if there is none."""
        reader, end = self._reader, self.end
        pieces: list[bytes] = []
        events: Counter[int] = Counter()
        begin, after = Place(*reader.position), Place(*reader.position)
        size, segment = 0, -1
        while size < max_bytes and len(pieces) < MAX_FRAMES and after.at < end:
            frame = reader.next()
            if frame is None:
                break
            kind, _, payload = frame
            number, at = reader.position
            nbytes = fmt.FRAME_HEADER.size + len(payload)
            file = reader.files.at(at).number
            follows = number - 1 == after.number and file == segment and size + nbytes <= max_bytes
            if at > end or (pieces and not follows):
                reader.resume(after.number, after.at)
                break
            if not pieces:
                begin, segment = Place(number - 1, at - nbytes), file
            pieces.append(reader.files.pread(nbytes, at - nbytes))
            size += nbytes
            if kind == fmt.FrameType.EVENTS and number > self._counted:
                _add_events(events, payload)
            after = Place(number, at)
        if not pieces:
            return None
        checksum: int = fmt.FRAME_HEADER.unpack_from(pieces[-1])[-1]
        chunk = Chunk(begin, after, segment, b"".join(pieces), checksum, events)
        self._unconfirmed.append(chunk)
        self.sent_bytes += size
        return chunk

    def skip_chunk(self, chunk: Chunk) -> None:
        """Notes that the last chunk is not sent: its events are never confirmed."""
        skipped = msgspec.structs.replace(chunk, events=Counter(), left_out=chunk.events.total())
        self._unconfirmed[-1] = skipped

    def confirm(self, next: int) -> None:
        """The collector has all frames before number `next`."""
        while self._unconfirmed and self._unconfirmed[0].end.number <= next:
            chunk = self._unconfirmed.popleft()
            self.sent_bytes -= len(chunk.data)
            if chunk.left_out is not None:
                self.left_out += chunk.left_out
                self.left_out_frames += chunk.count
            self._advance(chunk.end, chunk.checksum, chunk.events)

    def resume(self, next: int, checksum: int | None = None) -> None:
        """Continues with frame number `next`, the first one that the collector does not have.

        Args:
            next: number of the frame.
            checksum: of the frame before it, if the collector has one.

        Raises:
            FormatError: if the collector has other frames than the journal.
        """
        self._unconfirmed.clear()
        self.sent_bytes = 0
        reader, place, stored = self._reader, self.confirmed, self._checksum
        if next < place.number:  # it has lost frames that it had
            reader.restart()
            place, stored = Place(*reader.position), None
        reader.resume(place.number, place.at)
        events: Counter[int] = Counter()
        while place.number < next:
            found: Counter[int] = Counter()
            if not self._skip(found):
                raise FormatError(f"the collector has frame {next - 1}, and {self.path} ends with {place.number - 1}")
            number, at = reader.position
            if number > next:  # frames are missing here, and the collector has some of them
                break
            place = Place(number, at)
            stored = fmt.FRAME_HEADER.unpack(reader.files.pread(fmt.FRAME_HEADER.size, reader.head[0]))[-1]
            if number > self._counted:
                events += found
        if place.number == next and None not in (checksum, stored) and checksum != stored:
            raise FormatError(
                f"the collector has another frame {next - 1} than {self.path}: the machine may have lost power; "
                "deliver the journal to another directory"
            )
        reader.resume(place.number, place.at)
        self._advance(place, stored, events)

    def drain_confirmed(self) -> Counter[int]:
        """Number of events, by window, that were confirmed since the last call."""
        events, self._events = self._events, Counter()
        return events

    def _advance(self, place: Place, checksum: int | None, events: Counter[int]) -> None:
        self.confirmed, self._checksum = place, checksum
        self._counted = max(self._counted, place.number)
        self._events += events
        self._reader.files.close_before(place.at)
        self._advanced(place.at)

    def _skip(self, events: Counter[int]) -> bool:
        """Skips a frame, and counts its events."""

        def count(payload: bytes) -> bool:
            _add_events(events, payload)
            return True

        return self._reader.skip(count)


def _add_events(events: Counter[int], payload: bytes) -> None:
    _, _, window, count, _, _ = fmt.EVENTS_HEADER.unpack_from(payload)
    events[window] += count
