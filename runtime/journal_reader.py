"""Reads a journal, whole, damaged or still being written."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from stepscope.runtime import journal_format as fmt
from stepscope.runtime.clock import ClockAnchor
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import EventBatch
from stepscope.runtime.journal_ids import IdMap
from stepscope.runtime.ledger import Ledger
from stepscope.runtime.window import Window

JournalItem = (
    fmt.RunRecord
    | EventBatch
    | ClockAnchor
    | fmt.MetadataRecord
    | fmt.WindowOpened
    | Window
    | Ledger
    | fmt.CapRecord
    | fmt.EndRecord
)
"""What iterating over a reader yields."""

_SCAN_BYTES = 1 << 20

_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    fmt.FrameType.RUN: msgspec.msgpack.Decoder(fmt.RunRecord),
    fmt.FrameType.STRINGS: msgspec.msgpack.Decoder(list[tuple[fmt.Id, str]]),
    fmt.FrameType.TRACKS: msgspec.msgpack.Decoder(list[fmt.TrackRecord]),
    fmt.FrameType.CLOCK: msgspec.msgpack.Decoder(ClockAnchor),
    fmt.FrameType.METADATA: msgspec.msgpack.Decoder(fmt.MetadataRecord),
    fmt.FrameType.WINDOW_OPENED: msgspec.msgpack.Decoder(fmt.WindowOpened),
    fmt.FrameType.WINDOW_CLOSED: msgspec.msgpack.Decoder(fmt.WindowRecord),
    fmt.FrameType.LEDGER: msgspec.msgpack.Decoder(Ledger),
    fmt.FrameType.CAP: msgspec.msgpack.Decoder(fmt.CapRecord),
    fmt.FrameType.END: msgspec.msgpack.Decoder(fmt.EndRecord),
}


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader could not use of a journal, so far."""

    header: bool = False
    """The file's first 20 bytes were damaged; the frames were found without them."""
    skipped_bytes: int = 0
    """Bytes passed over between whole frames."""
    lost_frames: int = 0
    """Frames that are missing, by their numbers."""
    undecodable_frames: int = 0
    """Frames that arrived whole and still make no sense."""
    lost_names: int = 0
    """Uses of a name or category whose text was lost."""
    lost_arguments: int = 0
    """Events whose arguments were malformed."""
    torn_bytes: int = 0
    """Bytes after the last whole frame: a write that was interrupted, or that is going on."""

    def __bool__(self) -> bool:
        return self != Damage()


