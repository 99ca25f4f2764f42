"""Which processes of this machine and this user take commands."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

from stepscope.runtime.control.entry_points.local_socket import NAME
from stepscope.runtime.errors import SessionError
from stepscope.runtime.session.directory import PREFIX, places, read_identity
from stepscope.runtime.session.processes import parent_of

MOST_NAMED = 10
"""Processes that a message names."""


def takers() -> list[int]:
    """Their numbers: of those that run, and have a socket in one of the usual places of sessions."""
    found: set[int] = set()
    for place in places(None):
        for directory in Path(place).glob(f"{PREFIX}*"):
            with contextlib.suppress(SessionError, OSError):
                identity = read_identity(directory)
                if identity.running and stat.S_ISSOCK((directory / NAME).lstat().st_mode):
                    found.add(identity.pid)
    return sorted(found)


def takers_near(pid: int) -> str:
    """In words: those that may have been meant instead of a process that takes no commands, its descendants first."""
    all_of_user = takers()
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
