"""A diary: what a program has done so far, kept outside of the runtime, so that it survives whatever ends the program."""

from __future__ import annotations

import mmap
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope import span

LANES = 16
NUMBERS = 1 << 20
"""Spans of one lane."""

ENTERED, LEFT = 1, 2


def lane_name(number: int) -> str:
    """What the spans of a lane are called."""
    return f"lane {number}"


class Diary:
    """One byte for each span of each lane: nothing, `ENTERED` when its enter has returned, `LEFT` when its exit has.

    A lane is a thread or task. The file is mapped, so a store into it is done when the next instruction runs.

    Args:
        path: the file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(LANES * NUMBERS)
            self._bytes = mmap.mmap(file.fileno(), LANES * NUMBERS)

    def lane(self, number: int) -> bytes:
        """What is noted of one lane, up to its last span."""
        return self._bytes[number * NUMBERS : (number + 1) * NUMBERS].rstrip(b"\0")

    def writer(self, number: int) -> Lane:
        """The hand that writes one lane."""
        return Lane(self._bytes, number)


class Lane:
    """Records spans and notes them; used by one thread or task."""

    def __init__(self, notes: mmap.mmap, number: int) -> None:
        self._notes = notes
        self._at = number * NUMBERS
        self._name = lane_name(number)
        self._next = 0

    @property
    def full(self) -> bool:
        """Whether the lane has no room for more spans."""
        return self._next >= NUMBERS - 256

    @contextmanager
    def span(self, **arguments: Any) -> Generator[None]:
        """A span with its number among its arguments, noted before and after."""
        number, self._next = self._next, self._next + 1
        recorded = span(self._name, n=number, **arguments)
        recorded.__enter__()
        self._notes[self._at + number] = ENTERED
        try:
            yield
        finally:
            recorded.__exit__(None, None, None)
            self._notes[self._at + number] = LEFT