class JournalReader:
    """Iterates once over the items of a journal, in the order in which they were written.

    Names, categories, argument keys and tracks come as ids of this process's tables. Every frame is checked
    against its checksum before anything in it is believed; memory is bounded by the largest frame (64 MiB) and
    the tables' bounds, whatever the file contains. A torn tail ends the iteration; iterating again later goes
    on from there, if the file has grown. Not safe for use by two threads at once.

    Args:
        path: the file.
        ids: what is known of the writing process's ids from elsewhere.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a journal, or one of a newer version.
    """

    run: fmt.RunRecord | None = None
    """Whose journal it is; read ahead when the file is opened, `None` if that frame is damaged or not there yet."""
    metadata: dict[str, Any]
    """The run's metadata, as the last metadata frame read so far has it."""
    end: fmt.EndRecord | None = None
    """The last frame of a journal that was closed in order, once it was read."""
    unknown_frames = 0
    """Frames of types that this version does not know, skipped; no damage."""

    def __init__(self, path: str | os.PathLike[str], ids: IdMap | None = None) -> None:
        self.path = Path(path)
        self.metadata = {}
        self._ids = ids or IdMap()
        self._damage = Damage()
        self._number = 0
        # Non-blocking, so that a FIFO of this name is refused below instead of waited for.
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise FormatError(f"{self.path} is not a regular file")
            self._sync = self._read_file_header()
            self._at = fmt.FILE_HEADER.size
            self._peek_run()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> JournalReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def damage(self) -> Damage:
        """What could not be used, of what was read so far."""
        return msgspec.structs.replace(
            self._damage, lost_names=self._ids.lost_names, lost_arguments=self._ids.lost_arguments
        )

    def __iter__(self) -> Iterator[JournalItem]:
        return self.items()

    def items(self, window: int | None = None) -> Iterator[JournalItem]:
        """Goes on through the journal.

        Args:
            window: events, beginnings and ends of other windows are skipped without being read.
        """
        passed = None if window is None else lambda beginning: _is_of_other_window(beginning, window)
        while (frame := self._next_frame(passed)) is not None:
            item = self._decode(*frame)
            if item is not None and not (window is not None and _other_window(item, window)):
                yield item

    def outline(self) -> list[fmt.EventsHeader]:
        """Goes on to the end and tells what the event frames contain, from their headers alone.

        Much faster than reading. Checksums of the payloads are not looked at, so the answers are hints.
        """
        headers: list[fmt.EventsHeader] = []

        def passed(beginning: bytes) -> bool:
            header = fmt.decode_events_header(beginning)
            if header is not None:
                headers.append(header[0])
            return True

        while self._next_frame(passed) is not None:
            pass
        return headers

    def _read_file_header(self) -> bytes | None:
        """The file's sync word, `None` if the file ends inside its header."""
        head = os.pread(self._fd, fmt.FILE_HEADER.size + fmt.FRAME_HEADER.size, 0)
        sync = fmt.decode_file_header(head)
        if sync is not None:
            return sync
        # The first frame's sync word says the same, and its checksum shows whether it can be believed.
        at = fmt.FILE_HEADER.size
        sync = head[at : at + 4]
        if (
            len(head) == at + fmt.FRAME_HEADER.size
            and fmt.is_sync_word(sync)
            and fmt.decode_frame_header(head, at, sync)
        ):
            self._damage = Damage(header=True)
            return sync
        if len(head) < at and head[: len(fmt.MAGIC)] == fmt.MAGIC[: len(head)]:
            self._damage = Damage(torn_bytes=len(head))
            return None
        raise FormatError(f"{self.path} is not a stepscope journal, or its beginning is destroyed")

    def _peek_run(self) -> None:
        head = os.pread(self._fd, fmt.FRAME_HEADER.size, self._at)
        if self._sync is None or len(head) < fmt.FRAME_HEADER.size:
            return
        found = fmt.decode_frame_header(head, 0, self._sync)
        if found is None or found[0] != fmt.FrameType.RUN:
            return
        _, _, _, length, crc = found
        payload = os.pread(self._fd, length, self._at + len(head))
        if len(payload) == length and zlib.crc32(payload) == crc:
            self.run = _unpack(fmt.FrameType.RUN, payload)

    def _next_frame(self, passed: Callable[[bytes], bool] | None = None) -> tuple[int, int, bytes] | None:
        """The next whole frame: (type, flags, payload), `None` at the end.

        Args:
            passed: is shown the beginning of each events frame; the frame is passed over unread when it says so.
        """
        self._sync = self._sync or self._read_file_header()
        if self._sync is None:
            return None
        start = self._at
        while (head := os.pread(self._fd, fmt.FRAME_HEADER.size, self._at)) and len(head) == fmt.FRAME_HEADER.size:
            found = fmt.decode_frame_header(head, 0, self._sync)
            if found is not None:
                kind, flags, number, length, crc = found
                body = self._at + fmt.FRAME_HEADER.size
                whole = body + length <= os.fstat(self._fd).st_size
                if whole and passed and kind == fmt.FrameType.EVENTS:
                    if passed(os.pread(self._fd, min(length, fmt.MAX_EVENTS_HEADER), body)):
                        self._arrived(start, self._at, number, body + length)
                        start = self._at
                        continue
                payload = os.pread(self._fd, length, body) if whole else b""
                if len(payload) == length and zlib.crc32(payload) == crc:
                    self._arrived(start, self._at, number, body + length)
                    return kind, flags, payload
            if not self._find_next(self._at + 1):
                break
        # Nothing whole follows. What is left may be a frame that is being written: it is looked at again next time.
        self._at = start
        torn = max(os.fstat(self._fd).st_size - start, 0)
        self._damage = msgspec.structs.replace(self._damage, torn_bytes=torn)
        return None

    def _find_next(self, at: int) -> bool:
        """Moves to the next bytes from `at` on that look like a frame's header."""
        assert self._sync is not None
        while True:
            chunk = os.pread(self._fd, _SCAN_BYTES, at)
            found = chunk.find(self._sync)
            while found >= 0:
                if len(chunk) - found < fmt.FRAME_HEADER.size:
                    break
                if fmt.decode_frame_header(chunk, found, self._sync) is not None:
                    self._at = at + found
                    return True
                found = chunk.find(self._sync, found + 1)
            if len(chunk) < fmt.FRAME_HEADER.size:
                return False
            # A header may lie across the border of two chunks.
            at += found if found > 0 else len(chunk) - len(self._sync) + 1

    def _arrived(self, start: int, found: int, number: int, end: int) -> None:
        lost = (number - self._number) & 0xFFFFFFFF
        if lost >= 1 << 31:
            lost = 0  # an older number: a file put together from parts
        if found > start or lost or self._damage.torn_bytes:
            self._damage = msgspec.structs.replace(
                self._damage,
                skipped_bytes=self._damage.skipped_bytes + found - start,
                lost_frames=self._damage.lost_frames + lost,
                torn_bytes=0,
            )
        self._number = number + 1
        self._at = end

    def _decode(self, kind: int, flags: int, payload: bytes) -> JournalItem | None:
        if kind == fmt.FrameType.EVENTS:
            return self._batch(flags, payload)
        if kind not in _DECODERS:
            self.unknown_frames += 1
            return None
        record = _unpack(kind, payload)
        if record is None:
            self._count_undecodable()
            return None
        if kind == fmt.FrameType.STRINGS:
            self._ids.add_strings(record)
            return None
        if kind == fmt.FrameType.TRACKS:
            self._ids.add_tracks(record)
            return None
        if isinstance(record, fmt.RunRecord):
            self.run = record
        elif isinstance(record, fmt.MetadataRecord):
            self.metadata = record.values
        elif isinstance(record, fmt.EndRecord):
            self.end = record
        elif isinstance(record, fmt.WindowRecord):
            return record.window()
        item: JournalItem = record
        return item

    def _batch(self, flags: int, payload: bytes) -> EventBatch | None:
        decoded = fmt.decode_events(payload, flags)
        if decoded is None:
            self._count_undecodable()
            return None
        header, events, args = decoded
        self._ids.localise(events, args)
        events.flags.writeable = False
        return EventBatch(header.source, header.window, events, bytes(args))

    def _count_undecodable(self) -> None:
        self._damage = msgspec.structs.replace(self._damage, undecodable_frames=self._damage.undecodable_frames + 1)


def _unpack(kind: int, payload: bytes) -> Any:
    """The record of a control frame, `None` if it cannot be decoded."""
    try:
        return _DECODERS[kind].decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _is_of_other_window(beginning: bytes, window: int) -> bool:
    header = fmt.decode_events_header(beginning)
    return header is not None and header[0].window != window


def _other_window(item: JournalItem, window: int) -> bool:
    return isinstance(item, fmt.WindowOpened | Window) and item.index != window
