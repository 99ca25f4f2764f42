"""The thread that writes streams: a slow disk holds up confirmations, and not the collector's loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import msgspec

from stepscope.collector.disk import PATIENCE
from stepscope.collector.stream_file import Addition, StreamFile
from stepscope.runtime.ending_tasks import finish

log = logging.getLogger("stepscope.collector")

ENDING = 1.0
"""Seconds."""


class _Job(msgspec.Struct):
    file: StreamFile
    addition: Addition
    done: asyncio.Future[None]
    error: OSError | None = None


class Writer:
    """Writes what connections give it, all that waits at once, and tells them when it is written.

    The thread is there while anybody uses it. Methods are for the loop.
    """

    def __init__(self, *, fsync: bool) -> None:
        """Args: whether to wait for the disk, once for all that is written together."""
        self._fsync = fsync
        self._users = 0
        self._jobs: deque[_Job] = deque()
        self._wanted = threading.Condition()
        self._thread: threading.Thread | None = None
        self._began: float | None = None

    @property
    def waits(self) -> float:
        """Seconds for which the disk has not taken what it was given last; 0 if it has."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def __enter__(self) -> Writer:
        self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users and self._thread is not None:
            with self._wanted:
                self._wanted.notify()
            self._thread.join(ENDING)  # it has nothing left to do
            self._thread = None

    async def write(self, file: StreamFile, addition: Addition) -> None:
        """Appends to a file; returns when it is written. One call at a time for each file.

        One that is cancelled, however often, is waited for all the same, unless the disk hangs: the file is not to be closed
        under the thread's hands.

        Raises:
            OSError: if it cannot be written.
        """
        loop = asyncio.get_running_loop()
        job = _Job(file, addition, loop.create_future())
        with self._wanted:
            self._jobs.append(job)
            self._wanted.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(loop,), name="stepscope-writer", daemon=True)
            self._thread.start()
        try:
            await asyncio.shield(job.done)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                await finish(job.done, PATIENCE)
            raise
        if job.error is not None:
            raise job.error

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._wanted:
                while not self._jobs:
                    if not self._users:
                        return
                    self._wanted.wait()
                jobs = list(self._jobs)
                self._jobs.clear()
            self._began = time.monotonic()
            for job in jobs:
                _attempt(job, lambda job: job.file.write(job.addition))
            if self._fsync:
                for job in jobs:
                    if job.error is None:
                        _attempt(job, lambda job: job.file.sync_to_disk())
            self._began = None
            try:
                loop.call_soon_threadsafe(_tell, jobs)
            except RuntimeError:
                return  # the loop has ended, and nobody waits


def _attempt(job: _Job, work: Callable[[_Job], object]) -> None:
    try:
        work(job)
    except OSError as error:
        job.error = error
    except Exception as error:  # a fault of ours must not end the thread that all streams need
        log.exception("a stream could not be written")
        job.error = OSError(errno.EIO, f"{type(error).__name__}: {error}")


def _tell(jobs: list[_Job]) -> None:
    for job in jobs:
        if not job.done.done():
            job.done.set_result(None)
