"""Forwards tasks, frames, events and markers to another tool."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Forward(Protocol):
    """Another tool that gets ranges and marks, on the thread of the program. After its first error it gets no more."""

    def start(self, name: str, category: str) -> object:
        """Begins a range. `stop` gets the returned object."""

    def stop(self, started: Any) -> None:
        """Ends a range."""

    def mark(self, name: str, category: str) -> None:
        """Marks an instant."""


class NvtxForward:
    """Forwards to NVIDIA's tools, by the package `nvtx`; categories become its domains.

    Raises:
        ImportError: if the package is not installed.
    """

    def __init__(self) -> None:
        try:
            self._nvtx: Any = importlib.import_module("nvtx")
        except ModuleNotFoundError as error:
            raise ImportError("NvtxForward needs the package nvtx: pip install nvtx", name="nvtx") from error

    def start(self, name: str, category: str) -> object:
        return self._nvtx.start_range(message=name, domain=category or None)

    def stop(self, started: Any) -> None:
        if started is not None:  # nothing is attached to that domain
            self._nvtx.end_range(started)

    def mark(self, name: str, category: str) -> None:
        self._nvtx.mark(message=name, domain=category or None)


class Forwarding:
    """The tool that ranges and marks are forwarded to, and what it raised."""

    def __init__(self) -> None:
        self.to: Forward | None = None
        self.error: Exception | None = None
        """The tool's first error, after which nothing is forwarded to it any more."""

    def start(self, name: str, category: str) -> object:
        """Forwards a begin. Returns what the tool returned, `None` if it failed."""
        return self._call(lambda to: to.start(name, category))

    def stop(self, started: object) -> None:
        """Forwards an end."""
        self._call(lambda to: to.stop(started))

    def mark(self, name: str, category: str) -> None:
        """Forwards an instant."""
        self._call(lambda to: to.mark(name, category))

    def _call(self, call: Callable[[Forward], object]) -> object:
        try:
            return None if self.to is None else call(self.to)
        except Exception as error:
            self.to, self.error = None, error
            return None


forwarding = Forwarding()
"""The tool of this process; `set_config(forward=...)` names it."""
