"""Calls that change a profiler's state: one after the other, from any thread, signal handlers included."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from stepscope.runtime.accounting.error_log import ErrorLog
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.native_threads import get_ident

PATIENCE = 1.0
"""Seconds that a call waits for its turn, if nothing else is said."""
LOOK_S = 0.002
"""Between two looks at whether the turn has come."""


class CallSerializer:
    """Runs calls one after the other.

    A call that is made inside of another one, by a signal handler or by code of the program that the other one calls, is
    deferred: it runs when the other one is done. So is a call of another thread that has waited long enough.
    """

    def __init__(self) -> None:
        self._lock = locks.reentrant()
        self._inside: list[int] | None = None
        """The call that runs now: the ident of its thread."""
        self._deferred: deque[Callable[[], None]] = deque()
        self.raised: ErrorLog[Exception] = ErrorLog()
        """Errors of deferred calls, whose callers have returned."""
        self.afterwards: Callable[[], object] | None = None
        """Called once when the caller is inside of no call any more."""

    @property
    def mine(self) -> bool:
        """Whether the caller is inside of a call itself, so that it must not wait for others."""
        inside = self._inside
        return inside is not None and inside[0] == get_ident()

    def run(self, call: Callable[[], None], *, patience: float = PATIENCE) -> bool:
        """Runs a call, or defers it.

        Args:
            patience: seconds to wait for its turn, if the caller is not inside of a call itself.

        Returns:
            Whether it was run.
        """
        try:
            if self._run_in_turn(call, patience):
                return True
            self._deferred.append(call)
        finally:
            self._run_deferred()
            if self.afterwards is not None and not self.mine:
                afterwards, self.afterwards = self.afterwards, None
                afterwards()
        return False

    def _run_in_turn(self, call: Callable[[], None], patience: float) -> bool:
        me = [get_ident()]
        until = time.monotonic() + patience
        try:
            while not self._enter(me):
                if self.mine or time.monotonic() >= until:
                    return False
                time.sleep(LOOK_S)
            call()
            return True
        finally:
            if self._inside is me:  # also where a signal handler has raised right after it entered
                self._inside = None

    def _enter(self, me: list[int]) -> bool:
        with self._lock:
            if self._inside is None:
                self._inside = me
            return self._inside is me

    def _run_deferred(self) -> None:
        while self._deferred and self._inside is None:
            try:
                call = self._deferred.popleft()
            except IndexError:
                return  # another thread runs it
            try:
                if not self._run_in_turn(call, 0.0):
                    self._deferred.appendleft(call)
            except Exception as error:
                self.raised.record("run_deferred", error)
