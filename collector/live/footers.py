"""The footer of a closed segment: the chain of its indexes, read from its end without its frames."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec

from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.records import Int64, WindowSoFar

_SMALL = 4 << 10
_LARGE = 1 << 20
"""Bytes at the end of a segment among which its last index is looked for."""


class _Index(msgspec.Struct, frozen=True):
    """The fields of an `IndexRecord` that are counted."""

    before: Int64 = 0
    rows: memoryview = memoryview(b"")
    open: msgspec.Raw = msgspec.Raw(b"\x90")


_index = msgspec.msgpack.Decoder(_Index).decode
_windows = msgspec.msgpack.Decoder(list[WindowSoFar]).decode


class Footer(msgspec.Struct, frozen=True):
    """What a segment holds."""

    first: int
    """Number of its first frame, modulo 2**32."""
    next: int
    """Number of the frame that follows it, modulo 2**32."""
    nbytes: int
    """Of its frames."""
    rows: list[memoryview]
    """Of its indexes, in order; none, if its last frame is no index, or one of them is damaged."""
    open: list[WindowSoFar]
    """Windows that go on after it."""
    events: int = 0
    windows: int = 0
    """Events, and ends of windows, in the frames of a segment without indexes."""


def read_footer(path: Path) -> Footer:
    """Reads the footer of a segment; without one, the headers of its frames.

    Raises:
        OSError: if it cannot be read.
        FormatError: if it is no journal.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        try:
            found = _indexed(file)
        except msgspec.MsgspecError:  # its open windows cannot be read
            found = None
        return found or _scanned(path)
    finally:
        os.close(file)


def _indexed(file: int) -> Footer | None:
    size = os.fstat(file).st_size
    begin = max(size - _SMALL, 0)
    tail = os.pread(file, _SMALL, begin)
    head = tail if not begin else os.pread(file, fmt.MAX_FILE_HEADER + fmt.FRAME_HEADER.size, 0)
    header = fmt.decode_file_header(head)
    if header is None or len(head) < header.nbytes + fmt.FRAME_HEADER.size:
        return None
    first = fmt.decode_frame_header(head, header.nbytes, header.sync)
    last = _last_index(tail, header.sync)
    if last is None and begin:
        last = _last_index(os.pread(file, _LARGE, max(size - _LARGE, 0)), header.sync)
    if first is None or last is None:
        return None
    number, index = last
    rows, before, at = [index.rows], index.before, size
    while before >= header.begin:
        at, later = header.nbytes + before - header.begin, at
        found = _index_at(file, at, header.sync) if at < later else None
        if found is None:
            return None
        rows.append(found.rows)
        before = found.before
    return Footer(first[2], number + 1 & 0xFFFFFFFF, size - header.nbytes, rows[::-1], _windows(index.open))


def _last_index(tail: bytes, sync: bytes) -> tuple[int, _Index] | None:
    """Number and content of an index that ends where the file does."""
    at = tail.rfind(sync)
    while at >= 0:
        whole = len(tail) - at >= fmt.FRAME_HEADER.size
        found = fmt.decode_frame_header(tail, at, sync) if whole else None
        if found is not None:
            index = _decoded(found, tail[at + fmt.FRAME_HEADER.size :])
            return None if index is None else (found[2], index)
        at = tail.rfind(sync, 0, at)
    return None


def _index_at(file: int, at: int, sync: bytes) -> _Index | None:
    data = os.pread(file, _SMALL // 4, at)
    found = fmt.decode_frame_header(data, 0, sync) if len(data) >= fmt.FRAME_HEADER.size else None
    if found is None or found[3] > _LARGE:
        return None
    size, length = fmt.FRAME_HEADER.size, found[3]
    body = data[size : size + length] if len(data) >= size + length else os.pread(file, length, at + size)
    return _decoded(found, body)


def _decoded(found: tuple[int, int, int, int, int], body: bytes) -> _Index | None:
    kind, _, _, length, crc = found
    if kind != fmt.FrameType.INDEX or len(body) != length or zlib.crc32(body) != crc:
        return None
    try:
        return _index(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _scanned(path: Path) -> Footer:
    events = windows = 0

    def skipped(beginning: bytes) -> bool:
        nonlocal events
        found = fmt.decode_events_header(beginning)
        events += 0 if found is None else found[0].count
        return True

    reader = FrameReader(path, follow=False, alone=True)
    try:
        first = reader.position[0]
        while (frame := reader.next(skipped)) is not None:
            windows += frame[0] == fmt.FrameType.WINDOW_CLOSED
        nbytes = max(reader.files.end - reader.files.begin, 0)
        return Footer(first & 0xFFFFFFFF, reader.position[0] & 0xFFFFFFFF, nbytes, [], [], events, windows)
    finally:
        reader.close()
