"""The segments of a stream as one file, for a download."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path

from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.segments import segment_paths

log = logging.getLogger("stepscope.collector")

AT_ONCE = 1 << 20
"""Bytes that are read together."""


class JournalCopy:
    """Reads the first segment that exists, then the later ones without their file headers.

    Segments that are begun later are not read. If a segment is deleted before it is read, the copy ends there. From any thread;
    calls block on the disk.
    """

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: of the stream's first segment, which may have been evicted.

        Raises:
            OSError: if no segment can be opened.
        """
        self._guard = threading.Lock()
        self._remaining = segment_paths(path)
        if not self._remaining:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._file = -1
        self._at = self._end = 0
        self._open(self._remaining.pop(0), begin=True)

    def next(self) -> bytes:
        """The next bytes; empty at the end, and once it is closed.

        Raises:
            OSError: if a segment cannot be read.
        """
        with self._guard:
            while self._file >= 0:
                piece = os.pread(self._file, min(AT_ONCE, self._end - self._at), self._at)
                if piece:
                    self._at += len(piece)
                    return piece
                self._close()
                if self._remaining:
                    self._open_next(self._remaining.pop(0))
            return b""

    def close(self) -> None:
        """Closes it, when nothing of it is being read. Idempotent."""
        with self._guard:
            self._close()

    def _open_next(self, path: Path) -> None:
        try:
            self._open(path, begin=False)
        except FileNotFoundError:
            log.warning("a download ends early: %s was deleted before it was sent", path)

    def _open(self, path: Path, *, begin: bool) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        self._at = 0 if begin else fmt.MAX_FILE_HEADER
        self._end = os.fstat(self._file).st_size

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
