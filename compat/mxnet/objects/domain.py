"""A domain: what tasks, frames, counters and markers are grouped by."""

from __future__ import annotations

from typing import Any

from stepscope.compat.mxnet.objects.counter import Counter
from stepscope.compat.mxnet.objects.durations import Frame, Task
from stepscope.compat.mxnet.objects.marker import Marker
from stepscope.compat.mxnet.objects.names import legal
from stepscope.runtime import _core


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
        """A task of this domain."""
        return Task(self, name, **arguments)

    def new_frame(self, name: str, /, **arguments: Any) -> Frame:
        """A frame of this domain."""
        return Frame(self, name, **arguments)

    def new_counter(self, name: str, value: float | None = None) -> Counter:
        """A counter of this domain."""
        return Counter(self, name, value)

    def new_marker(self, name: str) -> Marker:
        """A marker of this domain."""
        return Marker(self, name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Domain({self.name!r})"
