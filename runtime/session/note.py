"""The note of a running profiler in its run's directory: the path of its session, and the files that it writes.

After a crash, recovery finds the session by the note. Each run has its own note, `session`, `session-2`, ...: a run must not
replace the note of an earlier run that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from stepscope.runtime.files.encoding import exact_json, from_exact_json
from stepscope.runtime.files.file_reading import create_once, read_bounded
from stepscope.runtime.files.private_files import replace_private
from stepscope.runtime.session.directory import in_use, runs_of
from stepscope.runtime.session.system import is_running

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


class TraceNote(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One file that was not complete, of one exporter. Names below the run's directory are relative to it."""

    first: str
    """Where the complete file goes; of several that follow each other, the first."""
    format: str
    """The exporter: `chrome`, `perfetto` or `parquet`."""
    arguments: dict[str, str | int | bool | None] = {}
    """Its arguments, but for the path."""
    number: int = 0
    """How many files of this series are complete."""
    window: int | None = None
    """The one window that it has; `None`: all of the run."""
    file: str = ""
    """The file that is being written."""


class NoteOutput(Protocol):
    """Notes that a file is begun, or complete."""

    def __call__(self, file: Path, being_written: bool, trace: TraceNote | None = None) -> None:
        """
        Args:
            file: its name.
            being_written: `True` before it is begun, `False` when it is complete.
            trace: how it can be written anew from the run's journal, if it can.
        """
        ...


def note_nothing(file: Path, being_written: bool, trace: TraceNote | None = None) -> None:
    """A `NoteOutput` for files that recovery need not know of, or that are noted otherwise."""


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
        return is_running(self.pid, self.start_time) or in_use(Path(self.directory))


def new_note(place: Path, note: SessionNote) -> Path:
    """Writes a note under a name that no other run has."""
    for number in range(1, _MAX_NAMES):
        path = place / (SESSION_FILE if number == 1 else f"{SESSION_FILE}-{number}")
        if path.is_symlink():  # no note: `read_note` does not follow links
            path.unlink()
        if create_once(path, exact_json(note), 0o600):
            return path
    raise FileExistsError(errno.EEXIST, f"{_MAX_NAMES - 1} runs were killed here, recover them")


def replace_note(path: Path, note: SessionNote) -> None:
    """Replaces a note in one step."""
    replace_private(path, exact_json(msgspec.structs.replace(note, owner=-1)))


def is_note(path: Path) -> bool:
    """Whether a file of this name may be a note."""
    return _NAMES.fullmatch(path.name) is not None


def read_note(path: Path, problems: list[str]) -> SessionNote | None:
    """Reads a note; `None` if there is none. If it cannot be read, adds the reason to `problems`."""
    reading = read_bounded(path, _MAX_NOTE, follow=False)
    if reading.content is None:
        problems += [] if reading.missing else [f"{path}: {reading.problem}"]
        return None
    try:
        return msgspec.structs.replace(from_exact_json(reading.content, SessionNote), owner=reading.owner)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problems.append(f"{path} cannot be read: {error}")
        return None


def can_recover(place: Path, run: str = "") -> bool:
    """Whether a process that wrote to a directory was killed, and its events in memory were not recovered: those of any run, or of the
    run with this id if its session still exists.
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
    """Returns the notes of a directory, the newest first. If one cannot be read, adds the reason to `problems`."""
    found = [
        (path.lstat().st_mtime_ns, path, note)
        for path in sorted(place.iterdir())
        if is_note(path) and not path.is_dir() and (note := read_note(path, problems)) is not None
    ]
    found.sort(key=lambda entry: entry[:2], reverse=True)
    return [(path, note) for _, path, note in found]


def last_use(session: Path) -> float:
    """Time of the last visible write to a session, in seconds since 1970."""
    files = [entry.stat(follow_symlinks=False) for entry in os.scandir(session)]
    return max([session.lstat().st_mtime, *(file.st_mtime for file in files)])


def notes_of(session: Path, pid: int, start_time: int, owner: int) -> Iterator[tuple[Path, SessionNote]]:
    """The notes of the runs of a session. The paths in the session are not trusted: a note must belong to the owner, and name the
    session and the process."""
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
