"""The control groups that this process is in.

Sources: cgroups(7), the kernel's cgroup-v2.rst and cgroup-v1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, bool]]:
    """Directories of the groups that this process is in, the innermost first, and whether they are of cgroup v1.

    A container sees its own group as the root of the file system; a limit further up holds as well.

    Args:
        controller: `memory`, `cpu` and so on.
        root: where `/proc` and `/sys` are.
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
    """The number that a file holds; `None` for `max`, which is no limit, and if it cannot be read."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None


def field(path: Path, key: bytes) -> int:
    """The number behind a key in a file of them; 0 if there is none."""
    try:
        for line in path.read_bytes().splitlines():
            name, _, value = line.partition(b" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        return 0
    return 0
