"""The files of one stream: the segments of a rank's journal, which are written frame by frame, as they come."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepscope.exporters.stream.protocol import Frames, short
from stepscope.runtime.errors import FormatError
from stepscope.runtime.files.private_files import DeletionCheck
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.records import RunRecord, decode_record, encode_record
from stepscope.runtime.journal.segments import Segment, journal_bytes, segment_path, segment_paths

Frame = tuple[int, int, memoryview]
"""Type, flags, payload."""

MAX_SEGMENT_BYTES = 1 << 30
"""A stream with a longer segment is refused: a rank begins a new one after 64 MiB."""
NAME_BYTES = 64
"""Bytes of a segment's name in its directory."""
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class NewFrames(msgspec.Struct, frozen=True):
    """Frames of one segment that the stream does not have yet, checked."""

    frames: list[Frame]
    data: memoryview
    next: int
    """Number of the frame that follows."""
    checksum: int
    """Checksum in the header of the last frame."""
    segment: int
    position: int
    """Bytes of the journal before them."""
    missing: int = 0
    """Number of frames that are missing before them."""

    def runs(self) -> Iterator[RunRecord]:
        """The run records among the frames."""
        for kind, _, payload in self.frames:
            if kind == fmt.FrameType.RUN and isinstance(run := decode_record(kind, bytes(payload)), RunRecord):
                yield short(run)


