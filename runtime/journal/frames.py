"""Finds the whole frames of a journal file, whatever else is in it."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal import given_up

Frame = tuple[int, int, bytes]
"""Type, flags, payload."""

LAST_BYTES = 1024
"""The frame that ends a journal is smaller."""
_SCAN_BYTES = 1 << 20
_MOST_SEARCHES = 8
"""Times that a reader looks in vain for what was given up under its hands: damage looks alike."""
_COUNT = slice(20, 24)
"""Where the number of events stands in their payload."""


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

    def harm(self) -> str:
        """What is lost, in words. A torn end is no harm: the file was cut there, or is being written."""
        names = ("skipped_bytes", "lost_frames", "undecodable_frames")
        return ", ".join(f"{name.replace('_', ' ')}: {n:,}" for name in names if (n := getattr(self, name)))


class FrameReader:
    """Gives the whole frames of a file one after the other. Memory is bounded by the largest frame.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a journal, or one of a newer version.
    """

    def __init__(self, path: Path, *, follow: bool = True) -> None:
        """Args: the file; whether it may be a link."""
        self.path = path
        self.damage = Damage()
        """What was passed over so far."""
        self._number = 0
        self._at = fmt.FILE_HEADER.size
        self._events = 0
        """That the last frame had."""
        self._passed: int | None = 0
        """Events of all frames so far; `None` if it began in the middle."""
        self._ahead = 0
        """Events of those that were read before they were given up, and that are counted from here on again."""
        self._searches = 0
        self.head = (0, 0, 0)
        """(where it begins, its number as it stands there, bytes of its payload) of the frame that `passed` is shown."""
        # Non-blocking, so that a FIFO of this name is refused below instead of waited for.
        links = 0 if follow else os.O_NOFOLLOW
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | links)
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise FormatError(f"{path} is not a regular file")
            self._sync = self._read_file_header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def position(self) -> tuple[int, int]:
        """(number of the next frame, where it begins), after the whole frames that were read; counted beyond 2**32."""
        return self._number, self._at

    def resume(self, number: int, at: int) -> None:
        """Goes on at a position that was one of this file before."""
        self._number, self._at = number, at
        self._passed, self._ahead = 0 if at == fmt.FILE_HEADER.size else None, 0

    @property
    def sync_word(self) -> bytes | None:
        """The mark at the beginning of the file's frames, if it is known."""
        return self._sync

    def peek(self) -> Frame | None:
        """The frame here, if there is a whole one; it is given again by `next`."""
        found = self._frame_at(self._at)
        return found[0] if found else None

    def frame_at(self, at: int) -> tuple[Frame, int, int] | None:
        """The whole frame that begins at a byte, its number and where it ends; `None` if there is none. Reading goes on where it
        was."""
        whole = self._sync is not None and fmt.FILE_HEADER.size <= at < os.fstat(self._fd).st_size
        found = self._frame_at(at) if whole else None
        return None if found is None or found[0] is None else (found[0], found[1], found[2])

    def last(self) -> Frame | None:
        """The frame that ends the file; `None` if it ends otherwise, or with a frame of more than `LAST_BYTES`."""
        size = os.fstat(self._fd).st_size
        begin = max(size - LAST_BYTES, fmt.FILE_HEADER.size)
        tail = os.pread(self._fd, LAST_BYTES, begin)
        at = -1 if self._sync is None else tail.rfind(self._sync)
        found = self.frame_at(begin + at) if at >= 0 else None
        return found[0] if found is not None and found[2] == size else None

    def next(self, passed: Callable[[bytes], bool] | None = None) -> Frame | None:
        """The next whole frame, `None` at the end. More may follow later, if the file grows.

        Args:
            passed: is shown the beginning of each events frame; the frame is passed over unread when it says so.
        """
        while (found := self._advance(passed)) is not None:
            if found[0] is not None:
                return found[0]
        return None

    def following(self, nbytes: int, passed: Callable[[bytes], bool]) -> list[Frame]:
        """The next frames that are whole among so many bytes, which are read at once: many small ones cost little so.

        It ends, and may be empty, where a larger frame, one that was given up, damage or the end comes: for `next`.

        Args:
            nbytes: that are read.
            passed: as `next` has it.
        """
        frames: list[Frame] = []
        if self._sync is None:
            return frames
        block = os.pread(self._fd, nbytes, self._at)
        at, size = 0, fmt.FRAME_HEADER.size
        while at + size <= len(block) and (found := fmt.decode_frame_header(block, at, self._sync)) is not None:
            kind, flags, number, length, crc = found
            body, end = at + size, at + size + length
            if end > len(block) or kind in given_up.KINDS or number != self._number & 0xFFFFFFFF:
                break
            over = kind == fmt.FrameType.EVENTS and passed(block[body : min(body + fmt.MAX_EVENTS_HEADER, end)])
            if not over:
                payload = block[body:end]
                if zlib.crc32(payload) != crc:
                    break
                frames.append((kind, flags, payload))
            self._events = int.from_bytes(block[body:end][_COUNT], "little") if kind == fmt.FrameType.EVENTS else 0
            self._passed = None if self._passed is None else self._passed + self._events
            self._number += 1
            at = end
        if at:
            self._at += at
            if self.damage.torn_bytes:
                self.damage = msgspec.structs.replace(self.damage, torn_bytes=0)
        return frames

    def skip(self) -> bool:
        """Goes past the next whole frame, unread if it has events; false at the end."""
        return self._advance(lambda _: True) is not None

    def begins(self, at: int) -> bool:
        """Whether a frame begins at a byte, whole or not, or the file ends there."""
        head = os.pread(self._fd, fmt.FRAME_HEADER.size, at)
        if self._sync is None or len(head) < fmt.FRAME_HEADER.size:
            return True
        return fmt.decode_frame_header(head, 0, self._sync) is not None

    def count_undecodable(self) -> None:
        """Notes that a whole frame made no sense."""
        self.damage = msgspec.structs.replace(self.damage, undecodable_frames=self.damage.undecodable_frames + 1)

    def _advance(self, passed: Callable[[bytes], bool] | None) -> tuple[Frame | None, int, int] | None:
        """What `_frame_at` finds from here on, and goes behind it; `None` at the end."""
        self._sync = self._sync or self._read_file_header()
        start = self._at
        while self._sync is not None:
            found = self._frame_at(self._at, passed)
            if found is None and self._at == start and (gone := self._given_up_around(start)) is not None:
                return gone
            if found is not None:
                frame, number, end = found
                spans = frame is not None and frame[0] != fmt.FrameType.EVENTS and bool(frame[1] & fmt.SPANS)
                self._arrived(start, self._at, number, end, spans)
                self._passed = None if self._passed is None else self._passed + self._events
                return self._less(found) if self._ahead else found
            if not self._find_header(self._at + 1):
                break
        # Nothing whole follows. What is left may be a frame that is being written: it is looked at again next time.
        self._at = start
        if self._sync is not None:
            torn = max(os.fstat(self._fd).st_size - start, 0)
            self.damage = msgspec.structs.replace(self.damage, torn_bytes=torn)
        return None

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
            self.damage = Damage(header=True)
            return sync
        if len(head) < at and head[: len(fmt.MAGIC)] == fmt.MAGIC[: len(head)]:
            self.damage = Damage(torn_bytes=len(head))
            return None
        raise FormatError(f"{self.path} is not a stepscope journal, or its beginning is destroyed")

    def _frame_at(self, at: int, passed: Callable[[bytes], bool] | None = None) -> tuple[Frame | None, int, int] | None:
        """(frame, its number, where it ends) if a whole one is there; without the frame if it is passed over."""
        # Together, as something of it may be given up meanwhile.
        both = os.pread(self._fd, fmt.FRAME_HEADER.size + (0 if passed is None else fmt.MAX_EVENTS_HEADER), at)
        head = both[: fmt.FRAME_HEADER.size]
        if self._sync is None or len(head) < fmt.FRAME_HEADER.size:
            return None
        found = fmt.decode_frame_header(head, 0, self._sync)
        if found is None:
            return None
        kind, flags, number, length, crc = found
        body = at + len(head)
        if body + length > os.fstat(self._fd).st_size:
            return None
        self.head = (at, number, length)
        self._events = 0
        if kind in given_up.KINDS:
            # Nothing but its header is left; on disk it takes no room, and reading it would.
            payload = os.pread(self._fd, min(length, given_up.BEGINNING), body)
            if kind == fmt.FrameType.GIVEN_UP and (needed := min(given_up.needed(payload), length)) > len(payload):
                payload = os.pread(self._fd, needed, body)
            self._events = _gone_in(kind, payload).total
            return (kind, flags, payload), number, body + length
        if passed is not None and kind == fmt.FrameType.EVENTS:
            beginning = both[len(head) : len(head) + length]
            if passed(beginning):
                self._events = int.from_bytes(beginning[_COUNT], "little")
                return None, number, body + length
        payload = os.pread(self._fd, length, body)
        if len(payload) != length or zlib.crc32(payload) != crc:
            return None
        if kind == fmt.FrameType.EVENTS:
            self._events = int.from_bytes(payload[_COUNT], "little")
        return (kind, flags, payload), number, body + length

    def _given_up_around(self, at: int) -> tuple[Frame | None, int, int] | None:
        """Finds out whether a frame began at a byte that was given up meanwhile, together with what is around it.

        Returns:
            What was given up there and not read before; it goes on with the first record from around there that was not.
        """
        size = fmt.FRAME_HEADER.size
        if self._sync is None or self._searches >= _MOST_SEARCHES or os.fstat(self._fd).st_size < at + size:
            return None
        head = fmt.decode_frame_header(os.pread(self._fd, size, at), 0, self._sync)
        if head is not None and at + size + head[3] > os.fstat(self._fd).st_size:
            return None  # it is being written
        before, border = 0, fmt.FILE_HEADER.size
        record: tuple[int, int] | None = None
        gone: list[given_up.GivenUp] = []
        while border <= at:
            found = self._frame_at(border, lambda _: True)
            if found is None:
                break
            frame, number, end = found
            over = frame is not None and frame[0] in given_up.KINDS
            ahead = (number - self._number) & 0xFFFFFFFF
            if frame is not None and record is None:
                if over:
                    gone.append(_beyond(_gone_in(frame[0], frame[2]), before, self._passed))
                elif ahead < 1 << 31:
                    record = border, before
            if end > at and frame is not None and (over or border < at):
                self._at, total = record or (end, before + self._events)
                if record is None and ahead < 1 << 31:
                    self._number += ahead + 1
                if self._passed is not None:
                    self._ahead = max(self._passed - total, 0)
                    self._passed = total
                said = given_up.encode(given_up.together(gone))
                return (int(fmt.FrameType.GIVEN_UP), fmt.SPANS, said), number, end
            before, border = before + self._events, end
        self._searches += 1
        return None

    def _less(self, found: tuple[Frame | None, int, int]) -> tuple[Frame | None, int, int]:
        """The same, without events that were read before they were given up."""
        frame, number, end = found
        if frame is None or frame[0] not in given_up.KINDS:
            return found
        gone = _gone_in(frame[0], frame[2])
        read = min(self._ahead, gone.total)
        self._ahead -= read
        return (int(fmt.FrameType.GIVEN_UP), frame[1], given_up.encode(gone.beyond(read))), number, end

    def _find_header(self, at: int) -> bool:
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

    def _arrived(self, start: int, found: int, number: int, end: int, spans: bool) -> None:
        lost = (number - self._number) & 0xFFFFFFFF
        if lost >= 1 << 31:
            # An older number: a file put together from parts.
            lost, self._number = 0, number
        elif spans:
            lost, self._number = 0, self._number + lost
        if found > start or lost or self.damage.torn_bytes:
            self.damage = msgspec.structs.replace(
                self.damage,
                skipped_bytes=self.damage.skipped_bytes + found - start,
                lost_frames=self.damage.lost_frames + lost,
                torn_bytes=0,
            )
        self._number += lost + 1
        self._at = end


def _gone_in(kind: int, payload: bytes) -> given_up.GivenUp:
    """What a frame says that was given up; nothing if it makes no sense, as who reads it counts."""
    try:
        return given_up.decode(kind, payload)
    except FormatError:
        return given_up.GivenUp()


def _beyond(gone: given_up.GivenUp, before: int, passed: int | None) -> given_up.GivenUp:
    """What of it was not read before, if so many events come before it and so many were read; nothing if that is not known."""
    if passed is None or before + gone.total <= passed:
        return given_up.GivenUp()
    return gone.beyond(max(passed - before, 0))
