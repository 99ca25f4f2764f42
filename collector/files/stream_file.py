"""The file of one stream: a journal that is taken in frame by frame, and goes on where it ended."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stepscope.collector.files import checkpoint
from stepscope.collector.files.checkpoint import Checkpoint
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.records import RunRecord, encode_record

Frame = tuple[int, int, memoryview]
"""Type, flags, payload."""

CHECKPOINT_BYTES = 16 << 20
"""A checkpoint is made whenever so much was written: what follows the last is read when the file is opened again."""
_FLAGS = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Addition(msgspec.Struct, frozen=True):
    """Frames that a file does not have yet, checked."""

    frames: list[Frame]
    data: memoryview
    last: int
    """Where the last of them begins in `data`."""
    next: int
    """Number of the frame that follows."""
    own: int = 0
    """How many of the frames, the first, are not the exporter's: the run, in place of one that is nowhere any more."""


class StreamFile:
    """Takes each frame of a stream once, in order, whatever is sent twice.

    What the file holds is what was confirmed: after a crash the next frame is found by reading its end, and a frame that
    was written in part is cut off. A file has one user at a time.
    """

    def __init__(self, directory: Path, sync: bytes, *, durable: bool = False) -> None:
        """
        Args:
            directory: of the stream; the file is made if it is not there.
            sync: the mark of the stream's frames.
            durable: wait until the disk has what is there already, and the names of both.

        Raises:
            FormatError: if the file holds another stream, or is none.
            OSError: if it cannot be opened.
        """
        self.path = directory / "journal"
        self.sync = sync
        self.next = 0
        """Number of the next frame, counted beyond 2**32."""
        self.size = 0
        self.ended = False
        """Whether the last frame is that of a journal which was closed in order."""
        self.unmarked = ""
        """Why the last checkpoint could not be written: opening the file takes longer then, nothing else."""
        self.stuck = False
        """Whether it holds frames that the disk has lost, and that could not be cut off: it is not to be opened again."""
        self._marked = self._last = 0
        self._beginning = b""
        """The frame that the file is to begin with, if it is not the stream's first."""
        self._synced: tuple[int, int, int, bool] | None = None
        """What there was before what was written since the disk had everything."""
        self._checkpoint = self._file = -1
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | _FLAGS, 0o600)
            self._checkpoint = os.open(directory / checkpoint.NAME, os.O_RDWR | _FLAGS, 0o600)
            if os.fstat(self._file).st_size:
                if durable:
                    # What the disk has lost, another start of the collector may still find in memory: it is read from the
                    # disk, and what is not there is asked for again.
                    os.fsync(self._file)
                    os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)
                self._find_end()
            if os.fstat(self._file).st_size != self.size:
                os.ftruncate(self._file, self.size)
            if self.next and self.size != self._marked:
                self._mark()  # who read a large file to its end need not do so again, though nothing more is written
            self._marked = self.size
            if not self.size:
                self._append(fmt.encode_file_header(sync))
            if durable:
                os.fsync(self._file)
                for path in (directory, directory.parent):
                    _sync_directory(path)
        except BaseException:
            self._close()
            raise

    def check(self, first: int, count: int, data: memoryview) -> Addition:
        """What is new of frames `first` to `first + count - 1`.

        Raises:
            FormatError: if the data are not these frames, or frames before them are missing.
        """
        if first > self.next:
            raise FormatError(f"frame {self.next} is missing, {first} came")
        new: list[Frame] = []
        start = at = last = 0
        expected = first
        for kind, flags, number, payload in fmt.frames_in(data, self.sync):
            if expected >= first + count:
                raise FormatError(f"{count} frames were announced, more came")
            if number != expected & 0xFFFFFFFF:
                raise FormatError(f"frame {expected & 0xFFFFFFFF} was announced, {number} came")
            if expected >= self.next:
                start = start if new else at
                last = at
                new.append((kind, flags, payload))
            at += fmt.FRAME_HEADER.size + len(payload)
            expected += 1
        if expected != first + count:
            raise FormatError(f"{count} frames were announced, {expected - first} came")
        if not new or not self._beginning or new[0][0] == fmt.FrameType.RUN:
            return Addition(new, data[start:] if new else data[:0], last - start, max(expected, self.next))
        beginning = memoryview(self._beginning)
        run = (int(fmt.FrameType.RUN), 0, beginning[fmt.FRAME_HEADER.size :])
        whole = memoryview(self._beginning + bytes(data[start:]))
        return Addition([run, *new], whole, len(beginning) + last - start, expected, 1)

    def write(self, addition: Addition) -> None:
        """Appends what `check` found; when it returns it has reached the kernel.

        Raises:
            OSError: if it cannot be written; the file is as it was.
        """
        if addition.frames:
            last = self.size + addition.last
            if self._synced is None:
                self._synced = self.next, self.size, self._last, self.ended
            self._append(addition.data)
            self._last = last
            self._beginning = b""
            self.ended = addition.frames[-1][0] == fmt.FrameType.END
            self.next = addition.next
            if self.size - self._marked >= CHECKPOINT_BYTES:
                self._mark()

    def skip(self, next: int, run: RunRecord) -> None:
        """Frames up to this one are nowhere any more.

        A file that has none so far begins with the run, in place of the last of them, unless what comes says itself whose it is:
        nobody could tell whose journal it is else.

        Args:
            next: number of the first frame that there is.
            run: whose stream it is, as its `Hello` says.
        """
        if next > self.next and self.size == fmt.FILE_HEADER.size:
            payload = encode_record(run)
            self._beginning = b"".join(fmt.encode_frame(self.sync, fmt.FrameType.RUN, next - 1, [payload]))
        self.next = max(self.next, next)

    def sync_to_disk(self) -> None:
        """Returns when the disk has everything.

        Raises:
            OSError: if it has not. What was written since it had is cut off, as the system tells of a loss only once: the
                next call, and who opens the file again, would be told that all is well.
        """
        try:
            os.fdatasync(self._file)
        except OSError:
            self._take_back()
            raise
        self._synced = None

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._file >= 0 and self.size > self._marked:
            self._mark()
        self._close()

    def _close(self) -> None:
        for file in (self._file, self._checkpoint):
            if file >= 0:
                os.close(file)
        self._file = self._checkpoint = -1

    def _take_back(self) -> None:
        if self._synced is None:
            return
        self.stuck = True
        os.ftruncate(self._file, self._synced[1])
        self.stuck = False
        self.next, self.size, self._last, self.ended = self._synced
        self._synced = None
        if self._marked > self.size:
            self._marked = 0  # the checkpoint is of what is gone: it does not fit, and another one is made

    def _append(self, data: fmt.Bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, self.size)
            raise
        self.size += len(data)

    def _mark(self) -> None:
        self._marked = self.size
        self.unmarked = ""
        try:
            os.pwrite(self._checkpoint, checkpoint.encode(self.sync, Checkpoint(self.next, self.size, self._last)), 0)
        except OSError as error:
            self.unmarked = str(error)

    def _find_end(self) -> None:
        reader = FrameReader(self.path, follow=False)
        try:
            if reader.sync_word is None:
                return  # not even its header is whole
            if reader.sync_word != self.sync:
                raise FormatError("the collector has another stream of this id")
            marked = checkpoint.fitting(os.pread(self._checkpoint, 4096, 0), self._file, self.sync)
            if marked is not None:
                # Its last frame is read again: it says whether the journal was ended.
                reader.resume(marked.next - 1, marked.last)
                self._marked = marked.at
            at = reader.position[1]
            while (frame := reader.next()) is not None:
                self.ended = frame[0] == fmt.FrameType.END
                self._last, at = at, reader.position[1]
            self.next, self.size = reader.position
        finally:
            reader.close()


def _sync_directory(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
