"""The thread that writes streams: a slow disk holds up confirmations, and not the collector's loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from stepscope.collector.files.stream_file import NewFrames, StreamFile
from stepscope.runtime.loop_threads.loop_thread import DaemonExecutor
from stepscope.runtime.threads.background_call import start

log = logging.getLogger("stepscope.collector")

MANY = 32
"""With so many streams or more, frames that arrive within `TOGETHER` are written together: the thread and the loop wake up less
often."""
TOGETHER = 0.003
"""Seconds."""
SYNCED_AT_ONCE = 16
"""Files for which the thread waits at the same time."""


class _Job(msgspec.Struct):
    file: StreamFile
    new_frames: NewFrames
    over: Callable[[OSError | None], object]
    done: asyncio.Future[None]
    error: OSError | None = None

    def sync_to_disk(self) -> None:
        self.file.sync_to_disk()


class Writer:
    """Writes the frames of connections, all that wait at once, and confirms them when they are written.

    The thread is there while anybody uses it. Methods are for the loop.
    """

    def __init__(self, *, fsync: bool) -> None:
        """Args: whether to wait for the disk, for all that is written together."""
        self._fsync = fsync
        self._users = 0
        self._jobs: deque[_Job] = deque()
        self._wanted = threading.Condition()
        self._thread: threading.Thread | None = None
        self._began: float | None = None

    @property
    def waits(self) -> float:
        """Seconds for which the disk has not completed the last write; 0 if it has."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def __enter__(self) -> Writer:
        self._users += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users and self._thread is not None:
            with self._wanted:
                self._thread = None
                self._wanted.notify_all()

    def write(
        self, file: StreamFile, new_frames: NewFrames, over: Callable[[OSError | None], object] = lambda _: None
    ) -> asyncio.Future[None]:
        """Appends to a file. One call at a time for each file.

        Args:
            file: must not be closed before it is written.
            new_frames: what is appended.
            over: is called on the loop when it is written, or could not be, with the reason.

        Returns:
            A future that is done when the frames are written, or has the `OSError`. It must not be cancelled.

        Raises:
            OSError: if there is no thread, and none can be had.
        """
        loop = asyncio.get_running_loop()
        job = _Job(file, new_frames, over, loop.create_future())
        with self._wanted:
            if self._thread is None:
                self._thread = self._started(loop)
            self._jobs.append(job)
            self._wanted.notify()
        return job.done

    def _started(self, loop: asyncio.AbstractEventLoop) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(loop,), name="stepscope-writer", daemon=True)
        try:
            start(thread)
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"{error}; see ulimit -u, and pids.max of its cgroup") from error
        return thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        disk = DaemonExecutor(SYNCED_AT_ONCE)
        try:
            self._write_all(loop, disk)
        finally:
            disk.shutdown(wait=False)

    def _write_all(self, loop: asyncio.AbstractEventLoop, disk: DaemonExecutor) -> None:
        while True:
            with self._wanted:
                while not self._jobs:
                    if self._thread is not threading.current_thread():  # nobody uses it any more
                        return
                    self._wanted.wait()
            if self._users >= MANY:
                time.sleep(TOGETHER)
            with self._wanted:
                jobs = list(self._jobs)
                self._jobs.clear()
            self._began = time.monotonic()
            for job in jobs:
                _attempt(job, lambda job: job.file.write(job.new_frames))
            if self._fsync:
                _sync_to_disk([job for job in jobs if job.error is None], disk)
            self._began = None
            try:
                loop.call_soon_threadsafe(_notify, jobs)
            except RuntimeError:
                return  # the loop has ended, and nobody waits


def _sync_to_disk(jobs: list[_Job], disk: DaemonExecutor) -> None:
    """Waits until the disk has these files: for several at once, which file systems put together."""
    waiting: list[Future[None]] = []
    for job in jobs[1:]:
        try:
            waiting.append(disk.submit(_attempt, job, _Job.sync_to_disk))
        except RuntimeError:  # the system refuses a thread
            _attempt(job, _Job.sync_to_disk)
    for job in jobs[:1]:
        _attempt(job, _Job.sync_to_disk)
    for one in waiting:
        one.result()


def _attempt(job: _Job, work: Callable[[_Job], object]) -> None:
    try:
        work(job)
    except OSError as error:
        job.error = error
    except Exception as error:  # a fault of ours must not end the thread that all streams need
        log.exception("a stream could not be written")
        job.error = OSError(errno.EIO, f"{type(error).__name__}: {error}")


def _notify(jobs: list[_Job]) -> None:
    for job in jobs:
        try:
            job.over(job.error)
        except Exception:  # a fault of ours must not leave those unanswered who wait for the others
            log.exception("what was written of a stream is not counted")
        if job.error is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(job.error)
