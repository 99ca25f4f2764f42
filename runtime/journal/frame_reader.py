"""Finds the complete frames of a journal file, which may be damaged or still growing."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.segments import MAX_DESCRIPTORS, Segment, SegmentFiles

Frame = tuple[int, int, bytes]
"""Type, flags, payload."""

LAST_BYTES = 1024
"""Upper bound for the frame at the end of a journal."""
_AHEAD_BYTES = 2048
"""Bytes of a frame that are read at once: small ones are whole then. It is more than `MAX_EVENTS_HEADER`."""
_SCAN_BYTES = 1 << 20
_MAX_SEARCHED = 2 * fmt.MAX_PAYLOAD


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a journal that a reader could not use, so far."""

    header: bool = False
    """The first 20 bytes of the file are damaged. The frames were found without them."""
    skipped_bytes: int = 0
    """Skipped bytes between complete frames."""
    lost_frames: int = 0
    """Frames that are missing, by their numbers."""
    undecodable_frames: int = 0
    """Complete frames that cannot be decoded."""
    torn_bytes: int = 0
    """Bytes after the last complete frame, of an interrupted or a current write."""

    def __bool__(self) -> bool:
        return self != Damage()

    def __str__(self) -> str:
        return self._text(*self.__struct_fields__)

    def harm(self) -> str:
        """Text on losses. A torn end is none: the file was cut there, or is being written."""
        return self._text("skipped_bytes", "lost_frames", "undecodable_frames")

    def _text(self, *names: str) -> str:
        return ", ".join(f"{name.replace('_', ' ')}: {n:,}" for name in names if (n := getattr(self, name)))


