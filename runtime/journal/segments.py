"""The files of a journal, its segments, which are read as if they were one file.

`journal` is the first segment; `journal.1`, `journal.2`, ... follow. Each has a file header of its own, and can be read alone.
"""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal.format import FILE_HEADER, FRAME_HEADER, MAX_FILE_HEADER, FileHeader, decode_file_header

SEGMENT_BYTES = 64 << 20
SEGMENT_AGE_S = 3600
"""A journal continues in a new segment when the last one has so many bytes, or is so old."""
MAX_SEGMENTS = 0xFFFF
MAX_DESCRIPTORS = 8
"""Descriptors that the reader of one journal has open at a time, by default: deleted files take room on the disk while they are open."""

_NUMBER = "[1-9][0-9]{0,4}"
_LATER = re.compile(rf"(?P<first>.+)\.(?P<number>{_NUMBER})")
_HEAD_BYTES = MAX_FILE_HEADER + FRAME_HEADER.size


class Segment(msgspec.Struct, frozen=True):
    """One file of a journal."""

    name: str
    """Its path."""
    number: int
    begin: int
    """Position of its first frame in the journal."""
    header_bytes: int
    frame_header: bytes = b""
    """Header of its first frame, of a later file that was found."""

    @property
    def path(self) -> Path:
        return Path(self.name)

    def offset(self, position: int) -> int:
        """Position in this file of a position of the journal."""
        return position - self.begin + self.header_bytes


def segment_path(first: Path, number: int) -> Path:
    """Path of a segment of the journal whose first segment has this path."""
    return Path(f"{first}.{number}") if number else first


def first_names(names: Iterable[str]) -> list[str]:
    """Names of a directory's files, sorted; instead of a later segment the first one, even if it was deleted."""
    later = ((name, _LATER.fullmatch(name)) for name in names)
    return sorted({name if match is None else match["first"] for name, match in later})


def segment_paths(first: Path) -> list[Path]:
    """Existing files with the name of a segment of this journal, in their order."""
    return [segment_path(first, number) for number in segment_numbers(first)]


def journal_bytes(first: Path) -> int:
    """Bytes of these files. Raises `OSError` if one cannot be looked at."""
    numbers = segment_numbers(first)
    return sum(os.stat(f"{first}.{number}" if number else first).st_size for number in numbers)


def segment_numbers(first: Path) -> list[int]:
    """The numbers of these files, in their order."""
    names = os.listdir(first.parent)
    # No name contains a slash.
    later = re.findall(rf"(?<![^/]){re.escape(first.name)}\.({_NUMBER})(?![^/])", "/".join(names))
    numbers = [int(number) for number in later]
    return sorted([0, *numbers] if first.name in names else numbers)


def first_file(path: Path) -> Path:
    """The first existing file of the journal whose first segment has this path; that path, if there is none."""
    if os.path.lexists(path) or not path.parent.is_dir():
        return path
    return next(iter(segment_paths(path)), path)


def exists(path: Path) -> bool:
    """Whether there is a file or directory of this name, or a journal whose first segment had this name."""
    return first_file(path).exists()


def journal_of(path: Path) -> Path:
    """The journal to which a file belongs: the path of its first segment, if the file is a later one."""
    later = _LATER.fullmatch(path.name)
    if later is None or not path.is_file():
        return path
    try:
        with path.open("rb") as file:
            header = decode_file_header(file.read(MAX_FILE_HEADER))
    except (OSError, FormatError):
        return path
    return path.with_name(later["first"]) if header is not None and header.segment == int(later["number"]) else path


