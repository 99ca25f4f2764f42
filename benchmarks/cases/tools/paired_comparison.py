"""Training by turns in two ways, compared by the mean of their steps."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

import msgspec

from benchmarks.harness.row import Sample

Steps = Callable[[], AbstractContextManager[Callable[[], object]]]
"""Starts the work that runs during the steps, yields the step, and stops the work."""


class Half(msgspec.Struct, frozen=True):
    """Steps, all in one way; milliseconds per step."""

    mean: float
    """The mean, because a tool that works in the background may disturb one step in many, and no median shows that."""
    median: float
    p90: float
    """Nine of ten steps take no longer."""
    processor: float
    """Processor time of all threads of the process."""


@contextmanager
def _on_one_core() -> Generator[None]:
    """Keeps the calling thread on one core. Cores of a shared machine differ by a third, and a tracer that starts threads makes
    the scheduler move the training from one to the other, which would be counted as the tracer's cost.

    Threads that run already go where they like; those that the calling thread starts meanwhile stay on the core with it.
    """
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _run(step: Callable[[], object], count: int) -> Half:
    for _ in range(1 + count // 8):
        step()
    times: list[float] = []
    before = time.process_time_ns()
    for _ in range(count):
        start = time.perf_counter_ns()
        step()
        times.append((time.perf_counter_ns() - start) / 1e6)
    p90 = sorted(times)[len(times) * 9 // 10]
    return Half(statistics.fmean(times), statistics.median(times), p90, (time.process_time_ns() - before) / count / 1e6)


class PairedComparison:
    """Training by turns in two ways; which comes first changes, so that no drift counts for one of them."""

    def __init__(self, steps: int, bare: Steps, traced: Steps) -> None:
        """Args: steps of each turn; what starts one and the other, and gives the step to run."""
        self._steps, self._bare, self._traced = steps, bare, traced
        self._traced_first = False

    def __call__(self) -> Sample:
        """By how much training is slower in the second way, in percent."""
        self._traced_first = not self._traced_first
        if self._traced_first:
            traced, bare = self._turn(self._traced), self._turn(self._bare)
        else:
            bare, traced = self._turn(self._bare), self._turn(self._traced)
        facts = {
            "steps/s": 1e3 / traced.mean,
            "of the median step, %": percent(traced.median, bare.median),
            "of the 90th percentile, %": percent(traced.p90, bare.p90),
            "processor time added by all threads, %": percent(traced.processor, bare.processor),
        }
        return Sample(percent(traced.mean, bare.mean), bare.mean, facts)

    def _turn(self, steps: Steps) -> Half:
        with steps() as step, _on_one_core():
            return _run(step, self._steps)


def percent(larger: float, than: float) -> float:
    """By how many percent one number is larger than another."""
    return 100 * (larger / than - 1)
