"""A journal as it is sent to who asks for its file, while events in it may be given up."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from stepscope.collector.files.borders import Borders
from stepscope.collector.files.frame_lock import FrameLock
from stepscope.collector.files.whole_frames import AT_ONCE, fitting
from stepscope.runtime.errors import FormatError

PATIENCE = 30.0
"""Seconds that a piece waits while events are given up."""


class JournalCopy:
    """Reads a file piece by piece, each as it is at one moment, up to where the file ended at first or a little further.

    Of a journal that is deleted meanwhile, and of a file that is none, the bytes are read as they are: nothing in them is given
    up. From any thread; calls block on the disk.
    """

    def __init__(self, path: Path, frames: FrameLock, borders: Borders) -> None:
        """
        Args:
            path: the journal, in the directory of its stream.
            frames: held while a piece is read.
            borders: where is noted that a frame must go on to begin where the next piece does.

        Raises:
            OSError: if it cannot be opened.
        """
        self._path, self._frames, self._borders = path, frames, borders
        self._guard = threading.Lock()
        self._at = 0
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        self._end = os.fstat(self._file).st_size

    def next(self) -> bytes:
        """What follows; empty at the end, and once it is closed.

        Raises:
            TimeoutError: if events are given up all the time.
            OSError: if it cannot be read.
        """
        with self._guard, self._frames.held(PATIENCE):
            if self._file < 0 or self._at >= self._end:
                return b""
            piece = os.pread(self._file, self._piece_end() - self._at, self._at)
            self._at += len(piece)
            self._borders.pass_on(self, self._path.parent.name, self._at)
            return piece

    def close(self) -> None:
        """Closes it, when nothing of it is being read. Idempotent."""
        with self._guard:
            self._borders.passed(self)
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _piece_end(self) -> int:
        about = os.fstat(self._file)
        try:
            if os.path.samestat(about, self._path.lstat()):
                return fitting(self._path, self._at, about.st_size, AT_ONCE)[0]
        except (FileNotFoundError, FormatError):
            pass
        return min(self._at + AT_ONCE, about.st_size)
