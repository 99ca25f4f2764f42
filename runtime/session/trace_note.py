"""Entry of a run's note for a trace that is being written. It says how to write the same trace anew, if the process is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec


class TraceNote(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One file that was not complete, of one exporter. Names below the run's directory are relative to it."""

    first: str
    """Where the complete file goes; of several that follow each other, the first."""
    format: str
    """The exporter: `chrome`, `perfetto` or `parquet`."""
    arguments: dict[str, str | int | bool | None] = {}
    """Its arguments, but for the path."""
    number: int = 0
    """How many files of this series are complete."""
    window: int | None = None
    """The one window that it has; `None`: all of the run."""
    file: str = ""
    """The file that is being written."""


class NoteOutput(Protocol):
    """Notes that a file is begun, or complete."""

    def __call__(self, file: Path, being_written: bool, trace: TraceNote | None = None) -> None:
        """
        Args:
            file: its name.
            being_written: `True` before it is begun, `False` when it is complete.
            trace: how it can be written anew from the run's journal, if it can.
        """
        ...


def note_nothing(file: Path, being_written: bool, trace: TraceNote | None = None) -> None:
    """A `NoteOutput` for files that recovery need not know of, or that are noted otherwise."""
