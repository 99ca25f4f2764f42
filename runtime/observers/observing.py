"""Starts and stops the sources of signals (`Options.signals`).

Each signal has one source in a process, which begins with the first profiler that wants it and ends with the last.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.display.code_places import caller
from stepscope.runtime.options import Signal
from stepscope.runtime.threads import locks, user_code

if TYPE_CHECKING:
    from stepscope.runtime.steps.step_controller import StepController

_READ_OF_STEPS = {
    "run_queue_ns": "/proc/thread-self/schedstat",
    "resident_bytes": "/proc/self/statm",
    "written_bytes": "/proc/thread-self/io",
}


_WRITES = "forced write"


class SignalSource:
    """Records one signal in the process, for all profilers in `users`."""

    signal: Signal

    def __init__(self) -> None:
        self.users: dict[StepController, None] = {}
        self.note = ""
        """Why it does not record, or not all; empty if it does."""
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """The first profiler that wants it has started."""

    def end(self) -> None:
        """The last one has closed. Restores what was replaced, unless other code has replaced it since."""
        while self._undo:
            self._undo.pop()()

    def replace(self, name: str, make: Callable[[Any], Any], *owners: Any) -> None:
        """Replaces a function as `user_code.replace` does, until `end`."""
        user_code.replace(self._undo, name, make, *owners)

    def forget(self) -> None:
        """Like `end`, in a forked child: there are no other threads, and locks may be locked."""
        self.end()


class StepReadings(SignalSource):
    """Readings of the system at the begin of a step, made in C (core/system/readings.c)."""

    signal = "steps"

    def begin(self) -> None:
        """Notes which readings are not available."""
        missing = [name for name, path in _READ_OF_STEPS.items() if not _readable(path)]
        self.note = f"{', '.join(missing)} cannot be read on this machine" if missing else ""


class Collections(SignalSource):
    """Garbage collections as spans."""

    signal = "collections"

    def begin(self) -> None:
        """Registers the callback for collections."""
        if _core.collection not in gc.callbacks:
            gc.callbacks.append(_core.collection)

    def end(self) -> None:
        if _core.collection in gc.callbacks:
            gc.callbacks.remove(_core.collection)


class ForcedWrites(SignalSource):
    """Calls of `os.fsync` and `os.fdatasync`, with which a program waits for writes, as spans. Those of stepscope's own threads are
    not recorded."""

    signal = "writes"

    def begin(self) -> None:
        for name in ("fsync", "fdatasync"):
            self.replace(name, partial(_recorded, f"os.{name}"), os)


def _recorded(name: str, original: Callable[..., None]) -> Callable[..., None]:
    def sync(*args: Any, **kwargs: Any) -> None:
        if threading.current_thread().name.startswith("stepscope"):
            return original(*args, **kwargs)
        with _core.span(name, category=_WRITES, place=caller()):
            return original(*args, **kwargs)

    return sync


_sources: dict[Signal, SignalSource] = {}
_lock = locks.reentrant()


def add(source: SignalSource) -> None:
    """Registers the source of a signal."""
    _sources[source.signal] = source


def begin(profiler: StepController, signals: tuple[Signal, ...]) -> None:
    """Begins signals for a profiler that starts. If a source fails, it is off, and its note has the reason."""
    with _lock:
        for source in [_sources[name] for name in signals if name in _sources]:
            first = not source.users
            source.users[profiler] = None
            if first:
                source.note = ""
                _guarded(source, source.begin)


def end(profiler: StepController) -> None:
    """Ends the signals of a profiler that closes."""
    with _lock:
        for source in _sources.values():
            if profiler in source.users:
                del source.users[profiler]
                if not source.users:
                    _guarded(source, source.end)


def notes(signals: tuple[Signal, ...]) -> tuple[str, ...]:
    """Returns a note for each of these signals that is not recorded completely."""
    sources = [_sources[name] for name in signals if name in _sources]
    return tuple(f"signal {source.signal!r}: {source.note}" for source in sources if source.note)


def _guarded(source: SignalSource, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        if user_code.from_signal_handler(error):
            raise
        source.note = f"off: {error_text(error)}"


def _readable(path: str) -> bool:
    try:
        return bool(Path(path).read_bytes())
    except OSError:
        return False


def _forked() -> None:
    for source in _sources.values():
        if source.users:
            source.users = {}
            _guarded(source, source.forget)


os.register_at_fork(after_in_child=_forked)

add(StepReadings())
add(Collections())
add(ForcedWrites())
