"""Brings streams back from an archive, into a directory as a collector has it: to merge them, or to go on there."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stepscope.collector import clock_names
from stepscope.collector.archive.archive import Archive, Manifest
from stepscope.collector.files.lock import DirectoryLock
from stepscope.collector.files.store import Store
from stepscope.collector.settings import CollectorSettings
from stepscope.runtime.errors import FormatError
from stepscope.runtime.files.private_files import make_directories

_NEW = "journal.new"


class Retrieved(msgspec.Struct, frozen=True):
    """What came back."""

    streams: int
    """In the archive."""
    restored: int
    """That were not there yet, or shorter."""
    incomplete: int
    """Of which the archive does not have the end."""
    nbytes: int
    """Written."""


def retrieve(archive: Archive, directory: Path) -> Retrieved:
    """Puts the journals of an archive together; a journal that is there and no shorter stays as it is.

    A journal appears as a whole, so what was interrupted can be done again.

    Args:
        archive: where they are.
        directory: where they shall be; made if need be, for this user only.

    Raises:
        DirectoryInUseError: if a collector writes to the directory.
        FormatError: if nothing was ever uploaded there; or for the first stream that is damaged there, when all others are
            restored.
        OutputError: if the store cannot be asked, or the directory not be made.
        OSError: if a journal cannot be written.
    """
    found = archive.streams()
    if not found:
        raise FormatError(f"there are no streams in {archive.root}; give the URL that they were uploaded to")
    store = Store(CollectorSettings(directory=directory))
    lock = DirectoryLock(directory)
    lock.take()
    try:
        _add_clocks(archive, directory)
        restored = incomplete = nbytes = 0
        problem: FormatError | None = None
        for stream in found:
            try:
                manifest = archive.manifest(stream)
                written = _restored(archive, manifest, store)
            except FormatError as error:
                problem = problem or error
                continue
            restored += bool(written)
            incomplete += not manifest.complete
            nbytes += written
    finally:
        lock.release()
    if problem is not None:
        raise problem
    return Retrieved(len(found), restored, incomplete, nbytes)


def _restored(archive: Archive, manifest: Manifest, store: Store) -> int:
    """Bytes that were written of a stream."""
    path = store.path(manifest.stream)
    known = store.existing(manifest.stream)
    if not manifest.size or (known is not None and known.stat().st_size >= manifest.size):
        return 0
    if path.parent.is_symlink() or path.is_symlink():
        raise FormatError(f"{path} is not restored: it is a link, or lies behind one")
    make_directories(path.parent)
    made = path.with_name(_NEW)
    made.unlink(missing_ok=True)
    try:
        file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "wb") as stream:
            archive.restore(manifest, stream)
            stream.flush()
            os.fsync(file)
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)
    return manifest.size


def _add_clocks(archive: Archive, directory: Path) -> None:
    """Those of the collectors that took the streams: a merge goes by no others."""
    known = clock_names.read(directory) or frozenset()
    for name in sorted(archive.clocks() - known):
        clock_names.add(directory, name)
