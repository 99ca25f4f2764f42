"""Walks over the frames of a journal by their headers, to find what can be given up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import discarded_frames
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.discarded_frames import GivenUp


class Found(msgspec.Struct, frozen=True, gc=False):
    """A frame that a walk passed."""

    kind: int
    flags: int
    number: int
    at: int
    length: int
    beginning: bytes
    """Of its payload, as far as it tells what is there."""

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.at + fmt.FRAME_HEADER.size + self.length

    @property
    def spans(self) -> bool:
        """Whether it stands for all frames since the one before it."""
        return self.kind != fmt.FrameType.EVENTS and bool(self.flags & fmt.SPANS)

    @property
    def gone(self) -> GivenUp | None:
        """What was there, if it was given up; nothing can be said of a frame that does not say it."""
        if self.kind not in discarded_frames.KINDS:
            return None
        try:
            return discarded_frames.decode(self.kind, self.beginning)
        except FormatError:
            return None


def walk(fd: int, sync: bytes, at: int) -> Iterator[Found]:
    """The frames from a border on, as far as they are whole."""
    size = fmt.FRAME_HEADER.size
    while True:
        head = os.pread(fd, size + fmt.MAX_EVENTS_HEADER, at)
        frame = fmt.decode_frame_header(head, 0, sync) if len(head) >= size else None
        if frame is None:
            return
        kind, flags, number, length, _ = frame
        if at + size + length > os.fstat(fd).st_size:
            return
        beginning = head[size : size + length]
        if kind == fmt.FrameType.GIVEN_UP and (needed := min(discarded_frames.needed(beginning), length)) > len(
            beginning
        ):
            beginning = os.pread(fd, needed, at + size)
        yield Found(kind, flags, number, at, length, beginning)
        at += size + length


def sync_word(fd: int, path: Path) -> bytes:
    """The mark of a journal's frames.

    Raises:
        FormatError: if it is no journal.
    """
    header = fmt.decode_file_header(os.pread(fd, fmt.FILE_HEADER.size, 0))
    if header is None:
        raise FormatError(f"{path} is not a stepscope journal, or its beginning is destroyed")
    return header.sync
