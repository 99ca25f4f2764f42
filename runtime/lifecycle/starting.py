"""Starting: how long `start()` waits for other threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from stepscope.runtime.errors import BackendError, ProfilerStateError

T = TypeVar("T", covariant=True)


class Waitable(Protocol[T]):
    """Something that another thread does."""

    def result(self, timeout: float) -> T: ...
    def wait(self, timeout: float) -> bool: ...


def wait_for_start(begun: Waitable[T], profiler: str, seconds: float, blocked_by: Callable[[], str]) -> T:
    """Waits for something that `start()` needs, and returns its result.

    Args:
        begun: the thing; what it raises is raised here.
        profiler: name of the profiler.
        seconds: to wait at most.
        blocked_by: names the backend whose `open` blocks the loop, if one does.

    Raises:
        BackendError: if it takes longer; it names the backend that did not open.
        ProfilerStateError: if it takes longer, and no backend is the reason.
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
