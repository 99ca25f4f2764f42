"""A run: tries every fault as often as it asks for, and shares the time by what they cost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from tests.torture.catalog import PACKAGE
from tests.torture.fault import Fault
from tests.torture.tally import Tally
from tests.torture.worker import LIMIT, Worker

Progress = Callable[[Tally, float], object]
"""Told of a fault that is about to be tried, and of the seconds since the run began."""


def torture(
    faults: Sequence[Fault],
    *,
    short: bool = False,
    seed: int = 0,
    seconds: float = 300.0,
    limit: float = LIMIT,
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
        package: where the faults are.
        progress: told before each trial.
    """
    start = time.monotonic()
    end = start + seconds
    tallies = [Tally(fault, fault.short if short else fault.trials) for fault in faults]
    workers: dict[str, Worker] = {}

    with contextlib.ExitStack() as stack:

        def attempt(tally: Tally) -> None:
            family = tally.fault.family
            if family not in workers:
                workers[family] = stack.enter_context(Worker(package, limit))
            began = time.monotonic()
            progress(tally, began - start)
            answer = workers[family].try_fault(tally.fault, seed + tally.attempts)
            tally.add(seed + tally.attempts, answer, time.monotonic() - began)

        for tally in tallies:
            while not tally.done and tally.attempts < max(tally.fault.least, 1):
                attempt(tally)
        while waiting := [tally for tally in tallies if not tally.done and time.monotonic() + cost(tally) <= end]:
            given = shares(waiting, end - time.monotonic())
            ready = [tally for tally in waiting if cost(tally) <= given[tally]] or [min(waiting, key=cost)]
            for tally in ready:
                until = min(time.monotonic() + given[tally], end)
                if time.monotonic() + cost(tally) <= end:
                    attempt(tally)
                while not tally.done and time.monotonic() + cost(tally) <= until:
                    attempt(tally)
    return tallies


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
