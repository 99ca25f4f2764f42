"""The segments of a stream as one file, for a download."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Generator
from pathlib import Path

from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.segments import segment_paths

log = logging.getLogger("stepscope.collector")

AT_ONCE = 1 << 20
"""Bytes that are read together."""


def journal_copy(path: Path) -> Generator[bytes]:
    """Reads the first segment that exists, then the later ones without their file headers.

    Segments that are begun later are not read. If a segment is deleted before it is read, the copy ends there. Each piece blocks on
    the disk, and may be read on another thread.

    Args:
        path: of the stream's first segment, which may have been evicted.

    Raises:
        OSError: if no segment can be opened, or one cannot be read.
    """
    segments = segment_paths(path)
    if not segments:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    for segment in segments:
        at = 0 if segment is segments[0] else fmt.MAX_FILE_HEADER
        try:
            file = os.open(segment, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            if not at:
                raise
            log.warning("a download ends early: %s was deleted before it was sent", segment)
            return
        try:
            end = os.fstat(file).st_size
            while at < end and (piece := os.pread(file, min(AT_ONCE, end - at), at)):
                at += len(piece)
                yield piece
        finally:
            os.close(file)
