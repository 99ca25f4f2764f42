"""The directory of a session, with the rings of all processes that take part in it.

control       the page that they share (core/session/control_page.c)
options       settings for processes that join
process.json  the process that owns the session
ring-00000 .. strings, tracks, stacks
socket        accepts commands, if `Control.socket` is set (`control.local_socket`)
run-1 ..      the path of the `SessionNote` of each run
<pid>-<start time>/   of a process that joined: the same without control and options
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import shutil
import stat
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.errors import OutputError, SessionError
from stepscope.runtime.files.encoding import exact_json, from_exact_json
from stepscope.runtime.files.paths import absolute, temporary_directory
from stepscope.runtime.options import Options
from stepscope.runtime.session.file_lock import acquire, lock, release
from stepscope.runtime.session.system import is_running, process_identity

log = logging.getLogger("stepscope")

ENVIRONMENT = "STEPSCOPE_SESSION"
"""Environment variable with the path of the session, for processes that this one starts."""

PART = re.compile(r"\d+-\d+(-\d+)?")
"""Name of the directory of a process that joined."""

_FILES = ("strings", "tracks", "stacks", "process.json", ".process.json", "control", "options", "socket")
_NUMBERED = re.compile(r"(ring|run)-\d+")
_MAX_FILE = 1 << 16
_OVER, _OVER_AT = struct.pack("=iI", 0, 1), 8
"""Values and position of two fields of the control page, nothing recorded and closed (`Control` in core/core.h)."""
PREFIX = "stepscope-"
KEPT_PREFIX = "kept-"
"""Begins the names of the flight recorder's files; the number of the profiler and of the chunk follow."""


class Identity(msgspec.Struct, frozen=True):
    """The process that owns a directory (`process_identity()`)."""

    pid: int
    start_time: int

    @property
    def running(self) -> bool:
        return is_running(self.pid, self.start_time)


def make_session(
    options: Options,
    prepare: Callable[[Path], None] = lambda place: None,
    use: Callable[[Path], None] = lambda directory: None,
    last: Path | None = None,
    again: Path | None = None,
) -> Path:
    """Makes a private directory in the first usable place, in memory if possible. It is in use (`in_use`) as long as this process lives.

    Args:
        options: the place, and settings for processes that join.
        prepare: called before a directory is made in a place, which may be full.
        use: opens the files in the directory; if it raises `OSError`, the next place is tried.
        last: the last place to try, such as the run's directory.
        again: a directory that this process had before. Its name is used again if it is in the same place: a fork server, for
            example, has it in its environment as long as it runs.

    Raises:
        OutputError: if no place can be used.
    """
    problems: list[str] = []
    for place in itertools.chain(places(options.session_dir), () if last is None else (str(last),)):
        prepare(Path(place))
        descriptor = -1
        try:
            directory = _make_private(Path(place), again)
        except OSError as error:
            problems.append(f"{place}: {error.strerror}")
            continue
        try:
            _write(directory / "options", exact_json(options))
            write_identity(directory)
            descriptor = acquire(directory / "process.json")
            use(directory)
        except OSError as error:
            release(descriptor)
            problems.append(f"{place}: {error.strerror}")
            shutil.rmtree(directory, ignore_errors=True)
            continue
        _locks[directory] = descriptor
        return directory
    if not options.session_dir and temporary_directory() is None:
        problems.append("no directory for temporary files can be written")
    raise OutputError(f"no directory for the session can be made ({'; '.join(problems)}); set Options.session_dir")


def _make_private(place: Path, again: Path | None) -> Path:
    if again is not None and again.parent == place:
        with contextlib.suppress(FileExistsError):  # another process uses the name now
            again.mkdir(mode=0o700)
            return again
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))


_locks: dict[Path, int] = {}
"""Locks that mark the sessions of this process as in use."""


def release_session(session: Path) -> None:
    """Marks a session of this process as not in use. Idempotent."""
    release(_locks.pop(session, -1))


def make_part(session: Path) -> Path:
    """Makes the directory of this process in the session of another; `write_identity` completes it."""
    me = Identity(**process_identity())
    for attempt in range(1 << 10):
        # A process that joined and then called exec() has one already.
        directory = session / f"{me.pid}-{me.start_time}{f'-{attempt}' if attempt else ''}"
        with contextlib.suppress(FileExistsError):
            directory.mkdir(0o700)
            return directory
    raise FileExistsError(17, "this process has joined too often", str(session))


class JoinSignal:
    """Wakes the owner of a session when a process joins.

    Args:
        session: its directory. If it cannot be watched (inotify(7) has limits), the descriptor is -1, and nothing wakes the owner.
    """

    def __init__(self, session: Path) -> None:
        self.fd = -1
        with contextlib.suppress(OSError):
            self.fd = _core.watch_directory(os.fsencode(session))

    def clear(self) -> None:
        """Makes the descriptor unreadable, until another process joins."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, _MAX_FILE)

    def close(self) -> None:
        """Closes the descriptor, for which no loop may wait any more."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def signal_join(session: Path) -> None:
    """Wakes the owner of a session that this process has joined. If that cannot be, the owner looks from time to time."""
    with contextlib.suppress(OSError):
        os.utime(session)


