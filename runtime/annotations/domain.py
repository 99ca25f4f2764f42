"""Domains: user events under one category."""

from __future__ import annotations

from stepscope.runtime import _core


class Domain:
    """Records events in one category, so that tables and filters can separate a library's events from others.

    Args:
        name: the category; there can be about a thousand different ones in a process.

    Raises:
        TypeError: if the name is no str.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        _core.category(name)
        self.name = name

    def span(self, name: str, /, **arguments: object) -> _core.span:
        """Makes a span of this domain, like `stepscope.span`."""
        return _core.span(name, category=self.name, **arguments)

    def instant(self, name: str, /, **arguments: object) -> None:
        """Records an instant of this domain, like `stepscope.instant`."""
        _core.instant(name, category=self.name, **arguments)

    def counter(self, name: str, value: float, /) -> None:
        """Records a value of a counter of this domain, like `stepscope.counter`."""
        _core.counter(name, value, category=self.name)

    def flow(self, name: str, id: int, phase: str, /) -> None:
        """Records an end of a flow of this domain, like `stepscope.flow`."""
        _core.flow(name, id, phase, category=self.name)

    def __repr__(self) -> str:
        return f"Domain({self.name!r})"
