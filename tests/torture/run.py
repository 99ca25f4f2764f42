"""A run: tries every fault as often as it asks for, and shares the time among families."""

from __future__ import annotations

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

    Each is tried as often as its `least` says, whatever that takes. The time that is left is divided equally among the families that are left; in a family
    the faults take turns. What a family does not need goes to the later ones, and then to those that were cut short.

    Args:
        faults: what to try.
        short: as often as the tests do.
        seed: number of the first trial of each fault.
        seconds: for everything; what is under way then is finished.
        limit: seconds after which a trial hangs. A fault that hangs is not tried again.
        package: where the faults are.
        progress: told before each trial.
    """
    start = time.monotonic()
    tallies = [Tally(fault, fault.short if short else fault.trials) for fault in faults]
    families = list(dict.fromkeys(fault.family for fault in faults))

    def turns(own: list[Tally], until: float, worker: Worker) -> None:
        def waits(tally: Tally) -> bool:
            return not tally.done and (tally.attempts < tally.fault.least or time.monotonic() < until)

        while waiting := [tally for tally in own if waits(tally)]:
            for tally in waiting:
                began = time.monotonic()
                if tally.attempts >= tally.fault.least and began >= until:
                    continue
                progress(tally, began - start)
                number = seed + tally.attempts
                answer = worker.try_fault(tally.fault, number)
                tally.add(number, answer, time.monotonic() - began)

    for again in (False, True):
        for index, family in enumerate(families):
            own = [tally for tally in tallies if tally.fault.family == family]
            left = start + seconds - time.monotonic()
            share = left if again else left / (len(families) - index)
            if all(tally.done for tally in own):
                continue
            with Worker(package, limit) as worker:
                turns(own, time.monotonic() + max(share, 0), worker)
    return tallies
