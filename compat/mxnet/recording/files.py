"""Names of trace files: no process of a job, and no recording of a process, writes over another's."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.exporters.files.output import SUFFIXES, numbered
from stepscope.runtime.files.paths import real
from stepscope.runtime.session.job import rank_from_environment


class Files:
    """The files that this process has written; a forked child gives its own other names than its parent."""

    def __init__(self, child: bool = False) -> None:
        self._used: set[str] = set()
        self._child = child
        self.latest: Path | None = None
        """The file that is written, or was last."""

    def next(self, filename: str) -> Path:
        """The file for another recording: the one that was asked for, with the rank of one of several, and numbered if this
        process has written that already. What an earlier process has left there is replaced, as MXNet does."""
        path = self._named(filename)
        number = 0
        while real(numbered(path, number)) in self._used:
            number += 1
        self.latest = numbered(path, number)
        self._used.add(real(self.latest))
        return self.latest

    def _named(self, filename: str) -> Path:
        path = Path(filename)
        rank, world = rank_from_environment()
        if rank is not None and (world or rank + 1) > 1 and "{rank}" not in filename and "{pid}" not in filename:
            path = _before_the_ending(path, f"_rank{rank}")
        if self._child and "{pid}" not in filename:
            path = _before_the_ending(path, f"_pid{os.getpid()}")
        return path


def _before_the_ending(path: Path, text: str) -> Path:
    zipped = ".gz" if path.name.endswith(".gz") else ""
    name = path.name.removesuffix(zipped)
    suffix = next((one for one in SUFFIXES if name.endswith(one)), Path(name).suffix)
    return path.with_name(f"{name.removesuffix(suffix)}{text}{suffix}{zipped}")
