"""A diary: the program's actions so far, stored without the runtime, so that it survives any end of the program."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope import span

LANES = 16
NUMBERS = 1 << 18
"""Spans of one lane."""

_HEAD = 512
"""Numbers before the first lane: one page."""
_HELD, _STEPS, _ENDING = range(3)

Times = NDArray[np.int64]


def lane_name(number: int) -> str:
    """The name of the spans of a lane."""
    return f"lane {number}"


class Diary:
    """Two times for each span of each lane: when its enter, and when its exit had returned; 0 while they have not.

    A lane is a thread or task. The file is mapped, so a store into it is done when the next instruction runs. Times are
    ns of the monotonic clock, as those of events.

    Args:
        path: the file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        size = 8 * (_HEAD + 2 * LANES * NUMBERS)
        with path.open("a+b") as file:
            file.truncate(size)
            self._numbers = memoryview(mmap.mmap(file.fileno(), size)).cast("q")

    def lane(self, number: int) -> tuple[Times, Times]:
        """When each span of a lane was entered and left, up to its last one."""
        at = _HEAD + 2 * NUMBERS * number
        times: Times = np.array(self._numbers[at : at + 2 * NUMBERS], np.int64).reshape(-1, 2)
        count = int(np.count_nonzero(times[:, 0]))
        return times[:count, 0], times[:count, 1]

    def claim(self, lane: int, number: int, entered: int, left: int) -> None:
        """Notes a span that nobody has recorded."""
        at = _HEAD + 2 * (NUMBERS * lane + number)
        self._numbers[at], self._numbers[at + 1] = entered, left

    def writer(self, number: int) -> Lane:
        """The hand that writes one lane."""
        return Lane(self._numbers, number)

    @property
    def blocked_ns(self) -> int:
        """The longest call of the runtime on the training thread."""
        return self._numbers[_HELD]

    @property
    def steps(self) -> int:
        """Calls of `step()` that have returned."""
        return self._numbers[_STEPS]

    @property
    def ending_ns(self) -> int:
        """When the program was about to end; 0 if it was not."""
        return self._numbers[_ENDING]

    def step(self, step: Callable[[], object]) -> None:
        """Calls `step` and notes it."""
        began = time.monotonic_ns()
        step()
        self._numbers[_HELD] = max(self._numbers[_HELD], time.monotonic_ns() - began)
        self._numbers[_STEPS] += 1

    def about_to_end(self) -> None:
        """Notes the time."""
        self._numbers[_ENDING] = time.monotonic_ns()


class Lane:
    """Records spans and notes them; used by one thread or task."""

    def __init__(self, numbers: memoryview[int], lane: int) -> None:
        self._numbers = numbers
        self._at = _HEAD + 2 * NUMBERS * lane
        self._name = lane_name(lane)
        self._next = 0
        self._training = lane == LANES - 1

    @property
    def full(self) -> bool:
        """Whether the lane has no room for more spans."""
        return self._next >= NUMBERS - 4096

    @contextmanager
    def span(self, **arguments: Any) -> Generator[None]:
        """A span with its number among its arguments, noted after its enter and after its exit."""
        number, self._next = self._next, self._next + 1
        recorded = span(self._name, n=number, **arguments)
        at = self._at + 2 * number
        began = time.monotonic_ns()
        recorded.__enter__()
        self._numbers[at] = now = time.monotonic_ns()
        self._note(now - began)
        try:
            yield
        finally:
            began = time.monotonic_ns()
            recorded.__exit__(None, None, None)
            self._numbers[at + 1] = now = time.monotonic_ns()
            self._note(now - began)

    def _note(self, took: int) -> None:
        if self._training and took > self._numbers[_HELD]:
            self._numbers[_HELD] = took
