"""The file `evicted` beside a stream's segments: how much deleted segments contained, so that it stays counted."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepscope.runtime.journal.frame_reader import Damage, FrameReader
from stepscope.runtime.journal.segments import segment_path

NAME = "evicted"
"""Name of the file, which has one line of JSON for each evicted segment."""


class Evicted(msgspec.Struct, frozen=True, kw_only=True):
    """A segment that was deleted to free the disk."""

    segment: int
    """Number of the segment."""
    frames: int
    nbytes: int
    """Bytes of its frames."""
    events: int
    first_window: int = 0
    """Lowest number of a window of which it had a part."""
    last_window: int = -1
    """Highest number of one."""


_decode = msgspec.json.Decoder(Evicted).decode


def read_evicted(journal: Path) -> list[Evicted]:
    """The evicted segments of a stream, in the order of their eviction.

    A line whose segment still exists does not count: the collector was killed before it deleted the segment.

    Args:
        journal: path of the stream's first segment, which need not exist.

    Raises:
        OSError: if the file cannot be read.
    """
    found: dict[int, Evicted] = {}
    try:
        file = os.open(journal.with_name(NAME), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    with os.fdopen(file, "rb") as lines:
        for line in lines:
            try:
                one = _decode(line)
            except (msgspec.MsgspecError, ValueError):
                continue  # the collector was killed while it wrote the line, and the segment is still there
            found[one.segment] = one
    return [one for one in found.values() if not os.path.lexists(segment_path(journal, one.segment))]


def evict(journal: Path, evicted: Evicted) -> None:
    """Deletes a segment, after a line with its contents was written. If that fails, everything is as before.

    Args:
        journal: path of the stream's first segment, which need not exist.

    Raises:
        OSError: if the line cannot be written, or the segment not be deleted.
    """
    path = journal.with_name(NAME)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(file).st_size
        torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        line = b"\n" * torn + msgspec.json.encode(evicted) + b"\n"
        written = _write(file, line)
        try:
            segment_path(journal, evicted.segment).unlink()
        except OSError:
            os.ftruncate(file, size)
            raise
        if not written:  # now there is room
            os.write(file, b"\n" + line)
    finally:
        os.close(file)


def _write(file: int, line: bytes) -> bool:
    """Appends a line. Returns whether there was room."""
    try:
        return os.write(file, line) == len(line)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return False
        raise


def gaps_of(reader: FrameReader, evicted: Sequence[Evicted]) -> Damage:
    """The damage that a reader of a whole stream counts where segments were evicted."""
    files = reader.files
    # Segments that are missing at the beginning are not reported in the first place.
    first, last = files.at(files.begin).number, files.at(files.end).number
    gaps = [one for one in evicted if first < one.segment < last]
    return Damage(lost_frames=sum(one.frames for one in gaps), skipped_bytes=sum(one.nbytes for one in gaps))


def beyond(damage: Damage, gaps: Damage) -> Damage:
    """Damage without the damage in gaps."""
    return msgspec.structs.replace(
        damage,
        lost_frames=max(damage.lost_frames - gaps.lost_frames, 0),
        skipped_bytes=max(damage.skipped_bytes - gaps.skipped_bytes, 0),
    )
