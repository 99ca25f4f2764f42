"""The records of an agreement, each a file of the run's directory; every one is written in one step and never changed.

wish-KEY          somebody asks for a window; the key makes equal wishes one
proposal-N        the leader takes up a wish
step-N-RANK       at which step the rank is, and how fast it goes
start-N           the leader's choice of steps
armed-N-RANK      the rank will record them if it is decided so, or why it cannot
decision-N        committed or aborted; the first that is written counts
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from stepscope.runtime.control.file_reading import create_once
from stepscope.runtime.control.job_directory import read_record
from stepscope.runtime.control.window_request import WindowRequest

T = TypeVar("T", bound=msgspec.Struct)

KEPT = 16
"""Proposals whose records are kept; older ones are deleted."""


class Wish(msgspec.Struct, frozen=True, omit_defaults=True):
    """A window that somebody asks for."""

    request: WindowRequest
    trigger: str
    proposal: int = 0
    """The one that took it up; 0: none yet."""


class Proposal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The leader asks where everybody is."""

    number: int
    key: str
    request: WindowRequest
    trigger: str
    attempt: int = 0
    least: int = 0
    """No step before this one can be the first, as the attempt before has shown."""


class AtStep(msgspec.Struct, frozen=True):
    """Where a rank is."""

    rank: int
    step: int
    rate: float
    """Steps per second, lately."""


class Start(msgspec.Struct, frozen=True, omit_defaults=True):
    """The steps that the leader has chosen."""

    request: WindowRequest
    """With the first step, and the last or how long, as numbers."""
    ranks: tuple[int, ...]
    """Those whose answer is waited for."""


class ArmedAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rank says to these steps."""

    rank: int
    ok: bool
    reason: str = ""
    least: int | None = None
    """The first step that it could begin with instead, if another attempt is worth while."""


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """What becomes of a proposal."""

    decision: Literal["committed", "aborted"]
    reason: str = ""
    again: bool = False
    """Whether the leader is to try once more, with later steps."""
    least: int = 0


class Records:
    """The files of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, kind: str, *parts: object) -> Path:
        """Name of a record."""
        return self.directory / f"{'-'.join([kind, *map(str, parts)])}.json"

    def read(self, kind: type[T], *parts: object) -> T | None:
        """A record; `None` if there is none."""
        return read_record(self.path(_NAMES[kind], *parts), kind)

    def write(self, record: msgspec.Struct, *parts: object) -> bool:
        """Writes a record, unless there is one of its name. Returns whether it was written.

        Raises:
            OSError: if it cannot be.
        """
        return create_once(self.path(_NAMES[type(record)], *parts), msgspec.json.encode(record))

    def latest(self) -> int:
        """Number of the latest proposal; 0 before the first."""
        numbers = [int(found) for path in self.directory.glob("proposal-*.json") if (found := path.stem[9:]).isdigit()]
        return max(numbers, default=0)

    def wishes(self) -> list[tuple[str, Wish]]:
        """Wishes that no proposal has taken up, in the order of their times."""
        found: list[tuple[int, str, Wish]] = []
        for path in self.directory.glob("wish-*.json"):
            wish = read_record(path, Wish)
            if wish is not None and not wish.proposal:
                with contextlib.suppress(FileNotFoundError):
                    found.append((path.stat().st_mtime_ns, path.stem[5:], wish))
        found.sort(key=lambda each: each[:2])
        return [(key, wish) for _, key, wish in found]

    def of(self, kind: type[T], number: int) -> list[T]:
        """All ranks' records of a kind."""
        found = (read_record(path, kind) for path in self.directory.glob(f"{_NAMES[kind]}-{number}-*.json"))
        return [record for record in found if record is not None]

    def prune(self, latest: int) -> None:
        """Deletes what belongs to proposals that nobody asks about any more."""
        for path in self.directory.glob("*-*.json"):
            parts = path.stem.split("-")
            if parts[0] in _NUMBERED and parts[1].isdigit() and int(parts[1]) <= latest - KEPT:
                path.unlink(missing_ok=True)

    def private_copy(self, record: Decision, number: int, rank: int) -> Path:
        """A decision under a name of this rank's, which `os.link` can publish in one call.

        Raises:
            OSError: if it cannot be written.
        """
        path = self.directory / f".decision-{number}-{rank}-{os.getpid()}"
        path.write_bytes(msgspec.json.encode(record))
        return path


_NAMES: dict[type[msgspec.Struct], str] = {
    Wish: "wish",
    Proposal: "proposal",
    AtStep: "step",
    Start: "start",
    ArmedAnswer: "armed",
    Decision: "decision",
}
_NUMBERED = frozenset(["proposal", "step", "start", "armed", "decision"])
