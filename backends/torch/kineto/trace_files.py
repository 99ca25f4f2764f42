"""A source of events that another profiler wrote to files: traces of torch's profiler, read as they come."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path

from stepscope.backends.torch.kineto.result import SharedResult
from stepscope.backends.torch.kineto.worker import FinishedTrace, KinetoWorker, notes_of
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink


class ChromeFilesBackend:
    """Takes the files that torch's profiler writes, and delivers what is in them.

    A file belongs to the window that is open when `add` is called: reading it is done on a thread, and the window
    waits for that. Times of a file are Unix time, so they are as exact as the wall clock is steady.
    """

    thread_bound = False

    def __init__(self, name: str = "chrome_files") -> None:
        self.name = name
        self._worker: KinetoWorker | None = None
        self._open = False
        self._anchor = ClockAnchor(0, 0, 0)
        self._since = 0
        """When the latest file came, or when it was opened."""
        self._files = 0

    def open(self, sink: Sink) -> None:
        self._worker, self._anchor, self._open = KinetoWorker(sink), ClockAnchor.read(), True
        self._since = self._anchor.monotonic_ns

    def add(self, path: Path) -> None:
        """Takes a file; it may be deleted afterwards. Any thread; before `open` and after `aclose` it is left out.

        Raises:
            OSError: if it cannot be opened.
        """
        worker = self._worker
        if worker is None or not self._open:
            return
        file, now = _File(path), ClockAnchor.read()
        since, self._since = self._since, now.monotonic_ns
        self._files += 1
        worker.put(
            FinishedTrace(file, now.monotonic_ns, (self._anchor, now), False, since, frozenset(), Path(path).name)
        )

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self._worker is not None:
            self._worker.put(at)

    async def aclose(self) -> None:
        self._open = False
        if self._worker is not None:
            await self._worker.aclose()

    def report(self) -> BackendReport:
        notes = () if self._files else ("no file came",)
        error_ns = 0
        if self._worker is not None:
            notes, error_ns = (*notes, *notes_of(self._worker.problems)), self._worker.clock_error_ns
        clock = f"Unix time of the files, mapped to CLOCK_MONOTONIC within {error_ns} ns"
        return BackendReport(mode="files", clock=clock, notes=notes)


class _File(SharedResult):
    """A file, in the place of a result of torch's profiler. Kept by its descriptor: the program may have deleted it since."""

    def __init__(self, path: Path) -> None:
        super().__init__(None)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._open = gzip.open if str(path).endswith(".gz") else open

    def save(self, path: str) -> bool:
        with self._open(f"/proc/self/fd/{self._descriptor}", "rb") as file, open(path, "wb") as copy:
            shutil.copyfileobj(file, copy)
        return True

    def release(self) -> None:
        os.close(self._descriptor)
