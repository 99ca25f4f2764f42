"""The client of the local socket: sends commands to processes of this machine, and lists those that accept commands."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

import msgspec

from stepscope.runtime.control.entry_points.local_socket import NAME, peer_user
from stepscope.runtime.errors import ControlError, SessionError
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.session.directory import PREFIX, places, read_identity, session_of
from stepscope.runtime.session.system import exists, parent_of

MOST_BYTES = 1 << 22
"""Limit of all answers together."""

NO_COMMANDS = "takes no commands; it needs trace(control=Control(socket=True)) or STEPSCOPE_OPTIONS"


def ask_process(pid: int, command: Command, timeout: float) -> list[Answer]:
    """Sends a command to each profiler of a process that accepts commands, and returns their answers, within `timeout` seconds.

    Raises:
        ControlError: if there is no such process, or it accepts no commands, belongs to another user, or does not answer.
    """
    session = session_of(pid)
    if session is None and not exists(pid):
        raise ControlError(f"there is no process {pid} on this machine; {describe_controllable(pid)}")
    if session is None:
        raise ControlError(
            f"process {pid} traces nothing here, or belongs to somebody else; {describe_controllable(pid)}"
        )
    if not (session / NAME).exists():
        raise ControlError(f"process {pid} {NO_COMMANDS}; {describe_controllable(pid)}")
    return ask_socket(session / NAME, command, timeout, f"process {pid}")


def ask_socket(path: Path, command: Command, timeout: float, who: str) -> list[Answer]:
    """The same for the path of a socket.

    Raises:
        ControlError: as `ask_process`.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout)
        try:
            sock.connect(str(path))
            if peer_user(sock) not in (os.geteuid(), 0):
                raise ControlError(f"{path} is listened to by another user")
            sock.sendall(json_bytes(command) + b"\n")
            content = b""
            while not content.endswith(b"\n") and len(content) < MOST_BYTES:
                part = sock.recv(1 << 16)
                if not part:
                    break
                content += part
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise ControlError(f"{who} {NO_COMMANDS}") from error
        except TimeoutError as error:
            raise ControlError(f"{who} does not answer in {timeout:g} s") from error
        except OSError as error:
            raise ControlError(f"{who} cannot be asked: {error.strerror}") from error
    try:
        return msgspec.json.decode(content, type=list[Answer])
    except msgspec.MsgspecError as error:
        raise ControlError(f"the answer of {who} cannot be read: {error}") from error


MOST_NAMED = 10
"""Limit of processes in a message."""


def controllable_processes() -> list[int]:
    """Returns the ids of running processes of this user with a socket in one of the usual places of sessions."""
    found: set[int] = set()
    for place in places(None):
        for directory in Path(place).glob(f"{PREFIX}*"):
            with contextlib.suppress(SessionError, OSError):
                identity = read_identity(directory)
                if identity.running and stat.S_ISSOCK((directory / NAME).lstat().st_mode):
                    found.add(identity.pid)
    return sorted(found)


def describe_controllable(pid: int) -> str:
    """Returns a hint for a message: processes that accept commands, instead of one that does not; preferably its children."""
    all_of_user = controllable_processes()
    below = [each for each in all_of_user if each != pid and pid in _ancestors(each)]
    what, named = ("of its children these take commands", below) if below else ("these take commands", all_of_user)
    if not named:
        return "no process of this user takes commands"
    return f"{what}: {', '.join(map(str, named[:MOST_NAMED]))}{', ...' if len(named) > MOST_NAMED else ''}"


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    while (pid := parent_of(pid)) > 1 and pid not in found:
        found.append(pid)
    return found
