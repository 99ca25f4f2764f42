"""A control group of its own for a program, with a limit on memory that the kernel enforces. Source: cgroups(7)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import pytest

REMEDY = "Run the tests as root where systemd, or you, let children of the root group of cgroup v2 limit memory."


class Group:
    """A group that exists."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, pid: int) -> None:
        """Moves a process into it."""
        (self._path / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """Processes of the group that the kernel has killed because the memory was used up."""
        events = dict(line.split() for line in (self._path / "memory.events").read_text().splitlines())
        return int(events["oom_kill"])


@contextlib.contextmanager
def limited(memory: int) -> Generator[Group]:
    """A group whose processes may use that many bytes and no swap; it must be empty when the body ends.

    Raises:
        pytest.skip.Exception: if none can be made here; with the reason.
    """
    root = _root()
    path = root / f"stepscope-torture-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"there is no right to make a control group ({error.strerror}). {REMEDY}")
    try:
        (path / "memory.max").write_text(str(memory))
        swap = path / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        yield Group(path)
    finally:
        path.rmdir()


def _root() -> Path:
    """Where cgroup v2 is mounted, if its children may limit memory."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        root = Path(fields.split()[4])
        if kind.split()[0] == "cgroup2" and "memory" in (root / "cgroup.subtree_control").read_text().split():
            return root
    pytest.skip(f"there is no cgroup v2 that limits memory. {REMEDY}")
