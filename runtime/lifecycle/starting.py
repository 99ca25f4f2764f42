"""Starting: how long `start()` waits for other threads."""

from __future__ import annotations

from typing import Protocol, TypeVar

from stepscope.runtime.errors import BackendError, ProfilerStateError

T = TypeVar("T", covariant=True)


class Waitable(Protocol[T]):
    """Something that another thread does."""

    def result(self, timeout: float) -> T: ...
    def wait(self, timeout: float) -> bool: ...


def wait_for_start(begun: Waitable[T], profiler: str, seconds: float, backend: str = "") -> T:
    """Waits for something that `start()` needs, and returns its result.

    Args:
        begun: the thing; what it raises is raised here.
        profiler: name of the profiler.
        seconds: to wait at most.
        backend: the one that is being opened, if one is.

    Raises:
        BackendError: if a backend takes longer to open.
        ProfilerStateError: if something else takes longer.
    """
    if begun.wait(seconds):
        return begun.result(seconds)
    text = f"start() of profiler {profiler!r} gave up after {seconds:g} s (Options.start_timeout): "
    if backend:
        raise BackendError(
            f"{text}open() of backend {backend!r} has not returned; have it do on a thread what takes long"
        )
    raise ProfilerStateError(f"{text}the runtime's loop, or the directory of the output, does not answer")
