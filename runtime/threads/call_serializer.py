"""Calls that must not interleave, from any thread, signal handlers included."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from stepscope.runtime.accounting.error_log import ErrorLog
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.native_threads import get_ident
from stepscope.runtime.threads.one_shot import LOOK, OneShot

PATIENCE = 1.0
"""Seconds that a call waits for its turn, if nothing else is said."""


class _Turn(OneShot[None]):
    """A call that is inside, or waits for that: kept when it is over."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__()
        self.thread = get_ident()
        """The one that makes the call."""
        self.waits = waits
        """Whether it waits for others, so that they must not wait for it."""


class CallSerializer:
    """Runs calls one after the other.

    A call that is made while another one is inside, by a signal handler, by what the other calls back, by another
    thread while the other waits, or by one whose patience has ended, is put down and run as soon as that one is done, by
    its thread. So no call is ever entered twice, and none waits for one that waits for it, or hangs. Nothing is held while
    a call is made.
    """

    def __init__(self) -> None:
        self._lock = locks.reentrant()
        self._inside: _Turn | None = None
        self._later: deque[tuple[Callable[[], None], _Turn]] = deque()
        self.raised: ErrorLog[Exception] = ErrorLog()
        """What calls raised that were put down: who made them is gone."""

    @property
    def mine(self) -> bool:
        """Whether the caller is inside of a call itself, so that it must not wait for others."""
        inside = self._inside
        return inside is not None and inside.thread == get_ident()

    def run(self, call: Callable[[], None], *, patience: float = PATIENCE) -> bool:
        """Runs a call, or puts it down.

        Args:
            patience: seconds to wait for its turn, or until it is done, if the caller is not inside of a call itself.

        Returns:
            Whether it was run.
        """
        return self._run(call, _Turn(waits=False), patience)

    def run_waiting(self, check: Callable[[], None], call: Callable[[], None]) -> bool:
        """Runs a call that waits for others: what they call meanwhile is put down, and they do not wait for it.

        Args:
            check: run first, with nobody else inside; what it raises is raised here.

        Returns:
            Whether it was run; otherwise it was put down.
        """

        def both() -> None:
            check()
            call()

        self._wait_for_turn(PATIENCE)
        if self._inside is not None:
            check()
        return self._run(both, _Turn(waits=True), 0.0)

    def _run(self, call: Callable[[], None], turn: _Turn, patience: float) -> bool:
        until = time.monotonic() + patience
        self._wait_for_turn(patience)
        try:
            with self._lock:
                inside = self._inside
                if inside is None:
                    turn.thread = get_ident()
                    self._inside = turn
                else:
                    self._later.append((call, turn))
            if inside is None:
                call()
                return True
        finally:
            if self._inside is turn:
                self._inside = None  # here, not in a function: a signal handler may raise before its first line
                turn.set_result(None)
                self._run_later()
        if self._inside is None:
            self._run_later()  # the other one had looked already
        return inside.thread != get_ident() and turn.wait(until - time.monotonic())

    def _wait_for_turn(self, patience: float) -> None:
        """Waits while somebody is inside who does not wait for others."""
        until = time.monotonic() + patience
        while (inside := self._inside) is not None and not inside.waits and inside.thread != get_ident():
            left = until - time.monotonic()
            if left <= 0:
                break
            inside.wait(min(left, LOOK))

    def _run_later(self) -> None:
        while self._later:
            try:
                call, turn = self._later.popleft()
            except IndexError:
                break  # another thread has it
            try:
                if not self._run(call, turn, 0.0):
                    break  # somebody is inside, who runs it
            except Exception as error:
                self.raised.record("run_later", error)
