"""The control thread of a profiler: reads its file, handles its requests, and takes its turns of the agreement."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.control.agreement.agreement import Agreement
from stepscope.runtime.control.entry_points.watched_file import RETRY_S, WatchedFile
from stepscope.runtime.control.rate import Pace
from stepscope.runtime.steps.arming import Arming
from stepscope.runtime.threads import background_call, locks
from stepscope.runtime.threads.native_threads import SimpleQueue, Thread, get_ident
from stepscope.runtime.threads.one_shot import OneShot

log = logging.getLogger("stepscope")

JOIN_S = 1.0
"""Seconds that `close` waits for the thread, at most. It is a daemon, so it may also run on."""

_turns = locks.reentrant()
"""Control threads take turns: the profilers of a process share a job's directory, and what was recorded of a file."""


class ControlThread:
    """A daemon thread from `start()` to `close()`, whether or not the profiler records. In a forked child it does nothing."""

    def __init__(
        self,
        profiler: Arming,
        agreement: Agreement | None,
        file: WatchedFile[Any] | None,
        *,
        pause: float,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        """Args: `pause`: seconds between two turns, at most. `ended`: called at the end, on the thread."""
        self.pace = Pace()
        """Speed of the profiler's loop."""
        self._profiler, self._agreement, self._file = profiler, agreement, file
        self._pause, self._ended = pause, ended
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        """Calls to make on the thread; `None` ends it."""
        self._thread: Thread | None = None
        self._begun: OneShot[None] = OneShot()
        """Set when its first turn may come."""
        self._pid = 0

    @property
    def running(self) -> bool:
        """Whether it was started, and not closed."""
        return self._thread is not None

    @property
    def inherited(self) -> bool:
        """Whether it runs in the process that this one was forked from."""
        return self.running and self._pid != os.getpid()

    def start(self, before: Callable[[], object] = lambda: None) -> None:
        """Begins. Starting again changes nothing. `before` is called on the caller's thread, before the first turn.

        Raises:
            RuntimeError: if the system gives no further thread.
        """
        if self._thread is None:
            begun = self._begun = OneShot()
            thread = Thread(target=self._run, args=(begun,), name="stepscope control", daemon=True)
            background_call.start(thread)
            try:
                self._thread, self._pid = thread, os.getpid()
                if self._agreement is not None:
                    self._agreement.begin()
                before()
            finally:
                begun.set_result(None)

    def close(self) -> None:
        """Ends the thread; this rank follows no plans any more. No effect a second time, or in a forked child."""
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            self._calls.put(None)
            self._begun.set_result(None)
            if thread.ident != get_ident():
                background_call.join(thread, JOIN_S)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Calls a function on the control thread. It acquires no lock, so that a signal handler may call it."""
        self._calls.put(call)

    def _run(self, begun: OneShot[None]) -> None:
        begun.wait()
        pause = 0.0
        try:
            while self._run_calls(pause):
                pause = self._turn()
        except Exception as error:
            log.error("control failed: %s", error_text(error), exc_info=error)
        finally:
            with _turns:
                if self._agreement is not None:
                    self._agreement.close()
                self._ended()
                self._report_windows()

    def _run_calls(self, pause: float) -> bool:
        """Waits for calls, `pause` seconds at most, and makes them. Returns false at the end."""
        with contextlib.suppress(Empty):
            call = self._calls.get(timeout=pause)
            while call is not None:
                try:
                    with _turns:
                        call()
                except Exception as error:  # further requests must be handled
                    log.error("control: a request failed", exc_info=error)
                call = self._calls.get_nowait()
            return False
        return True

    def _turn(self) -> float:
        """Looks at the file and at plans. Returns the seconds until the next turn."""
        with _turns:
            self.pace.add(time.monotonic(), self._profiler.step_num)
            again = self._file is not None and self._file.look()
            if self._agreement is not None:
                self._agreement.turn()
            self._report_windows()
        return min(self._pause, RETRY_S) if again else self._pause

    def _report_windows(self) -> None:
        if self._file is not None:
            self._file.status.put_windows(self._profiler.armed())
