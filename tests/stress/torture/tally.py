"""A tally: what became of all trials of a fault, one row of the table."""

from __future__ import annotations

import msgspec

from tests.stress.torture.fault import Fault, Outcome
from tests.stress.torture.trials import Answer


class Tally:
    """Adds up answers. Losses and events written twice are kept apart, as their sum would hide both."""

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
        said = list(outcome.problems)
        if outcome.lost > 0:
            said.insert(0, f"{outcome.lost:,} events lost without a count")
        if outcome.lost < 0:
            said.insert(0, f"{-outcome.lost:,} events written twice, or counted as dropped and written")
        if outcome.held_ns > self.fault.most_held_ns:
            said.append(f"the training thread was held for {outcome.held_ns / 1e9:.2f} s")
        self.hung |= any(problem.startswith("hung") for problem in said)
        self.problems += [f"trial {number}: {problem}" for problem in said]

    @property
    def done(self) -> bool:
        """Whether no further trial is worth while: all were made, it cannot be tried here, or it hangs."""
        return self.attempts >= self.wanted or bool(self.missing) or self.hung

    @property
    def cut_short(self) -> bool:
        """Whether there was no time for all trials."""
        return not self.done

    @property
    def good(self) -> bool:
        """Whether nothing was lost and everything was as promised."""
        return not self.lost and not self.problems
