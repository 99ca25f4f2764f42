"""Reads a journal for a copy of it, frame by frame, while events in it may be given up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader

AT_ONCE = 1 << 20
"""Bytes of frames that are read together."""
_LARGEST = fmt.FRAME_HEADER.size + fmt.MAX_PAYLOAD


def fitting(path: Path, at: int, end: int, most: int) -> tuple[int, bool]:
    """How many frames fit into so many bytes: one in any case.

    Frames that are given up become one, so another process may make untrue what was found: `is_border` tells.

    Args:
        path: the journal.
        at: where the first of them begins; 0: at the beginning of the file.
        end: where the last frame of the file ends.
        most: bytes.

    Returns:
        Where the last of them ends, and whether they are as many as fit: if not, nothing follows.

    Raises:
        OSError: if the journal cannot be read.
        FormatError: if it is none.
    """
    if end - at < most:
        return end, False
    fits = at
    for border in _ends(path, at, end):
        if fits > at and border - at > most:
            return fits, True
        if border - at > max(most, _LARGEST):  # there is more that is no frame than any frame has
            return at + _LARGEST, True
        fits = border
        if border - at >= most:
            return fits, True
    return end, False


def is_border(path: Path, at: int) -> bool:
    """Whether a frame begins at a byte, or the file ends there: not where frames were given up together around it.

    Raises:
        OSError: if the journal cannot be read.
        FormatError: if it is none.
    """
    reader = FrameReader(path, follow=False)
    try:
        return reader.begins(at)
    finally:
        reader.close()


def pieces(
    path: Path,
    at: int,
    end: int,
    held: Callable[[], AbstractContextManager[None]],
    passed: Callable[[int], object] = lambda _: None,
) -> Iterator[bytes]:
    """The bytes of frames, each as it is at one moment: with all of its events, or given up.

    Args:
        path: the journal.
        at: where the first of them begins; 0: at the beginning of the file.
        end: where the last of them ends.
        held: nothing is given up inside; entered for each piece, and left before it is handed out.
        passed: is told inside where each piece ends, and the next one begins: a frame must go on to begin there.

    Raises:
        OSError: if the journal cannot be read, or is shorter now.
        FormatError: if it is none.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        while at < end:
            with held():
                to, _ = fitting(path, at, end, AT_ONCE)
                piece = os.pread(fd, to - at, at)
                passed(to)
            if len(piece) != to - at:
                raise OSError(f"{path} was cut while it was copied")
            yield piece
            at = to
    finally:
        os.close(fd)


def _ends(path: Path, at: int, end: int) -> Iterator[int]:
    """Where the frames from here on end; only headers of events are read."""
    reader = FrameReader(path, follow=False)
    try:
        if at:
            reader.resume(0, at)  # their numbers do not matter
        while reader.skip() and (border := reader.position[1]) <= end:
            yield border
    finally:
        reader.close()
