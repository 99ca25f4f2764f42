"""Processes as /proc shows them. Source: proc(5)."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def children(parent: int) -> list[int]:
    """Processes that run and have this parent."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, ppid = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(ppid) == parent and state != "Z":
                found.append(int(entry.name))
    return sorted(found)


def command(pid: int) -> str:
    """Its command line; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def end_tree(root: int) -> None:
    """Ends a process with all that it has started, by number. They are stopped first, so that none starts another."""
    waiting, seen = [root], set[int]()
    while waiting:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        _send(pid, signal.SIGSTOP)
        waiting += children(pid)
    for pid in seen:
        _send(pid, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
