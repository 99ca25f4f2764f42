"""The meter: measures the cost of recording by counting events and reading the processor clocks of the runtime's threads."""

from __future__ import annotations

import contextlib
import functools
import threading
import time

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.events.record import Block
from stepscope.runtime.events.survey import survey
from stepscope.runtime.loop_threads.loop_thread import is_own

OPERATOR_SPANS = 6.5
"""Cost of an operator in spans: most of it is the work of the framework to report it. Measured with `aten::add` of torch
2.13 (docs/performance.md)."""

ARGUMENTS = {"number": 1, "text": "some text"}
"""Arguments that the measurement encodes."""


class EventCosts(msgspec.Struct, frozen=True):
    """Cost of recording one event, in ns, in addition to the cost of the same call while nothing records."""

    span: float
    instant: float
    """Cost of an instant, a counter's value or an end of a flow."""
    operator: float
    arguments: float
    """Added where an event has more arguments than one small number."""


@functools.cache
def event_costs() -> EventCosts:
    """Measures the costs on this machine, once in a process. Takes about a millisecond."""
    span, instant = _core.event_costs()
    start = _core.now()
    for _ in range(64):
        _core.encode_arguments(ARGUMENTS)
    return EventCosts(span, instant, OPERATOR_SPANS * span, (_core.now() - start) / 64)


class RuntimeCpuClock:
    """Processor time of the runtime's threads."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._total = 0

    def read(self, threads: list[threading.Thread]) -> int:
        """Returns the processor time of those threads that are the runtime's since the first reading, in ns. The time of a
        thread between the last reading and its end is missing."""
        # eventlet's stand-in for the main thread has no number.
        numbers = (getattr(thread, "native_id", None) for thread in threads if is_own(thread))
        alive = {number for number in numbers if number}
        first = not self._seen
        for native in alive:
            # The clock of another thread (clock_gettime(2)). Unlike the result of pthread_getcpuclockid(), it can be read
            # after the thread has ended: the call fails then.
            with contextlib.suppress(OSError):
                now = time.clock_gettime_ns((~native << 3) | 6)
                self._total += 0 if first else now - self._seen.get(native, 0)
                self._seen[native] = now
        for native in self._seen.keys() - alive:
            self._seen.pop(native, None)  # a signal handler that reads as well may have been here
        return self._total


class EventCounts(msgspec.Struct):
    """Number of events of one profiler, by cost."""

    spans: int = 0
    instants: int = 0
    operators: int = 0
    arguments: int = 0
    steps: int = 0

    def add(self, events: Block, *, low: bool = False) -> None:
        """Counts a block. `low`: they are all operators, whatever their flags say."""
        if low:
            self.operators += len(events)
            return
        found = survey(events)
        self.operators += found.operators
        self.spans += found.spans + found.lost  # an event that overflowed has cost nearly as much as a recorded one
        self.steps += found.steps
        self.instants += found.others
        self.arguments += found.arguments

    def minus(self, other: EventCounts) -> EventCounts:
        return EventCounts(*(getattr(self, name) - getattr(other, name) for name in self.__struct_fields__))

    @property
    def total(self) -> int:
        """All events and step marks."""
        return self.spans + self.instants + self.operators + self.steps

    @property
    def events(self) -> int:
        """Events of the program, operators and step marks not included."""
        return self.spans + self.instants

    def training_ns(self, costs: EventCosts) -> float:
        """Time that the events, including operators, took on the program's threads."""
        return (
            self.spans * costs.span
            + self.instants * costs.instant
            + self.operators * costs.operator
            + self.arguments * costs.arguments
        )
