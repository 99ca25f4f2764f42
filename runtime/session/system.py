"""Facts from the kernel: processes of this machine, control groups of this process, and types of file systems.

Sources: proc(5), cgroups(7), the kernel's cgroup-v2.rst and cgroup-v1.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_STATE, _PARENT, _START = 0, 1, 19
"""Fields of /proc/[pid]/stat after the command's name."""


def process_identity(pid: int | None = None) -> dict[str, int]:
    """Returns process id and start time (clock ticks since boot), which together identify a process.

    Source: proc(5), /proc/[pid]/stat, field 22.
    """
    pid = pid or os.getpid()
    fields = _stat(pid)
    return {"pid": pid, "start_time": int(fields[_START]) if fields else 0}


def is_running(pid: int, start_time: int) -> bool:
    """Whether the process that had this id and start time (clock ticks since boot) still runs.

    A zombie does not: it records nothing any more. Source: proc(5), /proc/[pid]/stat, fields 3 and 22.
    """
    fields = _stat(int(pid))
    return bool(fields) and fields[_STATE] not in "ZX" and int(fields[_START]) == start_time


def exists(pid: int) -> bool:
    """Whether there is a process with this id, of any user; also a zombie."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0


def parent_of(pid: int) -> int:
    """Returns the id of a process's parent; 0 if it is not visible."""
    fields = _stat(pid)
    return int(fields[_PARENT]) if fields else 0


def birth_of(pid: int) -> int:
    """Returns when a process began, in seconds of Unix time; 0 if it is not visible. The result changes only if the clock is set.

    Source: proc(5), /proc/stat, btime, and /proc/[pid]/stat, field 22.
    """
    fields = _stat(pid)
    try:
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, StopIteration):
        return 0
    return int(boot.split()[1]) + int(fields[_START]) // os.sysconf("SC_CLK_TCK") if fields else 0


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """Yields the directories of the control groups of this process, the innermost first, and whether they are of cgroup v1.

    A container sees its own group as the root of the file system. Limits of outer groups apply, too. `/proc` and `/sys` are in `root`.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        for depth in range(len(parts), -1, -1):
            directory = mount.joinpath(*parts[:depth])
            if directory.is_dir():
                yield directory, bool(controllers)


def number(path: Path) -> int | None:
    """Reads the number in a file; `None` for `max`, which means no limit, or if it cannot be read."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None


def field(path: Path, key: bytes) -> int:
    """Reads the number after a key in a file of keys and numbers; 0 if there is none."""
    try:
        for line in path.read_bytes().splitlines():
            name, _, value = line.partition(b" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        return 0
    return 0


IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")


def file_system_of(path: Path) -> str:
    """Returns the type of the file system, such as `ext4`; empty if it is unknown."""
    try:
        device = os.stat(path).st_dev
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        mount, _, kind = line.partition(" - ")
        if mount.split()[2:3] == [number]:
            return kind.split(maxsplit=1)[0]
    return ""
