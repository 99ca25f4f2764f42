"""Domains, and the counters and markers in them."""

from __future__ import annotations

from typing import Any, Self

from stepscope.compat.mxnet.errors import one_of
from stepscope.compat.mxnet.objects.durations import Frame, Task
from stepscope.compat.mxnet.objects.forwarding import forwarding
from stepscope.compat.mxnet.objects.names import Named, domain_name, legal
from stepscope.runtime import _core
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.threads import locks

SCOPES = ("global", "process", "thread", "task", "marker")
_lock = locks.reentrant()
"""Guards all counters while one changes, so that no change is lost, and values are recorded in their order."""


class Counter:
    """Tracks a value, whole or not, of any sign and size.

    Args:
        domain: groups it.
        name: any text.
        value: what it begins with; without one it begins with 0, which is not recorded.

    Raises:
        TypeError: if the domain is none, the name no str, or the value no number.
    """

    def __init__(self, domain: Named, name: str, value: float | None = None) -> None:
        self.name = name
        self.domain = domain
        self._category = domain_name(domain)
        self._recorded = legal("counter", name)
        self._value: float = 0
        if value is not None:
            self.set_value(value)

    @property
    def value(self) -> float:
        """The current value; an int is exact, however large."""
        return self._value

    def set_value(self, value: float) -> None:
        """Sets the value.

        Raises:
            TypeError: if it is no number.
        """
        number = _number(value)
        with _lock:
            self._set(number)

    def increment(self, delta: float = 1) -> None:
        """Adds to the value; errors are those of `set_value`."""
        number = _number(delta)
        with _lock:
            self._set(self._value + number)

    def decrement(self, delta: float = 1) -> None:
        """Subtracts from the value, also below zero; errors are those of `set_value`."""
        number = _number(delta)
        with _lock:
            self._set(self._value - number)

    def _set(self, value: float) -> None:
        self._value = value
        _core.counter(self._recorded, value, category=self._category)

    def __iadd__(self, delta: float) -> Self:
        self.increment(delta)
        return self

    def __isub__(self, delta: float) -> Self:
        self.decrement(delta)
        return self

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Counter({self.name!r}, value={self._value!r})"


def _number(value: Any) -> float:
    """Converts a number of any library to int or float."""
    if isinstance(value, int | float):
        return value
    kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
    for method in ("__index__", "__float__"):
        convert = getattr(kind, method, None)
        if convert is not None:
            number: float = convert(value)
            return number
    raise TypeError(f"a counter takes numbers, {got(value)}")


class Marker:
    """Marks instants.

    Args:
        domain: groups it.
        name: any text.

    Raises:
        TypeError: if the domain is none, or the name no str.
    """

    def __init__(self, domain: Named, name: str) -> None:
        self.name = name
        self.domain = domain
        self._recorded = legal("marker", name)
        self._category = f"{domain_name(domain)},instant_marker"

    def mark(self, scope: str = "process", **arguments: Any) -> None:
        """Marks this moment.

        Args:
            scope: what it is about: `global`, `process`, `thread`, `task` or `marker`; the argument `scope` of the trace.
            arguments: numbers and texts that the trace shows.

        Raises:
            MXNetValueError: for another scope.
        """
        one_of("scope", scope, SCOPES)
        _core.instant(self._recorded, category=self._category, **{**arguments, "scope": scope})
        if forwarding.to is not None:
            forwarding.mark(self.name, self._category)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Marker({self.name!r})"


class Domain:
    """Groups objects: its name is the category of their events. Two of one name are one group.

    Args:
        name: any text, also none. A process can have about a thousand categories; a domain takes up to three.

    Raises:
        TypeError: if the name is no str.
    """

    def __init__(self, name: str) -> None:
        _core.category(legal("domain", name))
        self.name = name

    def new_task(self, name: str, /, **arguments: Any) -> Task:
        """Makes a task of this domain."""
        return Task(self, name, **arguments)

    def new_frame(self, name: str, /, **arguments: Any) -> Frame:
        """Makes a frame of this domain."""
        return Frame(self, name, **arguments)

    def new_counter(self, name: str, value: float | None = None) -> Counter:
        """Makes a counter of this domain."""
        return Counter(self, name, value)

    def new_marker(self, name: str) -> Marker:
        """Makes a marker of this domain."""
        return Marker(self, name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Domain({self.name!r})"
