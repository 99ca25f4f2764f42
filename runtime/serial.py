"""Calls that must not interleave, from any thread, signal handlers included."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Serial:
    """Runs calls one after the other.

    A call that is made while another one is inside, by a signal handler, by what the other calls back, or by another
    thread while the other waits, is put down and run as soon as that one is done, by its thread. So no call is ever
    entered twice, and none waits for one that waits for it.
    """

    def __init__(self) -> None:
        # Reentrant, as a signal handler may come while its thread holds it. Nobody waits for the loop with it held.
        self._lock = threading.RLock()
        self._inside = False
        self._thread = 0
        self._later: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self.errors: list[Exception] = []
        """What calls raised that were put down: who made them is gone."""

    @property
    def mine(self) -> bool:
        """Whether the caller is inside of a call itself, so that it must not wait for others."""
        return self._inside and self._thread == threading.get_ident()

    def run(self, call: Callable[[], None], *, patience: float = 0.0) -> bool:
        """Runs a call, or puts it down.

        Args:
            patience: seconds to wait for it, if it was put down and the caller is not inside of a call itself.

        Returns:
            Whether it was run.
        """
        with self._lock:
            if not self._inside:
                try:
                    self._inside, self._thread = True, threading.get_ident()
                    call()
                finally:
                    self._inside = False  # here, not in a function: a signal handler may raise before its first line
                    self._run_later()
                return True
            done = threading.Event()
            self._later.append((call, done))
            mine = self._thread == threading.get_ident()
        return not mine and done.wait(patience)

    def run_waiting(self, check: Callable[[], None], call: Callable[[], None]) -> bool:
        """Runs a call that waits for others: what they call meanwhile is put down, and they do not wait for it.

        Args:
            check: run first, with nobody else inside; what it raises is raised here.

        Returns:
            Whether it was run; otherwise it was put down.
        """
        entered = False

        def both() -> None:
            check()
            call()

        try:
            with self._lock:
                check()
                if self._inside:
                    self._later.append((both, threading.Event()))
                    return False
                self._thread = threading.get_ident()
                self._inside = entered = True
            call()
        finally:
            if entered:
                self._inside = False
                self._run_later()
        return True

    def _run_later(self) -> None:
        while self._later:
            call, done = self._later.popleft()
            try:
                self.run(call)
            except Exception as error:
                self.errors.append(error)
            finally:
                done.set()