def in_use(session: Path) -> bool:
    """Whether the process that owns the session lives, in any container."""
    path = session / "process.json"
    try:
        if stat.S_ISREG(path.lstat().st_mode):
            os.close(lock(path, alone=True))
    except BlockingIOError:
        return True
    except (OSError, ValueError):  # it was deleted, or is not the name of a file
        return False
    return False


def add_run(session: Path, profiler: int, note: Path) -> None:
    """Writes the path of a run's note into the session. If there is no room for it, logs a warning."""
    try:
        _write(session / f"run-{profiler}", os.fsencode(note))
    except OSError as error:
        log.warning("%s does not say that %s needs it: %s", session, note, error.strerror)


def remove_run(session: Path, profiler: int) -> None:
    """Removes the path of a run's note, as the run has ended normally."""
    with contextlib.suppress(OSError):  # the session may have been deleted
        (session / f"run-{profiler}").unlink()


def runs_of(session: Path) -> list[Path]:
    """Returns the paths of the notes of the session's runs. Entries that cannot be read are skipped."""
    found: list[Path] = []
    for name in sorted(os.listdir(session)):
        if name.startswith("run-") and _NUMBERED.fullmatch(name):
            with contextlib.suppress(OSError):
                found.append(Path(os.fsdecode(_read(session / name))))
    return found


def write_identity(directory: Path) -> None:
    """Writes `process.json`. Call it last: readers rely on the other files when it exists."""
    draft = directory / ".process.json"
    _write(draft, json.dumps(process_identity()).encode())
    draft.rename(directory / "process.json")


def read_identity(directory: Path) -> Identity:
    """Returns the process that owns a directory.

    Raises:
        SessionError: if it is not a private directory of this user, or `process.json` cannot be read.
    """
    try:
        about = directory.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
            raise SessionError(f"{directory} is not a private directory of this user")
        return msgspec.json.decode(_read(directory / "process.json"), type=Identity)
    except OSError as error:
        raise SessionError(f"{directory} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise SessionError(f"{directory}/process.json cannot be read: {error}") from error


def read_options(session: Path) -> Options:
    """Settings for processes that join.

    Raises:
        SessionError: if they cannot be read, as when another version wrote them.
    """
    try:
        return from_exact_json(_read(session / "options"), Options)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise SessionError(f"the settings in {session} cannot be used: {error}") from error


def parts(session: Path) -> list[Path]:
    """Returns the complete directories of processes that joined, by name. A deleted session has none."""
    try:
        names = sorted(name for name in os.listdir(session) if PART.fullmatch(name))
    except FileNotFoundError:
        return []
    found = [session / name for name in names]
    return [part for part in found if not part.is_symlink() and (part / "process.json").exists()]


def session_of(pid: int) -> Path | None:
    """Returns the session of a running process in one of the usual places; `None` if it has none."""
    for place in places(None):
        for directory in sorted(Path(place).glob(f"{PREFIX}{pid}-*")):
            with contextlib.suppress(SessionError):
                if (identity := read_identity(directory)).pid == pid and identity.running:
                    return directory
    return None


def places(wanted: str | None) -> Iterator[str]:
    """Yields directories for sessions, the preferred one first. The directory for temporary files is looked up only if the
    caller asks for a second one, as there may be none."""
    if wanted:
        yield str(absolute(wanted))
        return
    yield "/dev/shm"
    temporary = temporary_directory()
    if temporary is not None:
        yield str(temporary)


def is_session_of(identity: bytes, pid: int, start_time: int) -> bool:
    """Whether the file `process.json` of a session names this process."""
    try:
        named = msgspec.json.decode(identity, type=Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return named == Identity(pid, start_time)


def remove_files(directory: int) -> None:
    """Deletes the files of a session in an open directory, and the directories of processes that joined; nothing else.

    First it ends the recording of processes that still take part, although the owner was killed. It deletes `process.json`
    last, so that a kill in between leaves a session whose owner is known.
    """
    _end(directory)
    for name in sorted(os.listdir(directory), key="process.json".__eq__):
        if name in _FILES or name.startswith(KEPT_PREFIX) or _NUMBERED.fullmatch(name):
            os.unlink(name, dir_fd=directory)
        elif PART.fullmatch(name):
            part = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
            try:
                remove_files(part)
            finally:
                os.close(part)
            os.rmdir(name, dir_fd=directory)


def remove_session(directory: Path) -> None:
    """Deletes a session."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        remove_files(descriptor)
    finally:
        os.close(descriptor)
    directory.rmdir()


def end_session(directory: Path) -> None:
    """Ends the recording of all processes that take part, without deleting anything."""
    with contextlib.suppress(OSError):  # it was deleted
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            _end(descriptor)
        finally:
            os.close(descriptor)


def _end(directory: int) -> None:
    """Marks the session as closed on the control page."""
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError):  # there is no control page, so no process could join
        descriptor = os.open("control", flags, dir_fd=directory)
        try:
            os.pwrite(descriptor, _OVER, _OVER_AT)
        finally:
            os.close(descriptor)


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)


def _read(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read(_MAX_FILE)
