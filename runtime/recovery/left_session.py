"""Sessions whose process was killed, and the runs that they have events of."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stepscope.runtime.errors import SessionError
from stepscope.runtime.session.directory import Identity, in_use, is_delivered, parts, read_identity, runs_of
from stepscope.runtime.session.note import SessionNote, is_note, read_note


class LeftSession(msgspec.Struct, frozen=True):
    """A session whose process was killed."""

    path: Path
    identity: Identity
    used: float
    """When it was written to, as far as can be seen, in seconds since 1970."""
    bytes: int
    wanted: tuple[tuple[Path, SessionNote], ...]
    """Notes of runs that it has events of and that were not recovered."""
    delivered: bool = False
    """Whether its process had closed all its profilers."""

    @classmethod
    def of(cls, path: Path) -> LeftSession | None:
        """Looks at a directory; `None` if its process, or one that had joined, still runs.

        Raises:
            SessionError: if it is not a private directory of this user that says whose session it is.
            OSError: if it cannot be read.
        """
        identity = read_identity(path)
        if identity.running or in_use(path):
            return None
        for part in parts(path):
            with contextlib.suppress(SessionError):
                if read_identity(part).running:
                    return None
        files = [entry.stat(follow_symlinks=False) for entry in os.scandir(path)]
        size = sum(file.st_blocks for file in files) * 512
        size += sum(
            entry.stat(follow_symlinks=False).st_blocks * 512 for part in parts(path) for entry in os.scandir(part)
        )
        notes = notes_of(path, identity.pid, identity.start_time, os.geteuid())
        # Not from a generator: a thread that asks for all objects meanwhile would see the tuple, and Python refuse to end it.
        wanted = tuple([(run, note) for run, note in notes if not is_recovered(note)])
        return cls(path, identity, last_use(path), size, wanted, is_delivered(path))


def last_use(session: Path) -> float:
    """When a session was written to, as far as can be seen, in seconds since 1970.

    Raises:
        OSError: if it cannot be read.
    """
    files = [entry.stat(follow_symlinks=False) for entry in os.scandir(session)]
    return max([session.lstat().st_mtime, *(file.st_mtime for file in files)])


def notes_of(session: Path, pid: int, start_time: int, owner: int) -> Iterator[tuple[Path, SessionNote]]:
    """The notes of the runs that the session of a process recorded for. What is written in the session is not believed: notes
    must be the owner's, and name the session and the process.

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
    """Whether the journal of the run of a note was completed after its session was last written to."""
    try:
        return note.recovered_ns / 1e9 >= last_use(Path(note.directory))
    except OSError:
        return False
