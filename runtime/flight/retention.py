"""What the flight recorder keeps: the blocks of the last steps, within a limit of bytes."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.errors import OutputError
from stepscope.runtime.events.intervals import ends
from stepscope.runtime.events.record import Block, EventBatch, Kind
from stepscope.runtime.flight.segment import PREFIX, Segment
from stepscope.runtime.journal import format as fmt

OVERHEAD = 512
"""Bytes that the account of a block is taken to need."""


class KeptBlock(msgspec.Struct, eq=False):
    """Where a block is, and which of its events went into a window."""

    source: str
    count: int
    """Events, gaps apart."""
    first: int
    last: int
    """First begin and last end of its events, in ns."""
    segment: Segment
    at: int
    size: int
    taken: NDArray[np.bool_] | None = None
    """Which events are in some window; `None`: none is."""
    counted: NDArray[np.bool_] | None = None
    """Which of its gaps some window counts."""
    wanted: int = 0
    """Windows that are yet to be given it."""


class RetentionStatistics(msgspec.Struct, frozen=True):
    """Accounts of what is kept."""

    events: int
    """Kept now."""
    bytes: int
    peak_bytes: int
    let_go: int
    """Events that were let go, in windows or not."""
    let_go_early: int
    """Of these, those that were let go to stay below the limit, before their steps had passed."""
    heap_bytes: int
    """Kept now where a killed process would not leave them, as the session directory could not be written."""
    unreadable: int
    """Events whose file had been damaged when they were wanted."""


class Retention:
    """Blocks in the order of their arrival, in segments that are let go whole.

    A segment is let go when all of its events ended before the time that is asked for, or when room is needed: then the
    oldest one goes, whatever it holds.
    """

    def __init__(
        self, directory: Path | None, profiler: int, max_bytes: int, leaving: Callable[[KeptBlock], None]
    ) -> None:
        """
        Args:
            directory: of the session; `None` keeps everything on the heap.
            profiler: its number, in the names of the files.
            max_bytes: what may be kept.
            leaving: is called with each block that is about to be let go, while it can be read.
        """
        self.early = -1
        """Latest end of an event that was let go early, in ns."""
        self._directory = directory
        self._profiler = profiler
        self._max = max_bytes
        self._piece = min(max(max_bytes // 32, 1 << 15), fmt.CHUNK_BYTES)
        self._leaving = leaving
        self._segments: deque[tuple[Segment, list[KeptBlock]]] = deque()
        self._number = 0
        self._bytes = self._peak = self._events = self._let_go = self._let_go_early = self._unreadable = 0
        _open.add(self)

    def add(self, source: str, events: Block, args: bytes) -> Iterator[tuple[KeptBlock, Block, bytes]]:
        """Keeps a block, in pieces; yields each with what it holds, once it is kept."""
        for piece, heap, _ in fmt.split_events(events, args, self._piece):
            ((_, flags, payload, _),) = fmt.encode_events(EventBatch(source, -1, piece, heap), compression="")
            need = sum(len(part) for part in payload) + OVERHEAD + fmt.FRAME_HEADER.size + fmt.FILE_HEADER.size
            while self._segments and self._bytes + need > self._max:
                self._remove(0, early=True)
            segment = self._segment()
            at, size = self._append(segment, payload, flags)
            segment, blocks = self._segments[-1]
            kept = KeptBlock(
                source=source,
                count=int((piece["kind"] != int(Kind.GAP)).sum()),
                first=int(piece["ts"].min()),
                last=int(ends(piece).max()),
                segment=segment,
                at=at,
                size=size,
            )
            segment.last = max(segment.last, kept.last)
            blocks.append(kept)
            self._bytes += OVERHEAD
            self._events += kept.count
            self._peak = max(self._peak, self._bytes)
            yield kept, piece, heap

    def blocks(self) -> Iterator[KeptBlock]:
        """What is kept, in the order of its arrival."""
        for _, blocks in self._segments:
            yield from blocks

    def read(self, kept: KeptBlock) -> tuple[Block, bytes] | None:
        """The events of a block and their arguments; `None`, counted, if its file was damaged."""
        payload = kept.segment.read(kept.at, kept.size)
        decoded = None if payload is None else fmt.decode_events(payload, 0)
        if decoded is None:
            self._unreadable += kept.count
            return None
        return decoded[1], bytes(decoded[2])

    def let_go(self, before: int) -> None:
        """Lets go of the segments whose events all ended before this time, in ns, and which no window waits for."""
        for index in range(len(self._segments) - 2, -1, -1):
            segment, blocks = self._segments[index]
            if segment.last <= before and not any(block.wanted for block in blocks):
                self._remove(index)

    def clear(self) -> None:
        """Lets go of everything."""
        while self._segments:
            self._remove(0)

    def forget(self) -> None:
        """In a forked child: the files are the parent's."""
        for segment, _ in self._segments:
            segment.forget()
        self._segments.clear()

    def statistics(self) -> RetentionStatistics:
        """Accounts so far."""
        return RetentionStatistics(
            events=self._events,
            bytes=self._bytes,
            peak_bytes=self._peak,
            let_go=self._let_go,
            let_go_early=self._let_go_early,
            heap_bytes=sum(segment.size for segment, _ in self._segments if not segment.in_file),
            unreadable=self._unreadable,
        )

    def _segment(self) -> Segment:
        if not self._segments or self._segments[-1][0].size >= self._piece:
            self._begin(in_file=self._directory is not None)
        return self._segments[-1][0]

    def _begin(self, in_file: bool) -> None:
        path = None
        if in_file and self._directory is not None:
            path = self._directory / f"{PREFIX}{self._profiler}-{self._number:08}"
            self._number += 1
        try:
            segment = Segment(path)
        except OSError:
            segment = Segment(None)  # counted: `heap_bytes`
        self._segments.append((segment, []))
        self._bytes += segment.size

    def _append(self, segment: Segment, payload: list[fmt.Bytes], flags: int) -> tuple[int, int]:
        try:
            at, size = segment.append(payload, flags)
        except OutputError:
            self._begin(in_file=False)
            at, size = self._segments[-1][0].append(payload, flags)
        self._bytes += size
        return at, size

    def _remove(self, index: int, early: bool = False) -> None:
        segment, blocks = self._segments[index]
        for block in blocks:
            self._leaving(block)
            self._events -= block.count
            self._let_go += block.count
            self._let_go_early += block.count if early else 0
        if early:
            self.early = max(self.early, segment.last)
        del self._segments[index]
        self._bytes -= segment.size + OVERHEAD * len(blocks)
        segment.remove()


_open: weakref.WeakSet[Retention] = weakref.WeakSet()


def _forget() -> None:
    for retention in list(_open):
        retention.forget()


os.register_at_fork(after_in_child=_forget)
