"""A run: tries every fault as often as it asks for, while there is time; and what became of each, one row of the table."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from tests.stress.torture.fault import PACKAGE, Fault, Outcome
from tests.stress.torture.trials import Answer
from tests.stress.torture.worker import LIMIT, Worker


class Tally:
    """Adds up answers. Losses and events written twice stay separate, as their sum would hide both."""

    def __init__(self, fault: Fault, wanted: int) -> None:
        self.fault = fault
        self.wanted = wanted
        """Trials asked for."""
        self.attempts = 0
        """Trials made; one may count as several in its outcome."""
        self.outcome = Outcome(tried=0)
        self.lost = 0
        """Events missing without a count."""
        self.problems: list[str] = []
        self.missing = ""
        """Why it cannot be tried here."""
        self.hung = False
        self.seconds = 0.0

    def add(self, number: int, answer: Answer, seconds: float) -> None:
        """Takes the answer of trial `number`, which took so many seconds."""
        outcome = answer.outcome
        self.attempts += 1
        self.seconds += seconds
        self.missing = answer.missing
        self.outcome += msgspec.structs.replace(outcome, problems=())
        self.lost += max(outcome.lost, 0)
        problems = list(outcome.problems)
        if outcome.lost > 0:
            problems.insert(0, f"{outcome.lost:,} events lost without a count")
        if outcome.lost < 0:
            problems.insert(0, f"{-outcome.lost:,} events written twice, or counted as dropped and written")
        if outcome.blocked_ns > self.fault.most_blocked_ns:
            problems.append(f"the training thread was blocked for {outcome.blocked_ns / 1e9:.2f} s")
        self.hung |= any(problem.startswith("hung") for problem in problems)
        self.problems += [f"trial {number}: {problem}" for problem in problems]

    @property
    def done(self) -> bool:
        """Whether no further trial is worth while: all were made, it cannot be tried here, or it hangs."""
        return self.attempts >= self.wanted or bool(self.missing) or self.hung

    @property
    def cost(self) -> float:
        """Seconds that a trial takes, as the ones before it did."""
        return self.seconds / max(self.attempts, 1)

    @property
    def cut_short(self) -> bool:
        """Whether there was no time for all trials."""
        return not self.done

    @property
    def good(self) -> bool:
        """Whether nothing was lost and everything was as promised."""
        return not self.lost and not self.problems


Progress = Callable[[Tally, float], object]
"""Called for a fault that is about to be tried, with the seconds since the run began."""


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

    Each is tried as often as its `least` says, at any cost; that also shows what a trial costs. Then those that need least
    time are tried to their end first, so that as many faults as possible are tried as often as they ask for.

    Args:
        faults: what to try.
        short: as often as the tests do.
        seed: number of the first trial of each fault.
        seconds: for everything. No trial is begun that would end later by what the ones before it took, beyond the least.
        limit: seconds after which a trial hangs. A fault that hangs is not tried again.
        lanes: trials at a time, each of another fault; those of one that is to be `alone` are made by themselves.
        package: where the faults are.
        progress: called before each trial.
    """
    start = time.monotonic()
    tallies = [Tally(fault, fault.short if short else fault.trials) for fault in faults]
    here = threading.local()
    ended = threading.Event()
    with ThreadPoolExecutor(lanes) as pool, contextlib.ExitStack() as workers:

        def attempt(tally: Tally) -> None:
            own: dict[str, Worker] = vars(here)
            if tally.fault.family not in own:
                own[tally.fault.family] = workers.enter_context(Worker(package, limit))
            began = time.monotonic()
            progress(tally, began - start)
            answer = own[tally.fault.family].try_fault(tally.fault, seed + tally.attempts)
            tally.add(seed + tally.attempts, answer, time.monotonic() - began)

        def insist(tally: Tally) -> None:
            while not (ended.is_set() or tally.done) and tally.attempts < max(tally.fault.least, 1):
                attempt(tally)

        def go_on(tally: Tally) -> None:
            while not (ended.is_set() or tally.done) and time.monotonic() + tally.cost <= start + seconds:
                attempt(tally)

        for work in (insist, go_on):
            ordered = sorted(tallies, key=lambda tally: tally.cost * (tally.wanted - tally.attempts))
            tried = [pool.submit(work, tally) for tally in ordered if not tally.fault.alone]
            try:
                for each in tried:
                    each.result()
            except BaseException:
                ended.set()
                workers.close()  # ends the trials that are under way
                raise
            for tally in ordered:
                if tally.fault.alone:
                    work(tally)
    return tallies
