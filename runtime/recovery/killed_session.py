"""Sessions whose process was killed, and the runs whose events they contain."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepscope.runtime.errors import SessionError
from stepscope.runtime.session.directory import Identity, in_use, parts, read_identity, runs_of
from stepscope.runtime.session.note import SessionNote, is_note, read_note


class KilledSession(msgspec.Struct, frozen=True):
    """A session whose process was killed."""

    path: Path
    identity: Identity
    last_used: float
    """Time of the last visible write, in seconds since 1970."""
    unrecovered: tuple[tuple[Path, SessionNote], ...]
    """Notes of the runs whose events it contains, and that were not recovered."""

    @classmethod
    def of(cls, path: Path) -> KilledSession | None:
        """Reads a directory. Returns `None` if its process, or a joined one, still runs.

        Raises:
            SessionError: if it is not a private directory of this user with a readable `process.json`.
            OSError: if it cannot be read.
        """
        identity = read_identity(path)
        if identity.running or in_use(path):
            return None
        for part in parts(path):
            with contextlib.suppress(SessionError):
                if read_identity(part).running:
                    return None
        notes = notes_of(path, identity.pid, identity.start_time, os.geteuid())
        # Not from a generator: if another thread lists all objects meanwhile, Python cannot complete the tuple.
        unrecovered = tuple([(run, note) for run, note in notes if not is_recovered(note)])
        return cls(path, identity, last_use(path), unrecovered)


def last_use(session: Path) -> float:
    """Time of the last visible write to a session, in seconds since 1970.

    Raises:
        OSError: if it cannot be read.
    """
    files = [entry.stat(follow_symlinks=False) for entry in os.scandir(session)]
    return max([session.lstat().st_mtime, *(file.st_mtime for file in files)])


def notes_of(session: Path, pid: int, start_time: int, owner: int) -> Iterator[tuple[Path, SessionNote]]:
    """The notes of the runs of a session. The paths in the session are not trusted: a note must belong to the owner, and name the
    session and the process.

    Raises:
        OSError: if the session cannot be read.
    """
    for path in runs_of(session):
        if path.is_absolute() and is_note(path):
            with contextlib.suppress(OSError):
                note = read_note(path, [])
                if note is not None and (note.owner, note.directory) == (owner, str(session)):
                    if (note.pid, note.start_time) == (pid, start_time):
                        yield path, note


def is_recovered(note: SessionNote) -> bool:
    """Whether the journal of a note's run was completed after the last write to its session."""
    try:
        return note.recovered_ns / 1e9 >= last_use(Path(note.directory))
    except OSError:
        return False
