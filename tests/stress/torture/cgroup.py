"""A control group of its own for a program, with a limit on memory that the kernel enforces.

Sources: cgroups(7), the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest

REMEDY = "Run the tests as root where control groups of version 1 or 2 may limit memory."


class Version(msgspec.Struct, frozen=True):
    """How a version of control groups calls what is needed."""

    limit: str
    without_swap: tuple[tuple[str, str], ...]
    """Files that may be missing, and what is written there after the limit; `{}` stands for it."""
    events: str
    """Has a line `oom_kill` with the number of processes that were killed."""


V1 = Version(
    "memory.limit_in_bytes", (("memory.memsw.limit_in_bytes", "{}"), ("memory.swappiness", "0")), "memory.oom_control"
)
V2 = Version("memory.max", (("memory.swap.max", "0"),), "memory.events")


class Group:
    """A group that exists."""

    def __init__(self, path: Path, version: Version) -> None:
        self._path = path
        self._version = version

    def take(self, pid: int) -> None:
        """Moves a process into it."""
        (self._path / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """Processes of the group that the kernel has killed because the memory was used up."""
        events = dict(line.split() for line in (self._path / self._version.events).read_text().splitlines())
        return int(events["oom_kill"])


@contextlib.contextmanager
def limited(memory: int) -> Generator[Group]:
    """A group whose processes may use that many bytes and no swap; it must be empty when the body ends.

    Raises:
        pytest.skip.Exception: if none can be made here; with the reason.
    """
    root, version = _root()
    path = root / f"stepscope-torture-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"there is no right to make a control group ({error.strerror}). {REMEDY}")
    try:
        (path / version.limit).write_text(str(memory))
        for name, value in version.without_swap:
            if (path / name).exists():
                (path / name).write_text(value.format(memory))
        yield Group(path, version)
    finally:
        path.rmdir()


def _root() -> tuple[Path, Version]:
    """Where control groups are mounted whose children may limit memory. Version 2 comes first."""
    found: list[tuple[Path, Version]] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        root, (kind, *_, options) = Path(fields.split()[4]), rest.split()
        if kind == "cgroup" and "memory" in options.split(","):
            found.append((root, V1))
        if kind == "cgroup2" and "memory" in (root / "cgroup.subtree_control").read_text().split():
            found.insert(0, (root, V2))
    if not found:
        pytest.skip(f"there is no control group that limits memory. {REMEDY}")
    return found[0]
