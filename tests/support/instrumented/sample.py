"""A module with everything that can be instrumented, and what cannot."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from math import sqrt
from types import SimpleNamespace

IMPORTED = sqrt
CONSTANT = 3
NAMESPACE = SimpleNamespace(value=1)


def add(first: int, /, second: int = 2, *more: int, scale: int = 1, **rest: int) -> int:
    """Adds."""
    return (first + second + sum(more) + sum(rest.values())) * scale


also_add = add


def fail() -> None:
    """Raises."""
    raise ValueError("fails")


def count(limit: int) -> Iterator[int]:
    """Yields."""
    yield from range(limit)


async def wait(value: int) -> int:
    """Waits."""
    return value


async def stream(limit: int) -> AsyncIterator[int]:
    """Streams."""
    for number in range(limit):
        yield number


@functools.lru_cache
def cached(value: int) -> int:
    """Caches."""
    return value


partial = functools.partial(add, 1)


class Base:
    """Has methods of every kind."""

    factor = 2

    def __init__(self) -> None:
        self.made = True

    def __call__(self, value: int) -> int:
        return value

    def method(self, value: int) -> int:
        """Multiplies."""
        return self.factor * value

    @classmethod
    def of_class(cls) -> str:
        """Class method."""
        return cls.__name__

    @staticmethod
    def static(value: int) -> int:
        """Static method."""
        return -value

    @property
    def half(self) -> float:
        """Half."""
        return self._half if hasattr(self, "_half") else self.factor / 2

    @half.setter
    def half(self, value: float) -> None:
        self._half = value

    @functools.cached_property
    def slow(self) -> int:
        """Cached property."""
        return 7

    async def later(self) -> int:
        """Coroutine."""
        return self.factor

    def each(self) -> Iterator[int]:
        """Generator."""
        yield self.factor

    class Inner:
        """Nested."""

        def deep(self) -> str:
            """Deep."""
            return "deep"


class Derived(Base):
    """Overrides one method."""

    def method(self, value: int) -> int:
        """Adds one."""
        return super().method(value) + 1


@dataclass
class Point:
    """Has methods that are generated."""

    x: int
    y: int = 0

    def norm(self) -> int:
        """Norm."""
        return abs(self.x) + abs(self.y)
