"""Joining: a process takes part in the session of the process that it descends from.

It runs no thread and writes no output: it records into rings in the other's session directory, where the other drains
them. So a process that is killed, or leaves by `os._exit` as those of multiprocessing do, loses nothing.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from stepscope.runtime import _core
from stepscope.runtime.errors import SessionError
from stepscope.runtime.files.private_files import is_missing
from stepscope.runtime.memory_limits import worker_ring_bytes
from stepscope.runtime.recording import recorder
from stepscope.runtime.session.directory import (
    ENVIRONMENT,
    make_part,
    read_identity,
    read_options,
    session_of,
    signal_join,
    write_identity,
)
from stepscope.runtime.session.system import parent_of
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.threads import locks

log = logging.getLogger("stepscope")

AUTOMATIC = "STEPSCOPE_JOIN"
"""Environment variable: with the value 1, processes join by themselves, when they are forked or import stepscope."""

_ANCESTORS = 16

_lock = locks.reentrant()
_part: Path | None = None
"""Directory of this process in the session that it has joined."""
_inherited: Path | None = None
_reported: set[str] = set()


def join(name: str | None = None) -> bool:
    """Makes this process take part in the session of the process that it descends from.

    From then on what it records appears in the traces of that process, on a process track of its own, as long as that
    process records. It works in processes that were forked, spawned, or started as programs of their own on the same
    machine; so also in workers of a DataLoader, from `worker_init_fn` or the data set. Joining again changes nothing
    but the name.

    A profiler that a joined process makes for itself ends its part, if nothing was recorded yet; otherwise that
    profiler stays inert, and says so.

    Args:
        name: of this process in traces, before it has recorded anything. Default: what torch (`DataLoader worker 0`)
            or multiprocessing call it, or the program's name.

    Returns:
        Whether it takes part. If not, the reason is logged, once: no process above it has a session, or this process
        has one of its own.

    Raises:
        TypeError: if the name is no str.
    """
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"name must be a non-empty str, {got(name)}")
    with _lock:
        if _part is None and not _try_sessions(logging.WARNING):
            return False
        if name is not None:
            _core.name_process(name, True)
        return True


def join_unless_own() -> None:
    """Joins, unless this process has a session of its own; says nothing where there is none to join."""
    with _lock:
        if _part is None and recorder.current() is None:
            _try_sessions(logging.DEBUG)


def joined() -> Path | None:
    """The session of another process that this one takes part in."""
    return None if _part is None else _part.parent


def leave() -> bool:
    """Ends the part of this process in another's session, if it has recorded nothing yet. Returns whether it takes no part now."""
    global _part
    with _lock:
        if _part is None:
            return True
        if not _core.leave():
            return False
        shutil.rmtree(_part, ignore_errors=True)
        _core.name_process("process", True)
        _part = None
        return True


def _try_sessions(level: int) -> bool:
    if recorder.current() is not None:
        _log_once(logging.INFO, "this process has a session of its own, so it does not join another")
        return False
    import_module(
        "stepscope.runtime.lifecycle.interpreter_exit"
    )  # what a joined process has recorded is taken over when it exits
    problems: list[str] = []
    for session in _sessions():
        try:
            _join(session)
        except SessionError as error:
            problems.append(str(error))
        else:
            return True
    if problems:
        _log_once(logging.WARNING, f"cannot join the session of the process above: {'; '.join(problems)}")
    else:
        _log_once(level, "no process above this one has a session to join")
    return False


def _sessions() -> Iterator[Path]:
    """Directories in which the session may be, the likeliest first."""
    if _inherited is not None:
        yield _inherited
        return
    named = os.environ.get(ENVIRONMENT)
    if named:
        yield Path(named)
    # A fork server's workers have the environment of when it started: the session may be elsewhere since.
    above = _session_above()
    if above is not None and str(above) != named:
        yield above


def _session_above() -> Path | None:
    """The session of the nearest process above that has one in a usual place."""
    pid = os.getpid()
    for _ in range(_ANCESTORS):
        pid = parent_of(pid)
        if pid <= 1:
            break
        if (found := session_of(pid)) is not None:
            return found
    return None


def _join(session: Path) -> None:
    global _part
    if is_missing(session):
        raise SessionError(
            f"{session} is not there any more; if the program traces again in another place, nothing of this process is recorded: "
            "give all of its traces the same Options.session_dir"
        )
    owner = read_identity(session)
    if not owner.running:
        raise SessionError(f"process {owner.pid}, whose session {session} is, does not run, or not where we can see it")
    options = read_options(session)
    slots, rings = recorder.ring_sizes(options, worker_ring_bytes(options))
    try:
        part = make_part(session)
    except OSError as error:
        raise SessionError(f"no directory can be made in {session}: {error.strerror}") from error
    try:
        write_identity(part)
        _core.name_process(_program(), False)
        _core.open(str(part), slots, rings, options.overflow, options.block_seconds, str(session))
    except OSError as error:
        # Not the session's directory, though it may be empty: its owner may have just made it again, for its next trace.
        shutil.rmtree(part, ignore_errors=True)
        why = "it is over" if error.errno == errno.ESTALE else error.strerror
        raise SessionError(f"{session} cannot be joined: {why}") from error
    _part = part
    signal_join(session)


def _program() -> str:
    """Name of the program; it has none yet while the interpreter starts."""
    return Path(getattr(sys, "argv", [""])[0]).name or "python"


def _log_once(level: int, reason: str) -> None:
    if reason not in _reported:
        _reported.add(reason)
        log.log(level, "stepscope.join: %s", reason)


def join_from_environment() -> None:
    """Joins if the environment says that processes do so by themselves."""
    value = os.environ.get(AUTOMATIC, "")
    if value not in ("", "0", "1"):
        _log_once(logging.WARNING, f"{AUTOMATIC} must be 1 or 0, {got(value)}; this process does not join by itself")
    if value == "1":
        with _lock:
            if _part is None:
                _try_sessions(logging.INFO)  # the first process has the variable, too, and nobody above it


def _forked() -> None:
    """Called in a forked child, which may join the session that its parent has joined."""
    global _part, _inherited
    _inherited = joined() or recorder.inherited() or _inherited
    _part = None
    _reported.clear()
    join_from_environment()


os.register_at_fork(after_in_child=_forked)
