"""Which kind of file system holds a path. Source: proc(5), /proc/pid/mountinfo."""

from __future__ import annotations

import os
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")


def file_system_of(path: Path) -> str:
    """Type of the file system, as `mount` names it, such as `ext4`; empty if the system does not say."""
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
