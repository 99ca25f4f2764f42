"""The note that a running profiler keeps in its run's directory: where its rings are, and what it writes.

What a crash leaves of it tells recovery where to look. Each run has a note of its own, `session`, `session-2`, ...: one
that begins where another was killed must not make that one's note its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.runtime.export.trace_note import TraceNote
from stepscope.runtime.files.encoding import exact_json, from_exact_json
from stepscope.runtime.files.private_files import replace_private
from stepscope.runtime.session.directory import in_use
from stepscope.runtime.session.system import is_running

SESSION_FILE = "session"
JOURNAL = "journal"
RECOVERED = ".recovered"
"""Ends the name of a journal that was recovered."""

MAX_OUTPUTS = 256
"""Files that a note names."""

_NAMES = re.compile(rf"{SESSION_FILE}(-\d{{1,4}})?")
_MAX_NAMES = 1000
_MAX_NOTE = 1 << 20


class Swept(msgspec.Struct, frozen=True):
    """That the session was removed by a later run, because its memory was needed."""

    at_ns: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    """Wall clock."""
    events: int
    """So many of its events, at most, are in no journal."""
    why: str


class SessionNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the file says."""

    directory: str
    """The session's."""
    pid: int
    start_time: int
    """Of the process, in clock ticks since boot."""
    profiler: int = 0
    """Number that the profiler's step marks bear; 0 = not said."""
    owner: int = -1
    """User to whom the note belongs, whatever it says itself."""
    keep_last: int = 0
    """Steps that it keeps; 0 = it is no flight recorder."""
    run: str = ""
    """The id of the run, which its journals bear as well; empty in notes of versions that gave none."""
    name: str = ""
    rank: int | None = None
    world_size: int | None = None
    outputs: tuple[str, ...] = ()
    """Files that were being written: absolute names."""
    traces: tuple[TraceNote, ...] = ()
    """Those of them that can be written anew from the run's journal."""
    swept: Swept | None = None

    @property
    def running(self) -> bool:
        """Whether the process still runs."""
        return is_running(self.pid, self.start_time) or in_use(Path(self.directory))


def new_note(place: Path, note: SessionNote) -> Path:
    """Writes a note under a name that no other run has.

    Raises:
        OSError: if that is not possible.
    """
    for number in range(1, _MAX_NAMES):
        path = place / (SESSION_FILE if number == 1 else f"{SESSION_FILE}-{number}")
        if os.path.lexists(recovered_of(path)):
            continue  # what was recovered of an earlier run would be replaced
        if path.is_symlink():  # nobody's note: one that is a link is not read
            path.unlink()
        with contextlib.suppress(FileExistsError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            break
    else:
        raise FileExistsError(errno.EEXIST, f"{_MAX_NAMES - 1} runs were killed here, recover them")
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(exact_json(note))
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path


def replace_note(path: Path, note: SessionNote) -> None:
    """Writes a note anew, in one step.

    Raises:
        OSError: if that is not possible; the note is as it was.
    """
    replace_private(path, exact_json(msgspec.structs.replace(note, owner=-1)))


def recovered_of(note: Path) -> Path:
    """Where recovery writes the journal of the run that a note is of."""
    return note.with_name(f"{JOURNAL}{note.name.removeprefix(SESSION_FILE)}{RECOVERED}")


def is_note(path: Path) -> bool:
    """Whether a file of this name may be a note."""
    return _NAMES.fullmatch(path.name) is not None


def read_note(path: Path, problems: list[str]) -> SessionNote | None:
    """What a note says, `None` if there is none; why it cannot be read is added to `problems`.

    Raises:
        OSError: if the system refuses.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        problems.append(f"{path} is a symbolic link, and was not followed")
        return None
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):
        os.close(file)
        problems.append(f"{path} is not a regular file")
        return None
    with os.fdopen(file, "rb") as stream:
        try:
            note = from_exact_json(stream.read(_MAX_NOTE), SessionNote)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problems.append(f"{path} cannot be read: {error}")
            return None
    return msgspec.structs.replace(note, owner=about.st_uid)


def can_recover(place: Path, run: str = "") -> bool:
    """Whether a process was killed that wrote to a directory, and nobody has brought back what it left in memory.

    Args:
        place: the directory of runs.
        run: id of the one that is meant; default: any, also one of which nothing is left in memory.
    """
    try:
        notes = notes_in(place, [])
    except OSError:  # a journal may be read where nothing else can
        return False
    return any(
        not note.running
        and not recovered_of(path).exists()
        and (not run or (note.run == run and os.path.isdir(note.directory)))
        for path, note in notes
    )


def notes_in(place: Path, problems: list[str]) -> list[tuple[Path, SessionNote]]:
    """The notes of a directory, newest first; why one cannot be read is added to `problems`.

    Raises:
        OSError: if the system refuses.
    """
    found = [
        (path.lstat().st_mtime_ns, path, note)
        for path in sorted(place.iterdir())
        if is_note(path) and not path.is_dir() and (note := read_note(path, problems)) is not None
    ]
    found.sort(key=lambda entry: entry[:2], reverse=True)
    return [(path, note) for _, path, note in found]
