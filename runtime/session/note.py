"""The note of a running profiler in its run's directory: the path of its session, and the files that it writes.

After a crash, recovery finds the session by the note. Each run has its own note, `session`, `session-2`, ...: a run must not
replace the note of an earlier run that was killed.
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

from stepscope.runtime.files.encoding import exact_json, from_exact_json
from stepscope.runtime.files.private_files import replace_private
from stepscope.runtime.session.directory import in_use
from stepscope.runtime.session.system import is_running
from stepscope.runtime.session.trace_note import TraceNote

SESSION_FILE = "session"
BUFFER_DIRECTORY = "unsent"
"""Directory, in that of a run, of the journal that an exporter of streams writes if the run keeps none of all windows."""
JOURNAL = "journal"
WINDOWS = "windows"
"""Directory of the journals of the windows that a flight recorder saved, in that of the run."""

MAX_OUTPUTS = 256
"""Files in a note."""

_NAMES = re.compile(rf"{SESSION_FILE}(-\d{{1,4}})?")
_MAX_NAMES = 1000
_MAX_NOTE = 1 << 20


class Swept(msgspec.Struct, frozen=True):
    """A later run removed the session, because it needed the memory."""

    at_ns: Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
    """Wall clock."""
    events: int
    """Upper bound of its events that are in no journal."""
    why: str


class SessionNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of the file."""

    directory: str
    """Path of the session."""
    pid: int
    start_time: int
    """Of the process, in clock ticks since boot."""
    profiler: int = 0
    """Number of the profiler in its step marks; 0 = unknown."""
    owner: int = -1
    """User that owns the file; set by `read_note`."""
    keep_last: int = 0
    """Steps that the flight recorder retains; 0 = none."""
    run: str = ""
    """Id of the run, which its journals contain, too."""
    name: str = ""
    rank: int | None = None
    world_size: int | None = None
    outputs: tuple[str, ...] = ()
    """Files that were being written: absolute names."""
    traces: tuple[TraceNote, ...] = ()
    """Outputs that can be written again from the run's journal."""
    swept: Swept | None = None
    recovered_ns: int = 0
    """When `stepscope recover` had completed the run's journal, wall clock; 0: never."""

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
        if path.is_symlink():  # no note: `read_note` does not follow links
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
    """Replaces a note in one step.

    Raises:
        OSError: if that is not possible. The old note stays.
    """
    replace_private(path, exact_json(msgspec.structs.replace(note, owner=-1)))


def is_note(path: Path) -> bool:
    """Whether a file of this name may be a note."""
    return _NAMES.fullmatch(path.name) is not None


def read_note(path: Path, problems: list[str]) -> SessionNote | None:
    """Reads a note; `None` if there is none. If it cannot be read, adds the reason to `problems`.

    Raises:
        OSError: if it cannot be opened.
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
    """Whether a process that wrote to a directory was killed, and its events in memory were not recovered.

    Args:
        place: the directory of runs.
        run: id of a run whose session must still exist; default: any run.
    """
    try:
        notes = notes_in(place, [])
    except OSError:  # a journal may be read where nothing else can
        return False
    return any(
        not note.running and not note.recovered_ns and (not run or (note.run == run and os.path.isdir(note.directory)))
        for _, note in notes
    )


def notes_in(place: Path, problems: list[str]) -> list[tuple[Path, SessionNote]]:
    """Returns the notes of a directory, the newest first. If one cannot be read, adds the reason to `problems`.

    Raises:
        OSError: if the directory cannot be read.
    """
    found = [
        (path.lstat().st_mtime_ns, path, note)
        for path in sorted(place.iterdir())
        if is_note(path) and not path.is_dir() and (note := read_note(path, problems)) is not None
    ]
    found.sort(key=lambda entry: entry[:2], reverse=True)
    return [(path, note) for _, path, note in found]
