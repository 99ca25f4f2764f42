"""Waiting of `start()` for other threads, with a deadline."""

from __future__ import annotations

from typing import Protocol, TypeVar

from stepscope.runtime.errors import BackendError, ProfilerStateError

T = TypeVar("T", covariant=True)


class Waitable(Protocol[T]):
    """Work on another thread."""

    def result(self, timeout: float) -> T: ...
    def wait(self, timeout: float) -> bool: ...


def wait_for_start(begun: Waitable[T], profiler: str, seconds: float, backend: str = "") -> T:
    """Waits for work that `start()` needs. Returns its result, or raises its exception.

    Args:
        begun: the work.
        profiler: name of the profiler.
        seconds: the deadline.
        backend: the one that is being opened, if one is.

    Raises:
        BackendError: after the deadline, if the `open` of a backend has not returned.
        ProfilerStateError: after the deadline, for any other reason.
    """
    if begun.wait(seconds):
        return begun.result(seconds)
    text = f"start() of profiler {profiler!r} gave up after {seconds:g} s (Options.start_timeout): "
    if backend:
        raise BackendError(
            f"{text}open() of backend {backend!r} has not returned; have it do on a thread what takes long"
        )
    raise ProfilerStateError(f"{text}the runtime's loop, or the directory of the output, does not answer")
