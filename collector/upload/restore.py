"""Restores the streams in an object store into a collector's directory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from stepscope.collector.clocks import server_clock
from stepscope.collector.files.disk import DirectoryLock
from stepscope.collector.upload.object_store import ObjectStore
from stepscope.collector.upload.uploader import CLOCKS, EVICTED, FILE, read_clocks
from stepscope.runtime.errors import FormatError
from stepscope.runtime.files.private_files import make_directories, refuse_link, temporary_name
from stepscope.runtime.journal.frame_reader import FrameReader


class Restored(msgspec.Struct, frozen=True):
    """Result of `restore`."""

    streams: int
    """Streams in the store."""
    segments: int
    """Segments that were restored."""
    nbytes: int
    """Their size."""
    errors: list[str]
    """Sentences: files that could not be restored, or are damaged."""


def restore(objects: ObjectStore, directory: Path) -> Restored:
    """Restores the files that are missing in a directory, or shorter there, and checks the segments.

    A file gets its name when it is complete, so an interrupted restore can be repeated. The readable part of a damaged segment
    is restored, too.

    Args:
        objects: the store.
        directory: made if it does not exist, for this user only.

    Raises:
        DirectoryInUseError: if a collector writes to the directory.
        FormatError: if there are no streams at the URL.
        OutputError: if the store cannot be listed.
        OSError: if the directory cannot be made.
    """
    sizes = objects.sizes()
    files = {name: match for name in sizes if (match := FILE.fullmatch(name))}
    last: dict[str, int] = {}
    """Number of the last segment of each stream."""
    for match in files.values():
        last[match["stream"]] = max(last.get(match["stream"], 0), int(match["number"] or 0))
    if not last:
        raise FormatError(f"there are no streams in {objects.root}; give the URL that they were uploaded to")
    make_directories(directory)
    lock = DirectoryLock(directory)
    lock.acquire()
    segments: list[str] = []

    def add_clocks() -> None:
        names = server_clock.read_clock_names(directory) or frozenset()
        for clock in sorted(read_clocks(objects, sizes.get(CLOCKS, 0)) - names):
            server_clock.add_clock_name(directory, clock)

    def restore_file(name: str, match: re.Match[str]) -> None:
        path = directory / "streams" / name
        for place in (path, path.parent, path.parent.parent):
            refuse_link(place)
        if path.exists() and path.stat().st_size >= sizes[name]:
            return
        make_directories(path.parent)
        temporary, damage = temporary_name(path), ""
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(file, "wb") as content:
                objects.get(name, content, sizes[name])
                content.flush()
                os.fsync(file)
            if path.name != EVICTED:
                damage = _damage(temporary, closed=int(match["number"] or 0) < last[match["stream"]])
            temporary.replace(path)
        except FormatError as error:
            text = str(error).replace(str(temporary), f"{objects.root}/{name}")
            raise FormatError(f"{text}; it was not restored") from error
        finally:
            temporary.unlink(missing_ok=True)
        if path.name != EVICTED:
            segments.append(name)
        if damage:
            raise FormatError(f"{objects.root}/{name} is damaged ({damage}); what is left of it was restored")

    try:
        calls: dict[str, Callable[[], None]] = {CLOCKS: add_clocks}
        errors = objects.in_parallel(calls | {name: partial(restore_file, name, files[name]) for name in files})
    finally:
        lock.release()
    texts = [str(errors[name]) for name in sorted(errors)]
    return Restored(len(last), len(segments), sum(sizes[name] for name in segments), texts)


def _damage(path: Path, *, closed: bool) -> str:
    """Reads a segment alone, and returns what is damaged. A segment that is not closed may have a torn end. Raises
    `FormatError` if it is not a segment."""
    reader = FrameReader(path, follow=False)
    try:
        while reader.next() is not None:
            pass
    finally:
        reader.close()
    damage = reader.damage
    torn = f"torn bytes: {damage.torn_bytes:,}" if closed and damage.torn_bytes else ""
    return ", ".join(filter(None, ("header" if damage.header else "", damage.harm(), torn)))
