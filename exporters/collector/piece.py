"""A piece: some frames of a stream that lie next to each other, in memory or in a file."""

from __future__ import annotations

import os
from collections import Counter

import msgspec

from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt

OVERHEAD = 256
"""Bytes that a piece takes besides its frames."""


class Segment:
    """A file that holds frames of a stream, and knows how many of its pieces are still wanted."""

    def __init__(self, file: int, path: str) -> None:
        """Args: a descriptor, which is ours from now on; the file's name."""
        self.file, self.path = file, path
        self.size = 0
        self.pieces = 0
        self.next = -1
        """Number of the frame that follows; -1 while it has none."""

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class Piece(msgspec.Struct):
    """Whole frames."""

    first: int
    """Number of the first, counted beyond 2**32."""
    count: int
    size: int
    """Bytes."""
    events: Counter[int]
    """Events by window."""
    data: bytes | None
    """The frames; `None` once they are in a file only."""
    segment: Segment | None = None
    at: int = 0
    """Where they lie in it."""

    @property
    def next(self) -> int:
        """Number of the frame that follows."""
        return self.first + self.count

    def read(self) -> bytes:
        """The frames.

        Raises:
            OSError: if they cannot be read from their file.
        """
        if self.data is not None:
            return self.data
        assert self.segment is not None
        data = os.pread(self.segment.file, self.size, self.at)
        if len(data) != self.size:
            raise OSError(f"{self.segment.path} holds {len(data)} of {self.size} bytes at {self.at}")
        return data


def events_in(kind: int, payload: bytes | memoryview) -> Counter[int]:
    """Events of a frame by window; empty unless it is one of events."""
    if kind != fmt.FrameType.EVENTS:
        return Counter()
    header = fmt.decode_events_header(bytes(payload[: fmt.MAX_EVENTS_HEADER]))
    if header is None:
        raise FormatError("a frame of events contradicts itself")
    return Counter({header[0].window: header[0].count})
