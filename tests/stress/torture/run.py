"""A run: tries every fault as often as it asks for, and shares the time by what they cost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.stress.torture.catalog import PACKAGE
from tests.stress.torture.fault import Fault
from tests.stress.torture.tally import Tally
from tests.stress.torture.worker import LIMIT, Worker

T = TypeVar("T")

Progress = Callable[[Tally, float], object]
"""Told of a fault that is about to be tried, and of the seconds since the run began."""


def torture(
    faults: Sequence[Fault],
    *,
    short: bool = False,
    seed: int = 0,
    seconds: float = 330.0,
    limit: float = LIMIT,
    lanes: int = 1,
    package: str = PACKAGE,
    progress: Progress = lambda tally, elapsed: None,
) -> list[Tally]:
    """Tries faults.

    Each is tried as often as its `least` says, whatever that takes; that also tells what a trial costs. The time that is
    left is shared so that as many faults as possible are tried as often as they ask for: see `shares`.

    Args:
        faults: what to try.
        short: as often as the tests do.
        seed: number of the first trial of each fault.
        seconds: for everything. No trial is begun that would end later by what the ones before it took, beyond the least.
        limit: seconds after which a trial hangs. A fault that hangs is not tried again.
        lanes: trials at a time, each of another fault; those of one that is to be `alone` are made by themselves.
        package: where the faults are.
        progress: told before each trial.
    """
    start = time.monotonic()
    end = start + seconds
    tallies = [Tally(fault, fault.short if short else fault.trials) for fault in faults]

    with _Lanes(lanes, package, limit) as each:

        def attempt(tally: Tally) -> None:
            with each.worker(tally.fault) as worker:
                began = time.monotonic()
                progress(tally, began - start)
                answer = worker.try_fault(tally.fault, seed + tally.attempts)
                tally.add(seed + tally.attempts, answer, time.monotonic() - began)

        def insist(tally: Tally) -> None:
            while not tally.done and tally.attempts < max(tally.fault.least, 1):
                attempt(tally)

        def use(share: tuple[Tally, float]) -> None:
            tally, given = share
            until = min(time.monotonic() + given, end)
            if time.monotonic() + cost(tally) <= end:
                attempt(tally)
            while not tally.done and time.monotonic() + cost(tally) <= until:
                attempt(tally)

        each.do(insist, sorted(tallies, key=lambda tally: not tally.fault.alone))
        while waiting := [tally for tally in tallies if not tally.done and time.monotonic() + cost(tally) <= end]:
            given = shares(waiting, (end - time.monotonic()) * lanes)
            ready = [tally for tally in waiting if cost(tally) <= given[tally]] or [min(waiting, key=cost)]
            each.do(use, [(tally, given[tally]) for tally in ready])
    return tallies


class _Lanes:
    """Threads that make trials, each with a worker for each family. One lane is the caller's thread."""

    def __init__(self, count: int, package: str, limit: float) -> None:
        self._count = count
        self._package, self._limit = package, limit
        self._stack = contextlib.ExitStack()
        self._workers: dict[tuple[int, str], Worker] = {}
        self._free = threading.Condition()
        self._under_way = 0
        self._alone = 0
        """Lanes that wait to be alone."""
        self._here = threading.local()
        self._ended = False

    def __enter__(self) -> _Lanes:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def do(self, work: Callable[[T], None], items: Iterable[T]) -> None:
        """Calls it for each item, on whichever lane is free. If one fails, or the run is interrupted, no other is begun."""
        waiting = deque(items)

        def lane(number: int) -> None:
            self._here.lane = number
            while not self._ended:
                try:
                    item = waiting.popleft()
                except IndexError:
                    return
                work(item)

        if self._count == 1:
            lane(0)
            return
        with ThreadPoolExecutor(self._count) as pool:
            lanes = [pool.submit(lane, number) for number in range(self._count)]
            try:
                for each in lanes:
                    each.result()
            except BaseException:
                self._ended = True
                self._stack.close()  # ends the trials that are under way
                raise

    @contextlib.contextmanager
    def worker(self, fault: Fault) -> Generator[Worker]:
        """A worker of this lane, when the fault may be tried: one that is to be alone goes before others."""
        most = 0 if fault.alone else self._count - 1
        weight = self._count if fault.alone else 1
        with self._free:
            self._alone += fault.alone
            self._free.wait_for(lambda: self._under_way <= most and (fault.alone or not self._alone))
            self._alone -= fault.alone
            self._under_way += weight
            key = self._here.lane, fault.family
            if key not in self._workers:
                self._workers[key] = self._stack.enter_context(Worker(self._package, self._limit))
        try:
            yield self._workers[key]
        finally:
            with self._free:
                self._under_way -= weight
                self._free.notify_all()


def cost(tally: Tally) -> float:
    """Seconds that a trial takes, as the ones before it did."""
    return tally.seconds / max(tally.attempts, 1)


def shares(waiting: Sequence[Tally], seconds: float) -> dict[Tally, float]:
    """Divides time among faults that were tried at least once.

    One that needs less than an equal share gets what it needs, and what is left of its share goes to those that need more.

    Returns:
        Seconds for each; together no more than there are.
    """
    given: dict[Tally, float] = {}
    needs = {tally: cost(tally) * (tally.wanted - tally.attempts) for tally in waiting}
    for index, tally in enumerate(sorted(waiting, key=lambda tally: needs[tally])):
        given[tally] = min(needs[tally], max(seconds, 0.0) / (len(waiting) - index))
        seconds -= given[tally]
    return given
