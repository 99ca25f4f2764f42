"""Calls that change a profiler's state: one after the other, from any thread, signal handlers included."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from stepscope.runtime.accounting.error_log import ErrorLog
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.native_threads import get_ident

TURN_TIMEOUT_S = 1.0
"""Seconds that a call waits for its turn by default."""
POLL_S = 0.002
"""Seconds between two checks whether the turn has come."""


class CallSerializer:
    """Runs calls one after the other.

    A call within another one, by a signal handler or by code of the program, is deferred until the other one has ended. So is a
    call of another thread after `timeout_s` seconds.
    """

    def __init__(self) -> None:
        self._lock = locks.reentrant()
        self._running: list[int] | None = None
        """The ident of the thread whose call runs now, in a list that identifies the call."""
        self._deferred: deque[Callable[[], None]] = deque()
        self.raised: ErrorLog[Exception] = ErrorLog()
        """Errors of deferred calls, whose callers have returned."""
        self.afterwards: Callable[[], object] | None = None
        """Called once after the next call."""

    @property
    def is_own(self) -> bool:
        """Whether the current call is of this thread, which must not wait then."""
        running = self._running
        return running is not None and running[0] == get_ident()

    def run(self, call: Callable[[], None], *, timeout_s: float = TURN_TIMEOUT_S) -> bool:
        """Runs a call, or defers it if its turn does not come in this many seconds, or this thread runs a call. Returns whether
        it was run."""
        try:
            if self._run_in_turn(call, timeout_s):
                return True
            self._deferred.append(call)
        finally:
            self._run_deferred()
            if self.afterwards is not None and not self.is_own:
                afterwards, self.afterwards = self.afterwards, None
                afterwards()
        return False

    def _run_in_turn(self, call: Callable[[], None], timeout_s: float) -> bool:
        me, until = [get_ident()], 0.0
        try:
            while not self._enter(me):
                until = until or time.monotonic() + timeout_s
                if self.is_own or time.monotonic() >= until:
                    return False
                time.sleep(POLL_S)
            call()
            return True
        finally:
            if self._running is me:  # also if a signal handler raised right after `_enter`
                self._running = None

    def _enter(self, me: list[int]) -> bool:
        with self._lock:
            if self._running is None:
                self._running = me
            return self._running is me

    def _run_deferred(self) -> None:
        while self._deferred and self._running is None:
            try:
                call = self._deferred.popleft()
            except IndexError:
                return  # another thread runs it
            try:
                if not self._run_in_turn(call, 0.0):
                    self._deferred.appendleft(call)
            except Exception as error:
                self.raised.record("run_deferred", error)
