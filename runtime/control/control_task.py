"""The task of one profiler on the control thread: reads its file, handles its requests, and takes its turns of the agreement."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from stepscope.runtime.control import control_loop
from stepscope.runtime.control.agreement.agreement import Agreement
from stepscope.runtime.control.entry_points.watched_file import RETRY_S, WatchedFile
from stepscope.runtime.control.rate import Pace
from stepscope.runtime.steps.arming import Arming

log = logging.getLogger("stepscope")


class ControlTask:
    """Runs from `start()` to `close()`. In a forked child it does nothing."""

    def __init__(
        self,
        profiler: Arming,
        agreement: Agreement | None,
        file: WatchedFile[Any] | None,
        *,
        pause: float,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        """
        Args:
            profiler: that records the windows.
            agreement: with other ranks; `None` without.
            file: the watched file, whose status file has the states of windows.
            pause: seconds between two turns, at most.
            ended: called at the end, on the control thread.
        """
        self.pace = Pace()
        """Speed of the profiler's loop."""
        self._profiler, self._agreement, self._file = profiler, agreement, file
        self._pause, self._ended = pause, ended
        self._calls: deque[Callable[[], object]] = deque()
        self._loop: control_loop.ControlLoop | None = None
        self._task: Callable[[], None] | None = None
        self._wake: asyncio.Event | None = None
        self._pid = 0

    @property
    def running(self) -> bool:
        """Whether it was started, and not closed."""
        return self._task is not None

    @property
    def inherited(self) -> bool:
        """Whether it runs in the process that this one was forked from."""
        return self.running and self._pid != os.getpid()

    def start(self, before: Callable[[], object] = lambda: None) -> None:
        """Begins. Starting again changes nothing.

        Args:
            before: called on the caller's thread, after the control thread was started.

        Raises:
            RuntimeError: if the system gives no further thread.
        """
        if self._task is None:
            self._pid = os.getpid()
            self._loop = control_loop.acquire()
            if self._agreement is not None:
                self._agreement.begin()
            before()
            self._task = self._loop.start(self._run, "control")

    def close(self) -> None:
        """Ends the task; this rank follows no plans any more. No effect a second time, or in a forked child."""
        task, loop, self._task, self._loop = self._task, self._loop, None, None
        if task is not None and loop is not None and self._pid == os.getpid():
            task()
            control_loop.release(loop)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Calls a function on the control thread. It acquires no lock, so that a signal handler may call it."""
        self._calls.append(call)
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            loop.call_soon(wake.set)

    # on the control thread

    async def _run(self) -> None:
        self._wake = asyncio.Event()
        try:
            while True:
                self._run_calls()
                self.pace.add(time.monotonic(), self._profiler.step_num)
                again = self._file is not None and self._file.look()
                if self._agreement is not None:
                    self._agreement.turn()
                self._report_windows()
                try:
                    await asyncio.wait_for(self._wake.wait(), min(self._pause, RETRY_S) if again else self._pause)
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            if self._agreement is not None:
                self._agreement.close()
            self._ended()
            self._report_windows()

    def _run_calls(self) -> None:
        while self._calls:
            call = self._calls.popleft()
            try:
                call()
            except Exception as error:  # further requests must be handled
                log.error("control: a request failed", exc_info=error)

    def _report_windows(self) -> None:
        if self._file is not None:
            self._file.status.put_windows(self._profiler.armed())
