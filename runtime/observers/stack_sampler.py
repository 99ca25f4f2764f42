"""The sampler: a thread that samples the stack of the stepping thread, and reads the processor time of all threads."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import NamedTuple

from stepscope.runtime import _core
from stepscope.runtime.accounting.error_log import error_text
from stepscope.runtime.annotations import asyncio_tasks
from stepscope.runtime.events import clock, strings, tracks
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.observers import observing
from stepscope.runtime.observers.observing import SignalSource
from stepscope.runtime.observers.processor_demand import ProcessorDemand
from stepscope.runtime.observers.task_runs import TASKS
from stepscope.runtime.observers.task_waits import TaskWaits
from stepscope.runtime.options import Signal
from stepscope.runtime.steps.step_controller import StepController
from stepscope.runtime.threads.background_call import start
from stepscope.runtime.threads.native_threads import Thread

SAMPLE_S = 0.05
"""Seconds between two samples of a stack, on average, at first."""
LATER_SAMPLE_S = 0.1
"""Seconds between two samples once there are enough for shares of the time."""
ENOUGH_SAMPLES = 1200
"""After so many samples there are fewer: a minute of them."""
THREADS_S = 1.0
"""Seconds between two readings of the processor time of threads, of the lengths of queues, and of where tasks wait."""
MAX_NAMES = 256
"""Thread names with counters of their own; further threads share one."""
OTHERS = "other threads"


class Target(NamedTuple):
    """A thread whose stack is sampled, and its track."""

    ident: int
    tid: int
    track: int


class Sampler:
    """The sampling thread. It ends soon after `end`."""

    def __init__(self, stacks: SignalSource, cpu: SignalSource) -> None:
        self._stacks, self._cpu = stacks, cpu
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._times = ThreadTimes()
        self._sampled = 0
        """Number of samples so far."""
        self._demand = ProcessorDemand()
        self._waits = TaskWaits()
        self._thread = Thread(target=self._run, name="stepscope sampler", daemon=True)
        start(self._thread)

    def end(self) -> None:
        """Makes the thread end. Does not wait."""
        os.eventfd_write(self._stop, 1)
        _core.wake_samplers()

    def close(self) -> None:
        """Closes the descriptor. The thread does that at its end; a forked child must call it."""
        os.close(self._stop)

    def _run(self) -> None:
        try:
            due, rounds = 0.0, 0
            while self._sample(rounds):
                rounds += 1
                if time.monotonic() >= due - SAMPLE_S:
                    due = time.monotonic() + THREADS_S
                    if self._cpu.users:
                        threads, children = _core.thread_times(os.getpid())
                        self._cpu.note = self._times.record(threads)
                        self._demand.record(threads, children)
                    if TASKS.users:
                        TASKS.record_queues()
                        self._waits.record()
        except Exception as error:  # the program and its other signals continue
            self._stacks.note = self._cpu.note = f"ended: {error_text(error)}"
            # `end` writes to the descriptor, whose number the program's next file would have if it were closed.
            while _core.sample(self._stop, THREADS_S, 1, 0, 0, 0, False, []):
                pass
        self.close()

    def _sample(self, number: int) -> bool:
        """Takes samples for about a second; returns whether to go on."""
        if not self._stacks.users:
            return _core.sample(self._stop, THREADS_S, 1, 0, 0, 0, False, [])
        targets = {target.ident: target for target in map(_target, list(self._stacks.users)) if target is not None}
        if not targets:
            return _core.sample(self._stop, SAMPLE_S, 1, 0, 0, 0, False, [])
        target = list(targets.values())[number % len(targets)]
        others = [
            (thread.ident or 0, tid, thread.name)
            for tid, thread in python_threads().items()
            if tid != target.tid and not thread.name.startswith("stepscope")
        ]
        seconds = SAMPLE_S if self._sampled < ENOUGH_SAMPLES else LATER_SAMPLE_S
        samples = round(THREADS_S / seconds / len(targets))
        self._sampled += samples
        return _core.sample(self._stop, seconds, samples, *target, target.tid == os.getpid(), others)


class ThreadTimes:
    """Processor time of the threads of the process, as counters by thread name.

    Threads with the same name share a counter. It only grows, and includes threads that have ended.
    """

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._names: dict[int, str] = {}
        self._sums: dict[str, int] = {}
        self._category = strings.category("thread cpu")

    def record(self, times: list[tuple[int, int, int]]) -> str:
        """Records the counters from the result of `_core.thread_times` for this process. Returns a note if some threads cannot be
        read; else an empty text."""
        note = ""
        threads = python_threads()
        if not times:
            times = [(tid, -1, -1) for tid in threads]
            note = "only threads that Python started: /proc/self/task cannot be read"
        before, self._times = self._times, {}
        for tid, ran, _ in times:
            total = ran if ran >= 0 else processor_time(tid)
            added = total - before.get(tid, 0)
            if added < 0:  # a new thread has this number now
                added = total
                self._names.pop(tid, None)
            name = self._name(tid, threads)
            self._times[tid] = total
            self._sums[name] = self._sums.get(name, 0) + added
        self._names = {tid: self._names[tid] for tid in self._times}
        now, track = clock.now(), tracks.process()
        for name, value in self._sums.items():
            _core.put(True, strings.intern(name), self._category, track, now, float(value), b"")
        return note

    def _name(self, tid: int, threads: dict[int, threading.Thread]) -> str:
        thread = threads.get(tid)
        name = thread.name if thread is not None else self._names.get(tid) or _comm(tid)
        if name not in self._sums and len(self._sums) >= MAX_NAMES:
            name = OTHERS
        self._names[tid] = name
        return name


def _comm(tid: int) -> str:
    if tid == os.getpid():
        return "MainThread"
    return _core.read_proc(f"/proc/self/task/{tid}/comm").strip() or "thread"


def processor_time(tid: int) -> int:
    """Returns the processor time of a thread of this process, in ns; 0 if there is no such thread."""
    thread_clock = (~tid << 3) | 6  # CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED
    try:
        return time.clock_gettime_ns(thread_clock)
    except OSError:
        return 0


def python_threads() -> dict[int, threading.Thread]:
    """Returns the threads of `threading`, by thread id. It acquires no lock, as gevent may have replaced that."""
    found = [(getattr(thread, "native_id", None), thread) for thread in list(_active().values())]
    return {tid: thread for tid, thread in found if tid is not None}


def _active() -> dict[int, threading.Thread]:
    return vars(threading)["_active"]  # type: ignore[no-any-return]


def _target(steps: StepController) -> Target | None:
    """The thread to sample while a profiler records: the stepping thread; before the first step, the thread of a running event
    loop, or else the one that began the window."""
    if not steps.recording_now:
        return None
    loop = asyncio_tasks.running_loop() if steps.stepper == 0 else None
    ident, track = loop or (steps.marker, steps.track)
    row = tracks.get(track)
    if row is not None and row.kind is TrackKind.TASK:
        row = tracks.get(row.parent)
    if row is None or not ident:
        return None
    thread = _active().get(ident)
    return Target(ident, getattr(thread, "native_id", None) or row.tid, row.id)


_core.set_standard_modules(sys.stdlib_module_names)

_sampler: Sampler | None = None


class _Sampled(SignalSource):
    """One of the two signals of the sampler."""

    def __init__(self, signal: Signal) -> None:
        super().__init__()
        self.signal = signal

    def begin(self) -> None:
        """Starts the thread, if the other signal has not."""
        global _sampler
        if _sampler is None:
            _sampler = Sampler(STACKS, THREADS)

    def end(self) -> None:
        """Ends the thread, unless the other signal needs it."""
        global _sampler
        if _sampler is not None and not (STACKS.users or THREADS.users):
            ending, _sampler = _sampler, None
            ending.end()

    def forget(self) -> None:
        """Releases the sampler in a forked child, where the thread does not exist."""
        global _sampler
        if _sampler is not None:
            ending, _sampler = _sampler, None
            ending.close()


STACKS = _Sampled("stacks")
"""Stacks of the stepping thread, as instants."""
THREADS = _Sampled("threads")
"""Processor time of threads, as counters."""
observing.add(STACKS)
observing.add(THREADS)
