"""Watches another process: memory, descriptors, threads, and what it has in /dev/shm. Source: proc(5)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

SHARED = Path("/dev/shm")


class Sample(msgspec.Struct, frozen=True):
    """A process at one moment. Sizes in bytes."""

    seconds: float
    """Since it was started."""
    spans: int
    """Recorded so far."""
    private: int
    """Memory of its own: what it has allocated."""
    shared: int
    """Pages of rings and stacks that it has touched."""
    shm: int
    """Bytes that its session takes of /dev/shm."""
    descriptors: int
    threads: int

    @property
    def resident(self) -> int:
        """All memory that belongs to the run; the pages of programs and libraries are left out."""
        return self.private + self.shared


def sample(pid: int, seconds: float, spans: int) -> Sample | None:
    """Looks at a process; `None` if it has ended."""
    try:
        fields = dict(_fields(Path(f"/proc/{pid}/status").read_text()))
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
        return Sample(
            seconds=seconds,
            spans=spans,
            private=_kilobytes(fields["RssAnon"]),
            shared=_kilobytes(fields["RssShmem"]),
            shm=sum(allocated(path) for directory in sessions(pid) for path in _files(directory)),
            descriptors=descriptors,
            threads=int(fields["Threads"]),
        )
    except (OSError, KeyError):
        return None


def sessions(pid: int) -> list[Path]:
    """Session directories of a process."""
    return sorted(SHARED.glob(f"stepscope-{pid}-*"))


def allocated(path: Path) -> int:
    """Bytes that a file takes; 0 if it is gone."""
    with contextlib.suppress(OSError):
        return path.stat().st_blocks * 512
    return 0


def _files(directory: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return list(directory.iterdir())
    return []


def _fields(status: str) -> Iterator[tuple[str, str]]:
    for line in status.splitlines():
        key, _, value = line.partition(":")
        yield key, value


def _kilobytes(text: str) -> int:
    return int(text.split()[0]) * 1024


def slope(points: list[tuple[float, float]]) -> float:
    """Of the line through the points, by least squares; 0 for fewer than two."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / max(n, 1), sum(y for _, y in points) / max(n, 1)
    below = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / below if below else 0.0
