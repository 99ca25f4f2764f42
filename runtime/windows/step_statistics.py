"""Statistics of steps in fixed memory, for the head of `summary()`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.display.text_table import human_time
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind, empty_block
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, Facts, join_facts
from stepscope.runtime.windows.step_parts import UNCOVERED, durations, is_uncovered, parts_of

FIRST_STEPS = 5
"""First steps, which are not judged: caches are cold, code compiles."""
_MOST_PIECES = 64
SHOWN_FROM_NS = 1_000_000_000
"""Startup and shutdown are shown if they take this long."""
LAST_STEPS = 1024
"""Number of last steps whose facts stay in memory, 240 bytes each."""
STEPS_END = "steps_end"
"""Key of a run's metadata: what ends its steps, if that is not the program."""
OPTIMIZER = "optimizer"
"""Its value if each call of an optimizer's step() ends a step. The begin of the loop is unknown then, so the time until the end
of step 0, with `import torch` and more, is startup and no step."""


class StepStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the steps of a rank, times in ns."""

    steps: int
    steady: int
    """Judged steps: all but the first ones."""
    mean: float
    p50: float
    p95: float
    rate: float
    """Steps a second."""
    slowest: int
    """Number of the slowest steady step."""
    slowest_ns: float
    slowest_why: str
    """The part that took longer than usual in it."""


class Part(msgspec.Struct, frozen=True, gc=False):
    """A part of the judged steps. All parts add up to their time."""

    name: str
    total_ns: int
    share: float
    """Of the time of these steps, from 0 to 1."""


def first_steps(count: int) -> int:
    """How many of `count` steps are not judged."""
    return min(FIRST_STEPS, count // 4)


def begins_with_startup(metadata: Mapping[str, Any]) -> bool:
    """Whether step 0 of a run with these metadata is startup: see `OPTIMIZER`."""
    return metadata.get(STEPS_END) == OPTIMIZER


def startup_step(facts: Facts, metadata: Mapping[str, Any]) -> bool:
    """Whether the first of these steps is startup."""
    return bool(len(facts)) and int(facts["step"][0]) == 0 and begins_with_startup(metadata)


def statistics_of(facts: Facts, judged: Facts) -> StepStatistics:
    """Statistics of steps, of which some are judged. Raises `ValueError` if none is."""
    running = _Running()
    running.add(judged)
    return running.statistics(len(facts), judged)


def difference(judged: Facts, step: Any) -> str:
    """Text on the part that took more time in one step than the median; empty if the step took no longer."""
    excess = float(step["end"] - step["begin"] - np.median(durations(judged)))
    if excess <= 0:
        return ""
    own: Any = np.zeros(1, FACTS_DTYPE)
    own[0] = step
    parts, usual = parts_of(own), parts_of(judged)
    more = {
        name: float(parts[name][0] if name in parts else 0) - (float(np.median(usual[name])) if name in usual else 0.0)
        for name in {**usual, **parts}
    }
    name = max(more, key=lambda each: more[each])
    if more[name] < 0.5 * excess:
        return "no single part"
    if name == UNCOVERED:
        return f"{human_time(more[name])} more in time that no span covers"
    return f"{human_time(more[name])} more in {name}"


class _Running:
    """Sums over steps, in fixed memory."""

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0
        self.parts: dict[str, int] = {}
        self.slowest: Any = None
        self._times = _core.Aggregates()

    def add(self, facts: Facts) -> None:
        """Adds steps, in the order of their times."""
        if not len(facts):
            return
        lengths = durations(facts)
        self.count += len(facts)
        self.ns += int(lengths.sum())
        for name, column in parts_of(facts).items():
            self.parts[name] = self.parts.get(name, 0) + int(column.sum())
        self._update_slowest(facts[int(np.argmax(lengths))])
        block: Any = empty_block(len(facts))
        block["kind"], block["name"], block["dur"] = Kind.SPAN, _NAME, lengths
        self._times.update(block)

    def merge(self, other: _Running) -> None:
        """Adds the sums of later steps."""
        self.count += other.count
        self.ns += other.ns
        for name, ns in other.parts.items():
            self.parts[name] = self.parts.get(name, 0) + ns
        if other.slowest is not None:
            self._update_slowest(other.slowest)
        self._times.merge(other._times)

    def statistics(self, steps: int, last: Facts) -> StepStatistics:
        """Statistics of these steps, with the facts of the last ones, and the number of all, including those that are not
        judged. Quantiles are exact if `last` has all of them, else off by less than 1/128. Raises `ValueError` if there are
        no steps."""
        if not self.count:
            raise ValueError("there are no statistics of no steps")
        if len(last) >= self.count:
            lengths = durations(last)
            p50, p95 = float(np.median(lengths)), float(np.quantile(lengths, 0.95))
        else:
            p50, p95 = self._times.rows()[0][7:9]
        mean = self.ns / self.count
        return StepStatistics(
            steps=steps,
            steady=self.count,
            mean=mean,
            p50=p50,
            p95=p95,
            rate=1e9 / mean if mean else 0.0,
            slowest=int(self.slowest["step"]),
            slowest_ns=float(self.slowest["end"] - self.slowest["begin"]),
            slowest_why=difference(last, self.slowest),
        )

    def nbytes(self) -> int:
        return self._times.nbytes()

    def _update_slowest(self, step: Any) -> None:
        """Remembers the step if it is longer, or as long and earlier: steps may be added in any order."""
        if self.slowest is None or _longest_first(step) < _longest_first(self.slowest):
            self.slowest = step.copy()


def _longest_first(step: Any) -> tuple[int, int]:
    return int(step["begin"] - step["end"]), int(step["begin"])


_NAME = strings.intern("step")


class StepTotals:
    """Statistics of the steps of a window, or of many. `optimizer`: an optimizer's step() ends the steps, so that step 0 is
    startup."""

    def __init__(self, *, optimizer: bool = False) -> None:
        self.optimizer = optimizer
        self.count = 0
        self.ns = 0
        """Of all steps."""
        self.startup_ns = 0
        """Before the first step."""
        self.shutdown_ns = 0
        """After the last."""
        self.first: Facts = np.zeros(0, FACTS_DTYPE)
        """The first steps, which may not be judged."""
        self.running = _Running()
        """All others."""
        self._last: tuple[Facts, ...] = ()

    def add(self, facts: Facts) -> None:
        """Adds steps, in the order of their times."""
        if self.optimizer and not self.count and len(facts) and int(facts["step"][0]) == 0:
            self.startup_ns += int(durations(facts[:1])[0])
            facts = facts[1:]
        if not len(facts):
            return
        self._add(facts)
        self._last = _newest((*self._last, facts))

    def _add(self, facts: Facts) -> None:
        self.count += len(facts)
        self.ns += int(durations(facts).sum())
        room = FIRST_STEPS - len(self.first)
        if room > 0:
            self.first = join_facts((self.first, facts[:room])) if len(self.first) else facts[:room].copy()
        self.running.add(facts[max(room, 0) :])

    def merged(self, *later: StepTotals) -> StepTotals:
        """Statistics of all of these, which are in the order of their times. None of them changes."""
        made = StepTotals()
        totals = (self, *later)
        made._add(join_facts([one.first for one in totals if len(one.first)]))
        for one in totals:
            made.startup_ns += one.startup_ns
            made.shutdown_ns += one.shutdown_ns
            if one.running.count:
                made.running.merge(one.running)
                made.count += one.running.count
                made.ns += one.running.ns
        made._last = _newest(tuple(facts for one in totals for facts in one._last))
        return made

    @property
    def last(self) -> Facts:
        """The last steps, at most `LAST_STEPS`."""
        return join_facts(self._last)[-LAST_STEPS:]

    @property
    def judged(self) -> int:
        """How many steps are judged."""
        return self.count - first_steps(self.count)

    def of_judged(self) -> tuple[StepStatistics | None, tuple[Part, ...]]:
        """Statistics of the judged steps, and their parts: the largest first, uncovered time last."""
        if not self.judged:
            return None, ()
        running = _Running()
        running.add(self.first[first_steps(self.count) :])
        running.merge(self.running)
        parts = [Part(name, ns, ns / (running.ns or 1)) for name, ns in running.parts.items()]
        parts.sort(key=lambda part: (is_uncovered(part.name), -part.total_ns, part.name))
        return running.statistics(self.count, self.last[-self.judged :]), tuple(parts)

    def nbytes(self) -> int:
        return self.first.nbytes + sum(facts.nbytes for facts in self._last) + self.running.nbytes()


def _newest(pieces: tuple[Facts, ...]) -> tuple[Facts, ...]:
    """Pieces with the last steps. They are not joined each time, as most windows are short."""
    if len(pieces) <= _MOST_PIECES and sum(map(len, pieces)) <= 2 * LAST_STEPS:
        return pieces
    joined = join_facts(pieces)
    return (joined[-LAST_STEPS:].copy(),)