class StreamFile:
    """Writes each frame of a stream once, in order, however often it is sent, into the segment to which it belongs.

    The files hold what was confirmed: after a crash the next frame is found by reading the end of the last one, and a frame that
    was written in part is cut off. One user at a time.

    Args:
        directory: of the stream; the first file is made when the first frame comes.
        durable: wait until the disk has the existing files, and their names.

    Raises:
        FormatError: if the files are those of another stream, or no journal.
        OSError: if they cannot be opened.
    """

    def __init__(self, directory: Path, sync: bytes, run: RunRecord, *, durable: bool = False) -> None:
        self.path = directory / "journal"
        self.sync = sync
        self.next = 0
        """Number of the next frame."""
        self.checksum: int | None = None
        """Checksum in the header of the last frame; `None` without a frame."""
        self.size = 0
        """Bytes of all files."""
        self.ended = False
        """Whether the last frame is that of a journal which was closed in order."""
        self._run, self._durable = run, durable
        self._segment: Segment | None = None
        """The last file."""
        self._end = 0
        """Position in the journal at which the file ends."""
        self._synced: tuple[int, int | None, int, int, bool] | None = None
        """State before the writes that may not be on the disk yet."""
        self._descriptor = -1
        self._deletion = DeletionCheck()
        try:
            paths = segment_paths(self.path)
            if paths:
                self._open_last(paths)
                self.size = journal_bytes(self.path)
        except BaseException:
            self.close()
            raise

    def check(self, header: Frames, data: memoryview) -> NewFrames:
        """Checks frames, and finds those that the stream does not have yet. Raises `FormatError` if the data are not
        the announced frames, belong to an earlier segment, or make one too long."""
        new: list[Frame] = []
        start = at = last = 0
        expected = header.first
        for kind, flags, number, payload in fmt.frames_in(data, self.sync):
            if expected >= header.first + header.count:
                raise FormatError(f"{header.count} frames were announced, more came")
            if number != expected & 0xFFFFFFFF:
                raise FormatError(f"frame {expected & 0xFFFFFFFF} was announced, {number} came")
            if expected >= self.next:
                start = start if new else at
                last = at
                new.append((kind, flags, payload))
            at += fmt.FRAME_HEADER.size + len(payload)
            expected += 1
        if expected != header.first + header.count:
            raise FormatError(f"{header.count} frames were announced, {expected - header.first} came")
        if not new:
            return NewFrames(new, data[:0], self.next, self.checksum or 0, header.segment, self._end)
        segment = self._segment
        if segment is not None and header.segment < segment.number:
            raise FormatError(f"frames of segment {header.segment} came after those of segment {segment.number}")
        checksum: int = fmt.FRAME_HEADER.unpack_from(data, last)[-1]
        position, missing = header.position + start, max(header.first - self.next, 0)
        added, synthesized = data[start:], 0
        begins = segment is None or header.segment > segment.number
        if begins and new[0][0] != fmt.FrameType.RUN and missing:
            # A file without the run would be nobody's.
            record = encode_record(self._run)
            run = b"".join(fmt.encode_frame(self.sync, fmt.FrameType.RUN, header.first - 1, [record]))
            least = fmt.FILE_HEADER.size if segment is None else self._end
            if position - len(run) >= least:
                new.insert(0, (int(fmt.FrameType.RUN), 0, memoryview(record)))
                added, synthesized = memoryview(run + bytes(added)), 1
                position -= len(run)
        if begins and position < (fmt.FILE_HEADER.size if segment is None else self._end):
            raise FormatError(f"segment {header.segment} begins at byte {position}, before the end of the one before")
        if len(added) + (0 if begins or segment is None else segment.offset(self._end)) > MAX_SEGMENT_BYTES:
            raise FormatError(f"segment {header.segment} is longer than {MAX_SEGMENT_BYTES} bytes")
        return NewFrames(new, added, expected, checksum, header.segment, position, missing - synthesized)

    def begins_segment(self, new_frames: NewFrames) -> bool:
        """Whether a file begins with these frames."""
        return self._segment is None or new_frames.segment > self._segment.number

    def growth(self, new_frames: NewFrames, block: int) -> int:
        """Bytes on disk that these frames take.

        Args:
            new_frames: what `check` found.
            block: bytes of a block of the file system.
        """
        added = len(new_frames.data)
        if self._segment is None or self.begins_segment(new_frames):
            return -(-(fmt.MAX_FILE_HEADER + added) // block) * block + NAME_BYTES
        before = self._segment.offset(self._end)
        return (-(-(before + added) // block) + -before // block) * block

    def write(self, new_frames: NewFrames) -> None:
        """Appends what `check` found; when it returns it has reached the kernel. Raises `OSError` if it cannot be
        written, then the file is as it was; or if somebody has deleted it."""
        if not new_frames.frames:
            return
        if self.begins_segment(new_frames):
            self._begin_segment(new_frames)
        if self._synced is None:
            self._synced = self.next, self.checksum, self._end, self.size, self.ended
        self._append(new_frames.data)
        assert self._segment is not None
        if self._deletion.deleted(self._descriptor, self._segment.path, within_s=0.0):
            raise FileNotFoundError(errno.ENOENT, "the file was deleted while it was written", str(self._segment.path))
        self._end += len(new_frames.data)
        self.size += len(new_frames.data)
        self.ended = new_frames.frames[-1][0] == fmt.FrameType.END
        self.next, self.checksum = new_frames.next, new_frames.checksum

    def sync_to_disk(self) -> None:
        """Waits until the disk has everything. If it fails, cuts off the writes since it last had everything, as the system
        reports a loss only once, and raises `OSError`."""
        if self._descriptor < 0:
            return
        try:
            os.fdatasync(self._descriptor)
        except OSError:
            self._undo_write()
            raise
        self._synced = None

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _undo_write(self) -> None:
        if self._synced is None or self._segment is None:
            return
        os.ftruncate(self._descriptor, self._segment.offset(self._synced[2]))
        self.next, self.checksum, self._end, self.size, self.ended = self._synced
        self._synced = None

    def _begin_segment(self, new_frames: NewFrames) -> None:
        if self._durable:
            self.sync_to_disk()
        header = fmt.encode_file_header(self.sync, new_frames.segment, new_frames.position)
        path = segment_path(self.path, new_frames.segment)
        descriptor = os.open(path, _FLAGS | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, header)
            if self._durable:
                os.fsync(descriptor)
                for directory in (path.parent, path.parent.parent):
                    _sync_directory(directory)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        self.close()
        begin = new_frames.position if new_frames.segment else fmt.FILE_HEADER.size
        self._descriptor, self._segment = descriptor, Segment(str(path), new_frames.segment, begin, len(header))
        self._end = begin
        self.size += len(header)
        self._synced = None

    def _append(self, data: fmt.Bytes) -> None:
        assert self._segment is not None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            os.ftruncate(self._descriptor, self._segment.offset(self._end))
            raise

    def _open_last(self, paths: list[Path]) -> None:
        """Opens the last file that has a frame, behind its last whole frame. Files without any are deleted."""
        empty: list[Path] = []
        for path in reversed(paths):
            self._descriptor = os.open(path, _FLAGS & ~os.O_CREAT)
            if self._durable:
                # Another start may still find in memory what the disk has lost: read it from the disk.
                os.fsync(self._descriptor)
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if self._found_end(path):
                break
            self.close()
            empty.append(path)
        for path in empty:
            path.unlink()

    def _found_end(self, path: Path) -> bool:
        if not any(os.pread(self._descriptor, fmt.MAX_FILE_HEADER, 0)):
            return False  # the machine lost power before the disk had anything of it
        reader = FrameReader(path, follow=False)
        try:
            if reader.sync_word is None:
                return False
            if reader.sync_word != self.sync:
                raise FormatError("the collector has another stream of this id")
            while (frame := reader.next()) is not None and reader.files.at(reader.position[1]).path == path:
                self.ended = frame[0] == fmt.FrameType.END
                self.checksum = fmt.FRAME_HEADER.unpack(reader.files.pread(fmt.FRAME_HEADER.size, reader.head[0]))[-1]
                self.next, self._end = reader.position
            if self.checksum is None:
                return False
            self._segment = reader.files.at(self._end)
        finally:
            reader.close()
        os.ftruncate(self._descriptor, self._segment.offset(self._end))
        return True


def _sync_directory(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
