"""Streams of which several directories have a part each: they are put together by the numbers of their frames."""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stepscope.collector import clock_names
from stepscope.collector.runs.recording import UnreadableJournal, journals_in, stream_of
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader
from stepscope.runtime.journal.index import read_index, scan
from stepscope.runtime.journal.segments import Segment

CHUNK = 1 << 20


class Joined(msgspec.Struct, frozen=True):
    """Journals that were put together."""

    journals: list[Path]
    """Each where a collector would keep it."""
    parts: set[Path]
    """Journals of which all is in those."""
    notes: list[str]
    """Sentences: the changes that were made."""
    unreadable: list[UnreadableJournal]
    """Journals that cannot be put together; they are among `parts`."""


class _Part(msgspec.Struct, frozen=True):
    path: Path
    sync: bytes
    segment: Segment
    """Its first one."""
    first: int
    """Number of its first frame."""
    next: int
    """Number of the frame that follows its last."""
    end: int
    """Where its whole frames end."""
    indexes: list[int]
    """Positions of its index frames."""


def join(sources: Sequence[Path], room: Callable[[], Path]) -> Joined:
    """Puts together the streams of which no directory has all.

    That is so when a collector takes a stream over from another one, and what the other one took is no longer there to be
    read from the beginning.

    Args:
        sources: directories of collectors; others have no such streams.
        room: gives a directory for what is put together, if anything is.

    Raises:
        OSError: if a directory cannot be read, or the result not be written.
    """
    copies: dict[str, list[Path]] = {}
    for source in sources:
        for path in journals_in(source) if source.is_dir() else [source]:
            if stream := stream_of(path):
                copies.setdefault(stream, []).append(path)
    joined = Joined([], set(), [], [])
    place: Path | None = None
    for stream, paths in copies.items():
        parts = _in_order(paths)
        if len(parts) < 2:
            continue
        if place is None:
            place = room()
            for directory in sources:
                for name in (clock_names.read(directory) or ()) if directory.is_dir() else ():
                    clock_names.add(place, name)
        target = place / "streams" / stream / "journal"
        target.parent.mkdir(parents=True)
        joined.parts.update(part.path for part in parts)
        try:
            _write(target, parts)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EFBIG):
                raise
            target.unlink(missing_ok=True)
            why = f"a part of stream {stream} claims a position that no file has: {max(part.end for part in parts):,}"
            joined.unreadable.extend(UnreadableJournal(str(part.path), why) for part in parts)
            continue
        joined.journals.append(target)
        joined.notes.append(
            f"parts of stream {stream} were put together: {', '.join(str(part.path) for part in parts)}"
        )
    return joined


def _in_order(paths: Sequence[Path]) -> list[_Part]:
    """Those of which each has what follows the one before; only the first, if it has everything."""
    if len(paths) < 2:
        return []
    found = sorted(filter(None, map(_read_part, paths)), key=lambda part: (part.first, -part.next))
    chain: list[_Part] = []
    for part in found:
        if not chain or part.sync == chain[0].sync and part.next > chain[-1].next:
            chain.append(part)
    return chain


def _read_part(path: Path) -> _Part | None:
    try:
        reader = FrameReader(path, follow=False)
    except (FormatError, OSError):
        return None
    try:
        if reader.sync_word is None or reader.peek() is None:
            return None
        first = reader.head[1]
        index = read_index(reader) or scan(reader)
        indexes = [position for position, _ in index.records]
        return _Part(path, reader.sync_word, reader.files.at(reader.files.begin), first, *index.end, indexes)
    except OSError:
        return None
    finally:
        reader.close()


def _write(target: Path, parts: Sequence[_Part]) -> None:
    with open(target, "xb") as file:
        segment, next = parts[0].segment, 0
        file.write(fmt.encode_file_header(parts[0].sync, segment.number, segment.begin))
        for part in parts:
            reader = FrameReader(part.path, follow=False)
            try:
                at = _begins(reader, part, next)
                while at < part.end:
                    # Frames keep their positions, which indexes name. What is missing shows by the numbers: a segment may have been
                    # deleted.
                    file.seek(max(segment.offset(at), file.tell()))
                    chunk = reader.files.pread(min(CHUNK, part.end - at), at)
                    file.write(chunk)
                    at = at + len(chunk) if chunk else reader.files.next_begin(at) or part.end
            finally:
                reader.close()
            next = part.next


def _begins(reader: FrameReader, part: _Part, number: int) -> int:
    """Where the first frame begins that is not before this one."""
    at = bisect_right(part.indexes, number, key=lambda position: _number_at(reader, position))
    if at:
        reader.resume(_number_at(reader, part.indexes[at - 1]), part.indexes[at - 1])
    found = part.end

    def look(_: bytes = b"") -> bool:
        nonlocal found
        at, its, _length = reader.head
        if its >= number:
            found = min(found, at)
        return True

    while found == part.end and reader.next(look) is not None:
        look()
    return found


def _number_at(reader: FrameReader, position: int) -> int:
    found = reader.frame_at(position)
    return 0 if found is None else found[1]
