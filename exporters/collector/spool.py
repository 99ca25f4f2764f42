"""The spool: a stream's frames on disk, when they are too many for memory or the run ends before they are confirmed.

A directory for each stream, below `unsent` in the run's directory: a note that says whose frames these are, a file that the
process holds as long as it may write there, and segments, which are journals that begin where the one before ends and are named
by the number of their first frame. `stepscope deliver` sends what is left of them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path

import msgspec

from stepscope.exporters.collector.piece import Piece, Segment
from stepscope.exporters.collector.protocol import StreamId, SyncWord
from stepscope.runtime.control.agreement.peer import Peer
from stepscope.runtime.errors import OutputError
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.files.private_files import make_directories, replace_private
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.session.file_lock import hold, release

log = logging.getLogger("stepscope")

DIRECTORY = "unsent"
"""In the run's directory."""
NOTE = "stream"
LOCK = "lock"
"""File beside the note: locked by the process as long as it may write there."""
SUFFIX = ".journal"
SEGMENT_BYTES = 64 << 20


class StreamNote(msgspec.Struct, frozen=True, kw_only=True):
    """Whose frames these are."""

    stream: StreamId
    sync: SyncWord
    run: RunRecord
    pid: int
    start_time: int
    """Of the process, in clock ticks since boot."""
    machine: str = ""
    """Where these two name a process (`Peer.machine`)."""
    closed: bool = False
    """Whether nothing is written there any more, though the process may go on."""

    @property
    def process(self) -> Peer:
        """Whose they are."""
        return Peer(self.pid, self.start_time, self.machine, self.run.host)


class Spool:
    """Appends pieces to segments, and deletes segments that are no longer wanted. Blocks as the disk does."""

    def __init__(self, directory: Path, max_bytes: int, note: StreamNote) -> None:
        """
        Args:
            directory: of the run.
            max_bytes: of all segments together.
            note: whose frames these will be; it is written at once, so that a killed run is known by it.

        Raises:
            OutputError: if the directory cannot be written.
        """
        self.directory = directory / DIRECTORY / note.stream
        self._header = fmt.encode_file_header(note.sync)
        self._max = max_bytes
        self._segment_bytes = min(SEGMENT_BYTES, max(max_bytes // 8, 1 << 16))
        self._segments: list[Segment] = []
        self._note, self._held, self._closed = note, -1, False
        try:
            make_directories(self.directory.parent)
            if self.directory.parent.is_symlink():
                raise OSError(errno.ELOOP, "it is below a link")
            self.directory.mkdir(mode=0o700)
            lock = self.directory / LOCK
            os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            self._held = hold(lock)  # before the note, by which the spool is found
            replace_private(self.directory / NOTE, json_bytes(note))
        except OSError as error:
            release(self._held)
            raise OutputError(
                error.errno, f"what is not sent cannot be kept on disk: {error.strerror}", str(self.directory)
            ) from error

    @property
    def room(self) -> int:
        """Bytes that it may still take."""
        return self._max - sum(segment.size for segment in self._segments)

    def append(self, piece: Piece) -> None:
        """Moves a piece from memory to disk; when it returns the kernel has it.

        Raises:
            OSError: if it cannot be written, or there is no room; it stays in memory.
        """
        assert piece.data is not None
        if piece.size + len(self._header) > self.room:
            raise OSError(errno.EDQUOT, "the spool is full")
        segment = self._segments[-1] if self._segments else None
        # Frames that were confirmed from memory are missing on disk: a segment has no gap.
        if segment is None or segment.size + piece.size > self._segment_bytes or segment.next != piece.first:
            self._delete(self._segments)
            segment = self._new_segment(piece.first)
        at = segment.size
        _write(segment, piece.data)
        piece.segment, piece.at, piece.data = segment, at, None
        segment.next = piece.next
        segment.pieces += 1

    def forget(self, piece: Piece) -> None:
        """A piece is confirmed; a segment that is confirmed whole is deleted, unless it is the last.

        Raises:
            OSError: if it cannot be deleted.
        """
        assert piece.segment is not None
        piece.segment.pieces -= 1
        self._delete(self._segments[:-1])

    def _delete(self, segments: list[Segment]) -> None:
        for segment in list(segments):
            if not segment.pieces:
                self._segments.remove(segment)
                segment.close()
                os.unlink(segment.path)

    def close(self) -> None:
        """Closes the files, and deletes them if nothing in them is wanted; else `stepscope deliver` may have them. Idempotent.

        Raises:
            OSError: if they cannot be deleted.
        """
        if self._closed:
            return
        self._closed = True
        wanted = any(segment.pieces for segment in self._segments)
        paths = [Path(segment.path) for segment in self._segments]
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        try:
            if wanted:
                self._say_closed()
            else:
                remove(self.directory, paths)
        finally:
            release(self._held)

    def _say_closed(self) -> None:
        try:
            replace_private(self.directory / NOTE, json_bytes(msgspec.structs.replace(self._note, closed=True)))
        except OSError as error:
            log.warning("%s does not say that it is complete: %s", self.directory, error.strerror)

    def _new_segment(self, first: int) -> Segment:
        path = str(self.directory / f"{first:020}{SUFFIX}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        segment = Segment(os.open(path, flags, 0o600), path)
        try:
            _write(segment, self._header)
        except OSError:
            segment.close()
            os.unlink(path)
            raise
        self._segments.append(segment)
        return segment


def remove(directory: Path, segments: list[Path]) -> None:
    """Deletes a stream's spool, and the directory above if it was the last in it.

    Raises:
        OSError: if it cannot be deleted.
    """
    # Without the note nothing is delivered again.
    for path in (directory / NOTE, *segments, directory / LOCK):
        path.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        directory.rmdir()
    try:
        directory.parent.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def _write(segment: Segment, data: bytes) -> None:
    try:
        view, at = memoryview(data), segment.size
        while view:
            done = os.pwrite(segment.file, view, at)
            view, at = view[done:], at + done
    except OSError:
        os.ftruncate(segment.file, segment.size)
        raise
    segment.size += len(data)
