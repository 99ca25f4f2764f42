"""Starting: what `start()` waits for on other threads, and when it gives that up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stepscope.runtime.errors import BackendError, ProfilerStateError
from stepscope.runtime.events import clock
from stepscope.runtime.lifecycle import signals
from stepscope.runtime.threads.one_shot import LOOK, OneShot

T = TypeVar("T")

GRACE = 1.0
"""Seconds after which a signal that is held ends the wait, if that has not ended by then."""


class Starting:
    """One start of a profiler."""

    def __init__(self, profiler: str, seconds: float, blocked_by: Callable[[], str]) -> None:
        """Args: name of the profiler; seconds to wait for each thing; names the backend whose `open` blocks the loop."""
        self._profiler = profiler
        self._seconds = seconds
        self._blocked_by = blocked_by
        self._began = clock.now()
        self._held = 0

    def wait_for(self, done: OneShot[T]) -> T:
        """Waits for something, and returns its value.

        Raises:
            BackendError, ProfilerStateError: as `look`.
            BaseException: what it failed with.
        """
        self._began = clock.now()
        while not done.wait(LOOK):
            self.look()
        return done.result()

    def look(self) -> None:
        """To be called now and then while something is waited for.

        Raises:
            BackendError: if it has taken too long; it names the backend that did not open.
            ProfilerStateError: the same, if it is none; and if a signal is held, such as that of Ctrl-C, which takes effect
                then.
        """
        now = clock.now()
        self._held = (self._held or now) if signals.held() else 0
        if self._held and now - self._held > GRACE * 1e9:
            raise ProfilerStateError(f"start() of profiler {self._profiler!r} was ended by a signal")
        if now - self._began <= self._seconds * 1e9:
            return
        text = f"start() of profiler {self._profiler!r} gave up after {self._seconds:g} s (Options.start_timeout): "
        backend = self._blocked_by()
        if backend:
            raise BackendError(
                f"{text}open() of backend {backend!r} has not returned; it blocks the loop that all profilers share"
            )
        raise ProfilerStateError(f"{text}the runtime's loop, or the directory of the output, does not answer")
