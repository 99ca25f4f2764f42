"""Retention of the flight recorder: the blocks of the last steps, within a limit of bytes."""

from __future__ import annotations

import errno
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events.intervals import ends
from stepscope.runtime.events.record import Block, Kind, own_heap
from stepscope.runtime.files.descriptors import reserve_standard_descriptors
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.session.directory import KEPT_PREFIX

OVERHEAD = 512
"""Assumed size of a `RetainedBlock`, in bytes."""


class Chunk:
    """Frames of events that are discarded together, in a file of the session directory, or in memory if that fails.

    The file is a journal without names and tracks, as the session directory has these in other files. If the file is deleted,
    this process can still read it; a killed process loses it.

    Args:
        path: file to create; `None` for memory.

    Raises:
        OSError: if the file cannot be created or written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.size = 0
        """Size in bytes."""
        self.last = 0
        """Latest end of an event, in ns."""
        self._sync = fmt.new_sync_word()
        self._frames = 0
        self._heap = bytearray()
        self._descriptor = -1
        if path is not None:
            reserve_standard_descriptors()
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o600)
        try:
            self._put([fmt.encode_file_header(self._sync)])
        except OSError:
            self.remove()
            raise

    def append(self, payload: list[fmt.Bytes]) -> tuple[int, int]:
        """Adds a frame of events. Returns its position and length.

        Raises:
            OSError: if the file cannot be written. It is unchanged then.
        """
        at = self.size
        self._put(fmt.encode_frame(self._sync, fmt.FrameType.EVENTS, self._frames, payload))
        self._frames += 1
        return at, self.size - at

    def read(self, at: int, length: int) -> bytes | None:
        """Returns the payload of a frame; `None` if the file was changed."""
        try:
            frame = self._heap[at : at + length] if self.path is None else os.pread(self._descriptor, length, at)
        except OSError:
            return None
        return fmt.decode_frame(frame, self._sync)

    def remove(self) -> None:
        """Deletes the file and releases the memory. Idempotent."""
        if self._descriptor >= 0 and self.path is not None:
            self.path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Releases the memory without deleting the file: in a forked child it belongs to the parent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._heap = bytearray()

    def _put(self, parts: list[fmt.Bytes]) -> None:
        data = b"".join(parts)
        if self.path is None:
            self._heap += data
        elif os.write(self._descriptor, data) != len(data):
            os.ftruncate(self._descriptor, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(data)


class RetainedBlock(msgspec.Struct, eq=False):
    """Position of a block, and a record of which events were saved in a window."""

    source: str
    count: int
    """Number of events, without gaps."""
    first: int
    last: int
    """First begin and last end of its events, in ns."""
    chunk: Chunk
    at: int
    size: int
    in_window: NDArray[np.bool_] | None = None
    """Mask of events that are in a window; `None` if none is."""
    counted: NDArray[np.bool_] | None = None
    """Mask of gaps that a window has counted."""
    wanted: int = 0
    """Number of windows that still need it."""


class RetentionStatistics(msgspec.Struct, frozen=True):
    """Accounts of the retained events."""

    events: int
    """Retained now."""
    bytes: int
    peak_bytes: int
    discarded_early: int
    """Events that had to be discarded before their time, to stay below the limit."""
    heap_bytes: int
    """Retained now in memory that a kill loses, because the session directory could not be written."""
    unreadable: int
    """Events in files that were damaged."""


class Retention:
    """Blocks in the order of their arrival, in chunks that are discarded as a whole.

    A chunk is discarded when all its events ended before the requested time. If the limit is reached, the oldest chunk is
    discarded in any case.
    """

    def __init__(
        self, directory: Path | None, profiler: int, max_bytes: int, before_discard: Callable[[RetainedBlock], None]
    ) -> None:
        """
        Args:
            directory: of the session; `None` to retain everything in memory.
            profiler: its number, for the names of the files.
            max_bytes: the limit.
            before_discard: called with each block before it is discarded, while it can still be read.
        """
        self.early = -1
        """Latest end of an event that was discarded early, in ns."""
        self._directory = directory
        self._profiler = profiler
        self._max = max_bytes
        self._piece = min(max(max_bytes // 32, 1 << 15), fmt.CHUNK_BYTES)
        self._before_discard = before_discard
        self._chunks: deque[tuple[Chunk, list[RetainedBlock]]] = deque()
        self._cleared: list[Chunk] = []
        self._number = 0
        self._bytes = self._peak = self._events = self._discarded_early = self._unreadable = 0
        _open.add(self)

    def add(self, source: str, events: Block, args: bytes) -> Iterator[tuple[RetainedBlock, Block, bytes]]:
        """Retains a block in pieces. Yields each piece with its events and arguments after it was written."""
        for piece, heap in self._pieces(events, args):
            payload = fmt.encode_rows(source, -1, piece, heap)
            need = sum(len(part) for part in payload) + OVERHEAD + fmt.FRAME_HEADER.size + fmt.FILE_HEADER.size
            while self._chunks and self._bytes + need > self._max:
                self._pop_chunk(0, early=True).remove()
            chunk = self._chunk()
            place, size = self._append(chunk, payload)
            chunk, blocks = self._chunks[-1]
            block = RetainedBlock(
                source=source,
                count=int((piece["kind"] != int(Kind.GAP)).sum()),
                first=int(piece["ts"].min()),
                last=int(ends(piece).max()),
                chunk=chunk,
                at=place,
                size=size,
            )
            chunk.last = max(chunk.last, block.last)
            blocks.append(block)
            self._bytes += OVERHEAD
            self._events += block.count
            self._peak = max(self._peak, self._bytes)
            yield block, piece, heap

    def blocks(self) -> Iterator[RetainedBlock]:
        """Yields the retained blocks in the order of their arrival."""
        for _, blocks in self._chunks:
            yield from blocks

    def read(self, block: RetainedBlock) -> tuple[Block, bytes] | None:
        """Returns the events of a block and their arguments; `None`, and counts them, if the file was damaged."""
        payload = block.chunk.read(block.at, block.size)
        decoded = None if payload is None else fmt.decode_rows(payload, 0)
        if decoded is None:
            self._unreadable += block.count
            return None
        return decoded[1], bytes(decoded[2])

    def discard(self, before: int) -> None:
        """Discards the chunks whose events all ended before this time, in ns, and which no window needs."""
        for index in range(len(self._chunks) - 2, -1, -1):
            chunk, blocks = self._chunks[index]
            if chunk.last <= before and not any(block.wanted for block in blocks):
                self._pop_chunk(index).remove()

    def clear(self) -> None:
        """Discards everything. Its files stay until `remove_files`, as the journals may not have it yet."""
        while self._chunks:
            self._cleared.append(self._pop_chunk(0))

    def remove_files(self) -> None:
        """Deletes the files of what `clear` has discarded."""
        while self._cleared:
            self._cleared.pop().remove()

    def forget(self) -> None:
        """Called in a forked child: the files are the parent's."""
        for chunk, _ in self._chunks:
            chunk.forget()
        for chunk in self._cleared:
            chunk.forget()
        self._chunks.clear()
        self._cleared.clear()

    def statistics(self) -> RetentionStatistics:
        return RetentionStatistics(
            events=self._events,
            bytes=self._bytes,
            peak_bytes=self._peak,
            discarded_early=self._discarded_early,
            heap_bytes=sum(chunk.size for chunk, _ in self._chunks if chunk.path is None),
            unreadable=self._unreadable,
        )

    def _pieces(self, events: Block, args: bytes) -> Iterator[tuple[Block, bytes]]:
        """Divides a block, until each piece has at most so many bytes, or one event."""
        if len(events) <= 1 or events.nbytes + len(args) <= self._piece:
            yield events, args
            return
        middle = len(events) // 2
        for half in (events[:middle], events[middle:]):
            yield from self._pieces(*own_heap(half, args))

    def _chunk(self) -> Chunk:
        if not self._chunks or self._chunks[-1][0].size >= self._piece:
            self._begin(in_file=self._directory is not None)
        return self._chunks[-1][0]

    def _begin(self, in_file: bool) -> None:
        path = None
        if in_file and self._directory is not None:
            path = self._directory / f"{KEPT_PREFIX}{self._profiler}-{self._number:08}"
            self._number += 1
        try:
            chunk = Chunk(path)
        except OSError:
            chunk = Chunk(None)  # counted: `heap_bytes`
        self._chunks.append((chunk, []))
        self._bytes += chunk.size

    def _append(self, chunk: Chunk, payload: list[fmt.Bytes]) -> tuple[int, int]:
        try:
            at, size = chunk.append(payload)
        except OSError:
            self._begin(in_file=False)
            at, size = self._chunks[-1][0].append(payload)
        self._bytes += size
        return at, size

    def _pop_chunk(self, index: int, early: bool = False) -> Chunk:
        chunk, blocks = self._chunks[index]
        for block in blocks:
            self._before_discard(block)
            self._events -= block.count
            self._discarded_early += block.count if early else 0
        if early:
            self.early = max(self.early, chunk.last)
        del self._chunks[index]
        self._bytes -= chunk.size + OVERHEAD * len(blocks)
        return chunk


_open: weakref.WeakSet[Retention] = weakref.WeakSet()


def _forget() -> None:
    for retention in list(_open):
        retention.forget()


os.register_at_fork(after_in_child=_forget)
