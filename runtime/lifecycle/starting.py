"""Waiting of `start()` for other threads, with a deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from stepscope.runtime.errors import BackendError, ProfilerStateError

T = TypeVar("T", covariant=True)


class Waitable(Protocol[T]):
    """Work on another thread."""

    def result(self, timeout: float) -> T: ...
    def wait(self, timeout: float) -> bool: ...


def wait_for_start(begun: Waitable[T], profiler: str, seconds: float, blocked_by: Callable[[], str]) -> T:
    """Waits for work that `start()` needs. Returns its result, or raises its exception.

    Args:
        begun: the work.
        profiler: name of the profiler.
        seconds: the deadline.
        blocked_by: returns the name of the backend whose `open` blocks the loop; empty if none does.

    Raises:
        BackendError: after the deadline, if the `open` of a backend has not returned.
        ProfilerStateError: after the deadline, for any other reason.
    """
    if begun.wait(seconds):
        return begun.result(seconds)
    text = f"start() of profiler {profiler!r} gave up after {seconds:g} s (Options.start_timeout): "
    backend = blocked_by()
    if backend:
        raise BackendError(
            f"{text}open() of backend {backend!r} has not returned; it blocks the loop that all profilers share"
        )
    raise ProfilerStateError(f"{text}the runtime's loop, or the directory of the output, does not answer")
