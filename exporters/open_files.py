"""State of exporters of trace files: the run that is written, and its open files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from stepscope.exporters.completion import complete_all
from stepscope.exporters.output import delete_files
from stepscope.exporters.trace_file import about_run
from stepscope.runtime.errors import ClosedError
from stepscope.runtime.export.exporter import Lost
from stepscope.runtime.export.run import Run


class CountedFile(Protocol):
    """A file, or several that follow each other, and how many events it holds."""

    @property
    def written(self) -> int: ...

    def take_lost(self, window: int | None) -> Iterable[Lost]: ...


F = TypeVar("F", bound=CountedFile)


class OpenFiles(ABC, Generic[F]):
    """Files of one run by key, which is the window where every window has its own; complete ones can be deleted.

    Counts the events in them (`Counting`).
    """

    def __init__(self, name: str, *, by_window: bool) -> None:
        """Args: name of the exporter; whether every window has its own file."""
        self.name = name
        self._by_window = by_window
        self._closed_events = 0
        self._lost: list[Lost] = []
        self._run: Run | None = None
        self._open: dict[int, F] = {}
        self._complete_files: dict[int, list[Path]] = {}

    @property
    def written(self) -> int:
        """Events written so far, into all files."""
        return self._closed_events + sum(file.written for file in self._open.values())

    def take_lost(self) -> list[Lost]:
        """Events that were written and are lost since the last call."""
        for key, file in self._open.items():
            self._lost += file.take_lost(key if self._by_window else None)
        lost, self._lost = self._lost, []
        return lost

    def _close(self, key: int) -> None:
        """A file is not open any more."""
        file = self._open.pop(key)
        self._lost += file.take_lost(key if self._by_window else None)
        self._closed_events += file.written

    async def discard_window(self, window: int) -> None:
        """Deletes the files of a window, if every window has its own; from a file of all windows none is taken out.

        Raises:
            OutputError: if the system refused.
        """
        await delete_files(self._complete_files.pop(window, ()))

    async def aclose(self) -> None:
        """Completes what is open. A cancelled call still completes what it can within half a second."""
        if self._run is None:
            return
        about = about_run(self._run)
        try:
            await complete_all(lambda: self._open, lambda key: self._complete(key, about))
        finally:
            self._run = None

    def _opened(self) -> Run:
        if self._run is None:
            raise ClosedError(f"{self.name} is not open")
        return self._run

    @abstractmethod
    async def _complete(self, key: int, args: Mapping[str, Any], at: int | None = None) -> None:
        """Writes the end of one file, which is not open any more then; goes on where a cancelled call was.

        Args:
            key: of the file.
            args: of its last event.
            at: monotonic time of that in ns; by default that of the event before.
        """
