"""The records of an agreement, each a file of the run's directory; every one is written in one step and never changed.

wish-KEY          somebody asks for a window, or that one ends later or earlier; the key makes equal wishes one
proposal-N        the leader takes up a wish
step-N-RANK       at which step the rank is, and how fast it goes; where ends are to change, which windows it has
start-N           the leader's choice of steps
armed-N-RANK      the rank will do so if it is decided, or why it cannot
decision-N        committed or aborted; the first that is written counts
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from stepscope.runtime.control.agreement.job_directory import read_record
from stepscope.runtime.control.agreement.rate import StepsPerSecond
from stepscope.runtime.control.agreement.step_choice import may_move
from stepscope.runtime.control.entry_points.file_reading import create_once
from stepscope.runtime.control.requests.armed import ArmedStatus
from stepscope.runtime.control.requests.end_change import EndChange, EndRequest
from stepscope.runtime.control.requests.window_request import Rank, StepNumber, WindowRequest
from stepscope.runtime.files.encoding import json_bytes

T = TypeVar("T", bound=msgspec.Struct)

Asked = WindowRequest | EndRequest
"""What ranks can agree on: a window, or the end of what runs."""

KEPT = 16
"""Proposals whose records are kept; older ones are deleted."""


class Wish(msgspec.Struct, frozen=True, omit_defaults=True):
    """What somebody asks for."""

    request: WindowRequest | None
    """A window; `None`: `end` is what is asked for."""
    trigger: str
    proposal: int = 0
    """The one that took it up; 0: none yet."""
    end: EndRequest | None = None

    @property
    def asked(self) -> Asked:
        """One of the two."""
        return _one(self.request, self.end)


class Proposal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The leader asks where everybody is."""

    number: int
    key: str
    request: WindowRequest | None
    trigger: str
    attempt: int = 0
    least: int = 0
    """No step before this one can be the first, as the attempt before has shown."""
    end: EndRequest | None = None

    @property
    def asked(self) -> Asked:
        """The window, or what is to become of one."""
        return _one(self.request, self.end)

    def wants(self, rank: int) -> bool:
        """Whether this rank has a part in it. Which windows a rank has is known to itself only."""
        return self.request is None or self.request.wants(rank)

    @property
    def may_move(self) -> bool:
        """Whether later steps would still be what was asked for."""
        if self.request is None:
            return self.end is not None and self.end.command == "abort"
        return may_move(self.request)


class AtStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a rank is."""

    rank: Rank
    step: StepNumber
    rate: StepsPerSecond
    """Steps per second, lately."""
    windows: tuple[ArmedStatus, ...] = ()
    """Those that it has armed, and had lately, where it matters."""


class Start(msgspec.Struct, frozen=True, omit_defaults=True):
    """The steps that the leader has chosen."""

    request: WindowRequest | None
    """With the first step, and the last or how long, as numbers."""
    ranks: tuple[int, ...]
    """Those whose answer is waited for."""
    end: EndChange | None = None
    """Where no window is asked for: what becomes of those that there are."""

    @property
    def step(self) -> int:
        """The step by which it must be decided."""
        if self.request is not None:
            return int(self.request.start_step)
        return 0 if self.end is None else self.end.decided_by


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
        return create_once(self.path(_NAMES[type(record)], *parts), json_bytes(record))

    def latest(self) -> int:
        """Number of the latest proposal; 0 before the first."""
        numbers = [int(found) for path in self.directory.glob("proposal-*.json") if (found := path.stem[9:]).isdigit()]
        return max(numbers, default=0)

    def latest_window(self) -> int:
        """Number of the latest proposal of a window that was decided for; 0 if none is known."""
        for number in range(self.latest(), 0, -1):
            proposal = self.read(Proposal, number)
            if proposal is None:
                return 0
            decision = self.read(Decision, number) if proposal.request is not None else None
            if decision is not None and decision.decision == "committed":
                return number
        return 0

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
        path.write_bytes(json_bytes(record))
        return path


def _one(request: WindowRequest | None, end: EndRequest | None) -> Asked:
    if request is not None:
        return request
    return EndRequest(command="abort") if end is None else end


_NAMES: dict[type[msgspec.Struct], str] = {
    Wish: "wish",
    Proposal: "proposal",
    AtStep: "step",
    Start: "start",
    ArmedAnswer: "armed",
    Decision: "decision",
}
_NUMBERED = frozenset(["proposal", "step", "start", "armed", "decision"])
