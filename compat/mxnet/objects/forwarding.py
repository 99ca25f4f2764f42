"""Forwarding to other tools: what is started and stopped here is told to them as well."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Forward(Protocol):
    """Who is told, besides, on the thread of the program. What it raises is kept, and it is asked no more."""

    def start(self, name: str, category: str) -> object:
        """A range begins; what is returned is given to `stop`."""
        ...

    def stop(self, started: Any) -> None:
        """That range ends."""
        ...

    def mark(self, name: str, category: str) -> None:
        """An instant."""
        ...


class NvtxForward:
    """Tells NVIDIA's tools, by the package `nvtx`; categories become its domains.

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
    """Who is told now, and what went wrong with it."""

    def __init__(self) -> None:
        self.to: Forward | None = None
        self.error: Exception | None = None
        """What it raised; it was let go then."""

    def start(self, name: str, category: str) -> object:
        """Tells of a begin; what the tool returned, `None` if it failed."""
        try:
            return None if self.to is None else self.to.start(name, category)
        except Exception as error:
            self._fail(error)
            return None

    def stop(self, started: object) -> None:
        """Tells of an end."""
        try:
            if self.to is not None:
                self.to.stop(started)
        except Exception as error:
            self._fail(error)

    def mark(self, name: str, category: str) -> None:
        """Tells of an instant."""
        try:
            if self.to is not None:
                self.to.mark(name, category)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.to, self.error = None, error


forwarding = Forwarding()
"""Of this process; `set_config(forward=...)` says who is told."""