class SegmentFiles:
    """The segments of a journal as one file, which may grow.

    A position counts the bytes of the first segment, and those of the frames of later ones. A file that was deleted, or is too
    short, has no bytes there. The path is that of the first segment, which may have been deleted; a later one is read alone. With
    `alone`, so is the first one.

    Raises:
        OSError: if there is no such file, or it cannot be opened.
        FormatError: if it is not a regular file.
    """

    def __init__(
        self, path: Path, *, follow: bool = True, alone: bool = False, max_descriptors: int = MAX_DESCRIPTORS
    ) -> None:
        self._path = path
        self._max_descriptors = max_descriptors
        self._links = 0 if follow else os.O_NOFOLLOW
        self._descriptors: dict[str, int] = {}
        self.damaged_header = False
        """Whether a later segment was found in spite of its header."""
        self._alone = alone
        first = str(first_file(path))
        self._segments = [Segment(first, 0, FILE_HEADER.size, FILE_HEADER.size)]
        self._begins = [FILE_HEADER.size]
        self._ends: list[int] = []
        """Positions of the ends of all files but the last, when the next one was found."""
        self._descriptor(first)

    def close(self) -> None:
        """Closes all files. Idempotent."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    @property
    def begin(self) -> int:
        """Position of the first frame."""
        return self._begins[0]

    @property
    def end(self) -> int:
        """Position of the end of the last file."""
        last = self._segments[-1]
        return last.begin + os.fstat(self._descriptor(last.name)).st_size - last.header_bytes

    def frame_bytes(self, end: int) -> int:
        """Bytes of the frames before a position that are in files."""
        ends = zip(self._begins, [*self._ends, self.end], strict=True)
        return sum(max(min(its_end, end) - begin, 0) for begin, its_end in ends)

    def at(self, position: int) -> Segment:
        """The segment that has the byte before a position."""
        return self._segments[max(bisect_right(self._begins, position - 1) - 1, 0)]

    def beginning(self, nbytes: int) -> bytes:
        """The first bytes of the first file, with its header."""
        return os.pread(self._descriptor(self._segments[0].name), nbytes, 0)

    def set_header(self, header: FileHeader) -> None:
        """Makes known what the header of the first file says."""
        first = self._segments[0].name
        self._alone = self._alone or (header.segment > 0 and first == str(self._path))
        self._segments[0] = Segment(first, header.segment, header.begin, header.nbytes)
        self._begins[0] = header.begin

    def find_later(self, sync: bytes) -> bool:
        """Looks for further segments: files with the next numbers and the same sync word. Returns whether there are any."""
        if self._alone:
            return False
        while len(self._segments) > 1 and not os.path.lexists(self._segments[-1].name):
            del (
                self._segments[-1],
                self._begins[-1],
                self._ends[-1],
            )  # deleted; or it could not be written, and the one before goes on
        before = len(self._segments)
        try:
            numbers = segment_numbers(self._path)
        except OSError:  # the directory can be searched only; or it was removed
            return False
        end = self.end
        for number, size, head in self._heads(numbers[bisect_right(numbers, self._segments[-1].number) :]):
            header = self._header(head, number, sync, end)
            if header is not None and header.sync == sync and header.begin >= end:
                frame_header = head[MAX_FILE_HEADER:]
                self._segments.append(
                    Segment(f"{self._path}.{number}", number, header.begin, header.nbytes, frame_header)
                )
                self._begins.append(header.begin)
                self._ends.append(end)
                end = header.begin + size - header.nbytes
        return len(self._segments) > before

    def pread_one(self, nbytes: int, position: int) -> bytes:
        """Bytes at a position, of one file: no frame is in two."""
        at = bisect_right(self._begins, position) - 1
        if at < 0:
            return b""
        segment = self._segments[at]
        descriptor = self._descriptors.get(segment.name)
        if descriptor is None:
            return self._read(segment, nbytes, position)
        return os.pread(descriptor, nbytes, position - segment.begin + segment.header_bytes)

    def pread(self, nbytes: int, position: int) -> bytes:
        """Bytes at a position; fewer at the end, or where a file is missing or too short."""
        at = bisect_right(self._begins, position) - 1
        if at < 0:
            return b""
        data = self._read(self._segments[at], nbytes, position)
        while len(data) < nbytes and at + 1 < len(self._begins) and self._begins[at + 1] == position + len(data):
            at += 1
            data += self._read(self._segments[at], nbytes - len(data), position + len(data))
        return data

    def close_before(self, position: int) -> None:
        """Closes the files of segments that end before a position, so that the disk has their space when they are deleted."""
        for at in range(len(self._segments) - 1):
            if self._begins[at + 1] > position:
                break
            descriptor = self._descriptors.pop(self._segments[at].name, None)
            if descriptor is not None:
                os.close(descriptor)

    def next_begin(self, position: int) -> int | None:
        """Begin of the first segment that begins after a position."""
        at = bisect_right(self._begins, position)
        return self._begins[at] if at < len(self._begins) else None

    def end_before(self, position: int) -> int | None:
        """End of the file before a position that is in no file, as its segment is missing or cut; `None` if it is in one."""
        segment = self.at(position + 1)
        end = segment.begin + os.fstat(self._descriptor(segment.name)).st_size - segment.header_bytes
        return end if position >= end else None

    def _read(self, segment: Segment, nbytes: int, position: int) -> bytes:
        try:
            descriptor = self._descriptor(segment.name)
        except FileNotFoundError:  # a run that keeps its last segments has deleted it meanwhile
            return b""
        return os.pread(descriptor, nbytes, segment.offset(position))

    def _heads(self, numbers: list[int]) -> Iterator[tuple[int, int, bytes]]:
        """Number, size and first bytes of later files. The last ones stay open."""
        earlier = numbers[: max(len(numbers) - self._max_descriptors, 0)]
        if earlier:
            found = _core.file_heads(os.fsencode(self._path), earlier, _HEAD_BYTES, self._links)
            yield from ((number, *head) for number, head in zip(earlier, found, strict=True) if head is not None)
        for number in numbers[len(earlier) :]:
            try:
                descriptor = self._descriptor(f"{self._path}.{number}")
                head, size = os.pread(descriptor, _HEAD_BYTES, 0), os.fstat(descriptor).st_size
            except (OSError, FormatError):
                continue
            yield number, size, head

    def _header(self, head: bytes, number: int, sync: bytes, end: int) -> FileHeader | None:
        """The header of a later file, which begins at `end` if that does not say where; `None` if it is none of this journal."""
        try:
            header = decode_file_header(head)
        except FormatError:
            if head[12:16] == sync:
                raise  # without it, events of this journal would be missing and nothing would say so
            return None
        if header is None and (head[12:16] == sync or head[MAX_FILE_HEADER:].startswith(sync)):
            self.damaged_header = True
            header = FileHeader(sync, number, end)
        return header if header is None or header.segment == number else None

    def _descriptor(self, name: str) -> int:
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            # Non-blocking, so that opening a FIFO returns, and it is refused.
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | self._links)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise FormatError(f"{name} is not a regular file")
            while len(self._descriptors) >= self._max_descriptors:
                oldest = next(iter(self._descriptors))
                os.close(self._descriptors.pop(oldest))
            self._descriptors[name] = descriptor
        return descriptor
