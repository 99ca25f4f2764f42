"""Observing: what is recorded beside the program's own events, while a profiler is open that wants it (`Options.signals`).

Each signal has a source, which begins with the first profiler that wants it and ends with the last.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.options import Signal
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.user_code import from_signal_handler

if TYPE_CHECKING:
    from stepscope.runtime.recording.step_controller import StepController

_READ_OF_STEPS = {
    "run_queue_ns": "/proc/thread-self/schedstat",
    "resident_bytes": "/proc/self/statm",
    "written_bytes": "/proc/thread-self/io",
}


class SignalSource:
    """What records one signal. Sources are of the process, and know which profilers want them."""

    signal: ClassVar[Signal]

    def __init__(self) -> None:
        self.users: dict[StepController, None] = {}
        self.note = ""
        """What it cannot record, and why."""

    def begin(self) -> None:
        """The first profiler that wants it has started."""

    def end(self) -> None:
        """The last one has closed."""

    def forget(self) -> None:
        """In a forked child: as `end`, but what other threads did is not there. They may hold any lock."""
        self.end()


class StepReadings(SignalSource):
    """What the system says where a step begins: read in C (core/readings.c)."""

    signal = "steps"

    def begin(self) -> None:
        """Says what the system does not tell."""
        lacks = [name for name, path in _READ_OF_STEPS.items() if not _readable(path)]
        self.note = f"{', '.join(lacks)} cannot be read on this machine" if lacks else ""


class Collections(SignalSource):
    """Garbage collections as spans."""

    signal = "collections"

    def begin(self) -> None:
        """Has Python call at each."""
        if _core.collection not in gc.callbacks:
            gc.callbacks.append(_core.collection)

    def end(self) -> None:
        """Ends that."""
        if _core.collection in gc.callbacks:
            gc.callbacks.remove(_core.collection)


_sources: dict[Signal, SignalSource] = {}
_lock = locks.reentrant()


def add(source: SignalSource) -> None:
    """Says who records a signal."""
    _sources[source.signal] = source


def begin(profiler: StepController, signals: tuple[Signal, ...]) -> None:
    """Has signals recorded for a profiler that starts. A source that fails is off, and says why."""
    with _lock:
        for source in [_sources[name] for name in signals if name in _sources]:
            first = not source.users
            source.users[profiler] = None
            if first:
                source.note = ""
                _guarded(source, source.begin)


def end(profiler: StepController) -> None:
    """A profiler has closed."""
    with _lock:
        for source in _sources.values():
            if profiler in source.users:
                del source.users[profiler]
                if not source.users:
                    _guarded(source, source.end)


def notes(signals: tuple[Signal, ...]) -> tuple[str, ...]:
    """What cannot be recorded of these, in words."""
    sources = [_sources[name] for name in signals if name in _sources]
    return tuple(f"signal {source.signal!r}: {source.note}" for source in sources if source.note)


def _guarded(source: SignalSource, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        if from_signal_handler(error):
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