class FrameReader:
    """Reads the complete frames of a file in order. Memory is bounded by the largest frame.

    Raises:
        OSError: if the file cannot be opened.
        FormatError: if it is not a journal, or one of a newer version.
    """

    def __init__(
        self, path: Path, *, follow: bool = True, alone: bool = False, max_descriptors: int = MAX_DESCRIPTORS
    ) -> None:
        """Args: the file; whether to follow a link; whether to read this segment only; descriptors that it has open at a time."""
        self.path = path
        self.damage = Damage()
        """Damage so far."""
        self._number = self._first_number = 0
        self._at = fmt.FILE_HEADER.size
        self.head = (0, 0, 0)
        """(position, number in the file, bytes of the payload) of the last frame, also during calls of `skipped`."""
        self.files = SegmentFiles(path, follow=follow, alone=alone, max_descriptors=max_descriptors)
        try:
            self._sync = self._read_file_header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the files. Idempotent."""
        self.files.close()

    @property
    def position(self) -> tuple[int, int]:
        """(number, position) of the next frame. Numbers count beyond 2**32."""
        return self._number, self._at

    def resume(self, number: int, at: int) -> None:
        """Continues at an earlier `position` of this file."""
        self._number, self._at = number, at

    def resume_after(self, at: int) -> bool:
        """Continues after the frame at a position, of which only the header is read. Returns false if there is none."""
        found = self._frame_header(self.files.pread_one(fmt.FRAME_HEADER.size, at))
        if found is not None:
            self.resume(found[2] + 1, at + fmt.FRAME_HEADER.size + found[3])
        return found is not None

    def first_number(self, begin: int) -> int | None:
        """The number of the first frame of the later segment that begins at a position; `None` if its header is damaged."""
        found = self._frame_header(self.files.at(begin + 1).frame_header)
        return None if found is None else found[2]

    def _frame_header(self, head: bytes) -> tuple[int, int, int, int, int] | None:
        if self._sync is None or len(head) < fmt.FRAME_HEADER.size:
            return None
        return fmt.decode_frame_header(head, 0, self._sync)

    def restart(self) -> None:
        """Continues at the first frame."""
        self.resume(self._first_number, self.files.begin)

    @property
    def sync_word(self) -> bytes | None:
        """The sync word of the file's frames, if known."""
        return self._sync

    def peek(self) -> Frame | None:
        """The next frame, if it is complete. `next` returns it again."""
        found = self._frame_at(self._at)
        return found[0] if found else None

    def frame_at(self, at: int) -> tuple[Frame, int, int] | None:
        """The complete frame at a position, its number and its end; `None` if there is none. Does not move."""
        found = self._frame_at(at) if self.files.begin <= at < self.files.end else None
        return None if found is None or found[0] is None else (found[0], found[1], found[2])

    def last(self) -> Frame | None:
        """The frame at the end of the file; `None` if there is none, or if it is larger than `LAST_BYTES`."""
        size = self.files.end
        begin = max(size - LAST_BYTES, self.files.begin)
        tail = self.files.pread(LAST_BYTES, begin)
        at = -1 if self._sync is None else tail.rfind(self._sync)
        found = self.frame_at(begin + at) if at >= 0 else None
        return found[0] if found is not None and found[2] == size else None

    def find_last(self, kind: int, end: int | None = None) -> int:
        """Position of the last complete frame of a type before a position, by default of the whole file, if it is among the last
        `_MAX_SEARCHED` bytes there; else 0."""
        end = self.files.end if end is None else end
        least = max(end - _MAX_SEARCHED, self.files.begin)
        while self._sync is not None and end > least:
            start = max(end - _SCAN_BYTES, least)
            # A header may cross the end of the chunk.
            chunk = self.files.pread(end - start + fmt.FRAME_HEADER.size, start)
            at = chunk.rfind(self._sync, 0, end - start + len(self._sync) - 1)
            while at >= 0:
                whole = len(chunk) - at >= fmt.FRAME_HEADER.size
                head = fmt.decode_frame_header(chunk, at, self._sync) if whole else None
                if head is not None and head[0] == kind and self.frame_at(start + at) is not None:
                    return start + at
                at = chunk.rfind(self._sync, 0, at + len(self._sync) - 1)
            end = start
        return 0

    def copy(self) -> FrameReader:
        """Another reader of the open file, at the same place. Do not close it; it ends with this one."""
        made = copy.copy(self)
        made.damage = Damage()
        return made

    def next(self, skipped: Callable[[bytes], bool] | None = None) -> Frame | None:
        """The next complete frame; `None` at the end. If the file grows, later calls return more.

        Args:
            skipped: called with the beginning of each events frame. If it returns true, the frame is skipped without reading it.
        """
        while (found := self._advance(skipped)) is not None:
            if found[0] is not None:
                return found[0]
        return None

    def following(self, nbytes: int, skipped: Callable[[bytes], bool]) -> list[Frame]:
        """The next complete frames of so many bytes, which are read at once: this is fast for many small frames.

        The list ends, and may be empty, before a larger frame, damage, or the end. Call `next` there.
        """
        frames: list[Frame] = []
        if self._sync is None:
            return frames
        block = self.files.pread(nbytes, self._at)
        at, size = 0, fmt.FRAME_HEADER.size
        while at + size <= len(block) and (found := fmt.decode_frame_header(block, at, self._sync)) is not None:
            kind, flags, number, length, crc = found
            body, end = at + size, at + size + length
            if end > len(block) or number != self._number & 0xFFFFFFFF:
                break
            over = kind == fmt.FrameType.EVENTS and skipped(block[body : min(body + fmt.MAX_EVENTS_HEADER, end)])
            if not over:
                payload = block[body:end]
                if _core.crc32(payload) != crc:
                    break
                frames.append((kind, flags, payload))
            self._number += 1
            at = end
        if at:
            self._at += at
            if self.damage.torn_bytes:
                self.damage = msgspec.structs.replace(self.damage, torn_bytes=0)
        return frames

    def copy_to(self, path: Path, end: int) -> Segment:
        """Writes a new file with all frames before a position. Of missing bytes it has none."""
        assert self._sync is not None
        first = self.files.at(self.files.begin)
        with open(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb"
        ) as file:
            file.write(fmt.encode_file_header(self._sync, first.number, first.begin))
            at = self.files.begin
            while at < end:
                block = self.files.pread(min(_SCAN_BYTES, end - at), at)
                file.write(block)
                at = at + len(block) if block else min(self.files.next_begin(at) or end, end)
                file.seek(first.offset(at))
            file.truncate()
        return Segment(str(path), first.number, first.begin, first.header_bytes)

    def skip(self, skipped: Callable[[bytes], bool] = lambda _: True) -> bool:
        """Skips the next complete frame, without reading its events if `skipped` returns true. Returns false at the end."""
        return self._advance(skipped) is not None

    def count_undecodable(self) -> None:
        """Counts a complete frame that cannot be decoded."""
        self.damage = msgspec.structs.replace(self.damage, undecodable_frames=self.damage.undecodable_frames + 1)

    def _advance(self, skipped: Callable[[bytes], bool] | None) -> tuple[Frame | None, int, int] | None:
        """Finds the next complete frame with `_frame_at`, and moves to its end; `None` at the end of the file."""
        self._sync = self._sync or self._read_file_header()
        start = self._at
        while self._sync is not None:
            found = self._frame_at(self._at, skipped)
            if found is not None:
                _, number, end = found
                self._count_frame(start, self._at, number, end)
                return found
            if not self._find_header(self._at + 1):
                if self._find_later(self._sync):
                    self._at = start
                    continue
                break
        # No complete frame follows. The rest may be a frame that is being written: the next call reads it again.
        self._at = start
        if self._sync is not None:
            torn = max(self.files.end - start, 0)
            self.damage = msgspec.structs.replace(self.damage, torn_bytes=torn)
        return None

    def _read_file_header(self) -> bytes | None:
        """The sync word of the file; `None` if the file ends within its header."""
        head = self.files.beginning(fmt.MAX_FILE_HEADER + fmt.FRAME_HEADER.size)
        header = fmt.decode_file_header(head)
        if header is not None:
            self._begin_at(header)
            return header.sync
        # The first frame has the same sync word, and a checksum.
        at = fmt.FILE_HEADER.size
        sync = head[at : at + 4]
        if (
            len(head) >= at + fmt.FRAME_HEADER.size
            and fmt.is_sync_word(sync)
            and fmt.decode_frame_header(head, at, sync)
        ):
            self.damage = Damage(header=True)
            self._begin_at(fmt.FileHeader(sync))
            return sync
        if len(head) < fmt.MAX_FILE_HEADER and head[: len(fmt.MAGIC)] == fmt.MAGIC[: len(head)]:
            self.damage = Damage(torn_bytes=len(head))
            return None
        raise FormatError(f"{self.path} is not a stepscope journal, or its beginning is destroyed")

    def _begin_at(self, header: fmt.FileHeader) -> None:
        """Moves to the first frame, and finds the further files."""
        self.files.set_header(header)
        self._at = self.files.begin
        self._sync = header.sync
        if header.segment:  # frames before it have the numbers before
            found = self._frame_at(self._at)
            if found is None and self._find_header(self._at + 1):
                found, self._at = self._frame_at(self._at), self.files.begin
            self._number = self._first_number = 0 if found is None else found[1]
        self._find_later(header.sync)

    def _find_later(self, sync: bytes) -> bool:
        found = self.files.find_later(sync)
        if self.files.damaged_header and not self.damage.header:
            self.damage = msgspec.structs.replace(self.damage, header=True)
        return found

    def _frame_at(
        self, at: int, skipped: Callable[[bytes], bool] | None = None
    ) -> tuple[Frame | None, int, int] | None:
        """(frame, number, end) of the complete frame at a position, if any; without the frame if it is skipped."""
        both = self.files.pread_one(_AHEAD_BYTES, at)
        head = both[: fmt.FRAME_HEADER.size]
        if self._sync is None or len(head) < fmt.FRAME_HEADER.size:
            return None
        found = fmt.decode_frame_header(head, 0, self._sync)
        if found is None:
            return None
        kind, flags, number, length, crc = found
        body = at + len(head)
        small = len(head) + length <= len(both)
        if not small and body + length > self.files.end:
            return None
        self.head = (at, number, length)
        if skipped is not None and kind == fmt.FrameType.EVENTS:
            if skipped(both[len(head) : len(head) + length]):
                return None, number, body + length
        payload = both[len(head) : len(head) + length] if small else self.files.pread_one(length, body)
        if len(payload) != length or _core.crc32(payload) != crc:
            return None
        return (kind, flags, payload), number, body + length

    def _find_header(self, at: int) -> bool:
        """Moves to the next valid frame header from `at` on. Returns false if there is none."""
        assert self._sync is not None
        while True:
            chunk = self.files.pread(_SCAN_BYTES, at)
            found = chunk.find(self._sync)
            while found >= 0:
                if len(chunk) - found < fmt.FRAME_HEADER.size:
                    break
                if fmt.decode_frame_header(chunk, found, self._sync) is not None:
                    self._at = at + found
                    return True
                found = chunk.find(self._sync, found + 1)
            if len(chunk) < fmt.FRAME_HEADER.size:
                following = self.files.next_begin(at + len(chunk))  # after a file that is missing, or cut
                if following is None:
                    return False
                at = following
                continue
            # A header may cross the border of two chunks.
            at += found if found > 0 else len(chunk) - len(self._sync) + 1

    def _count_frame(self, start: int, found: int, number: int, end: int) -> None:
        lost = (number - self._number) & 0xFFFFFFFF
        if lost >= 1 << 31:
            # An older number: the file was joined from parts.
            lost, self._number = 0, number
        if found > start or lost or self.damage.torn_bytes:
            self.damage = msgspec.structs.replace(
                self.damage,
                skipped_bytes=self.damage.skipped_bytes + found - start,
                lost_frames=self.damage.lost_frames + lost,
                torn_bytes=0,
            )
        self._number += lost + 1
        self._at = end
