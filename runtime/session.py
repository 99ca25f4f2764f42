"""The directory of a session: where the processes that take part in it keep their rings.

control       the page that they share (core/control.c)
wake          a pipe by which a process that joined calls for a drain
options       settings, for those that join
process.json  whose session it is
ring-00000 .. strings, tracks, stacks
<pid>-<start time>/   of a process that joined: the same without control and options
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
import tempfile
from pathlib import Path

import msgspec

from stepscope.runtime.errors import OutputError, SessionError
from stepscope.runtime.flight.segment import PREFIX as KEPT
from stepscope.runtime.options import Options
from stepscope.runtime.processes import is_running, process_identity
from stepscope.runtime.spool import FILES as SPOOL_FILES

log = logging.getLogger("stepscope")

KEPT_LEFTOVERS = 8
"""Sessions of killed processes that are kept for `stepscope recover`; older ones are removed."""

ENVIRONMENT = "STEPSCOPE_SESSION"
"""Environment variable that tells processes which this one starts where its session is."""

PART = re.compile(r"\d+-\d+(-\d+)?")
"""Name of the directory of a process that joined."""

_FILES = ("strings", "tracks", "stacks", "process.json", ".process.json", "control", "options", *SPOOL_FILES)
_MAX_FILE = 1 << 16
_PREFIX = "stepscope"


class Identity(msgspec.Struct, frozen=True):
    """Whose directory it is: `process_identity()` of then."""

    pid: int
    start_time: int

    @property
    def running(self) -> bool:
        """Whether that process still runs."""
        return is_running(self.pid, self.start_time)


def make_session(options: Options) -> Path:
    """Makes a private directory, in memory where the system has a place for that.

    Raises:
        OutputError: if none can be made.
    """
    problems: list[str] = []
    for place in places(options.session_dir):
        try:
            directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{os.getpid()}-", dir=place))
        except OSError as error:
            problems.append(f"{place}: {error.strerror}")
            continue
        _write(directory / "options", msgspec.json.encode(options))
        write_identity(directory)
        sweep(Path(place), directory)
        return directory
    raise OutputError(f"no directory for the session can be made ({'; '.join(problems)}); set Options.session_dir")


def make_part(session: Path) -> Path:
    """Makes the directory of this process in the session of another; `write_identity` completes it.

    Raises:
        OSError: if that is not possible.
    """
    me = Identity(**process_identity())
    for attempt in range(1 << 10):
        # A process that joined and became another program by exec() has one already.
        directory = session / f"{me.pid}-{me.start_time}{f'-{attempt}' if attempt else ''}"
        with contextlib.suppress(FileExistsError):
            directory.mkdir(0o700)
            return directory
    raise FileExistsError(17, "this process has joined too often", str(session))


def write_identity(directory: Path) -> None:
    """Says whose directory it is; whoever finds this finds the rest."""
    draft = directory / ".process.json"
    _write(draft, json.dumps(process_identity()).encode())
    draft.rename(directory / "process.json")


def read_identity(directory: Path) -> Identity:
    """Whose directory it is.

    Raises:
        SessionError: if it is not a private directory of this user, or does not say.
    """
    try:
        about = directory.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
            raise SessionError(f"{directory} is not a private directory of this user")
        return msgspec.json.decode(_read(directory / "process.json"), type=Identity)
    except OSError as error:
        raise SessionError(f"{directory} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise SessionError(f"{directory} does not say whose it is: {error}") from error


def read_options(session: Path) -> Options:
    """Settings for processes that join.

    Raises:
        SessionError: if they cannot be read, as when another version wrote them.
    """
    try:
        return msgspec.json.decode(_read(session / "options"), type=Options)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise SessionError(f"the settings in {session} cannot be used: {error}") from error


def parts(session: Path) -> list[Path]:
    """Directories of the processes that joined, in the order of their names; complete ones only."""
    return sorted(path.parent for path in session.glob("[0-9]*-[0-9]*/process.json") if not path.parent.is_symlink())


def session_of(pid: int) -> Path | None:
    """The session that a running process has opened in one of the usual places."""
    for place in places(None):
        for directory in sorted(Path(place).glob(f"{_PREFIX}-{pid}-*")):
            with contextlib.suppress(SessionError):
                if (identity := read_identity(directory)).pid == pid and identity.running:
                    return directory
    return None


def places(wanted: str | None) -> list[str]:
    """Directories that may hold sessions, the preferred one first."""
    return [wanted] if wanted else ["/dev/shm", tempfile.gettempdir()]


def is_session_file(name: str) -> bool:
    """Whether a file of this name may be one that a session makes."""
    return name in _FILES or name.startswith(KEPT) or (name.startswith("ring-") and name[5:].isdecimal())


def is_session_of(identity: bytes, pid: int, start_time: int) -> bool:
    """Whether the file `process.json` of a session names this process."""
    try:
        said = msgspec.json.decode(identity, type=Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return said == Identity(pid, start_time)


def remove_files(directory: int) -> None:
    """Deletes the files of a session in an open directory, and the parts of processes that joined; nothing else.

    Raises:
        OSError: if that is not possible.
    """
    for name in os.listdir(directory):
        if is_session_file(name):
            os.unlink(name, dir_fd=directory)
        elif PART.fullmatch(name):
            part = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
            try:
                for file in os.listdir(part):
                    if is_session_file(file):
                        os.unlink(file, dir_fd=part)
            finally:
                os.close(part)
            os.rmdir(name, dir_fd=directory)


def sweep(place: Path, own: Path) -> None:
    """Removes what processes left that were killed long ago, but for the latest: a job that crashes and restarts for
    ever must not fill the memory with rings.

    Only private directories of this user go that say whose session they are, and of those only a session's files.
    """
    left: list[tuple[float, Path]] = []
    for directory in place.glob(f"{_PREFIX}-*"):
        try:
            if directory != own and not read_identity(directory).running:
                left.append((directory.lstat().st_mtime, directory))
        except (OSError, SessionError) as error:
            log.debug("%s is left alone: %s", directory, error)
    for _, directory in sorted(left)[:-KEPT_LEFTOVERS]:
        try:
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                remove_files(descriptor)
            finally:
                os.close(descriptor)
            directory.rmdir()
        except OSError as error:
            log.debug("%s is not removed: %s", directory, error)


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)


def _read(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read(_MAX_FILE)
