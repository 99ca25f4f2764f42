"""What a trigger is: settings that make an evaluator, which looks at what happened and says what it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events.json_values import plain
from stepscope.runtime.events.numbers import real, whole
from stepscope.runtime.events.record import Block
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.documented import Documented


class StepTimes(Documented, frozen=True):
    """Steps that have ended, oldest first, as columns: a burst may hold a hundred thousand."""

    numbers: NDArray[np.int64]
    """As in `step_num`."""
    starts: NDArray[np.int64]
    """When each began, in ns of `stepscope.runtime.events.clock`."""
    ends: NDArray[np.int64]
    """When each ended, likewise."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """How long each step took."""
        return (self.ends - self.starts) / 1e9


NO_STEPS = StepTimes(*(np.empty(0, np.int64) for _ in range(3)))


class News(Documented, frozen=True, kw_only=True):
    """What has happened since the last look, some times a second."""

    now: int
    """Time up to which everything is known, in ns of `stepscope.runtime.events.clock`."""
    steps: StepTimes = NO_STEPS
    """Steps that ended since, without those that a pause lies in: their times say nothing."""
    blocks: Sequence[tuple[str, Block]] = ()
    """Events that arrived since, each block with the name of its source; they are read-only."""
    step: int = 0
    """The step under way."""
    step_began: int | None = None
    """When it began, in ns; `None` while recording is paused."""


class Finding(Documented, frozen=True, kw_only=True):
    """A reason to save."""

    at: int
    """When it happened, in ns. The step that this time belongs to is the last one saved, but for `after` more."""
    value: float | str | None = None
    """What was measured."""
    text: str = ""
    """The same in words, for people."""
    severity: float = 0.0
    """How bad it is, in a unit of its own. What is twice as bad as what was saved last does not wait for the cool-down."""
    at_once: bool = False
    """Saves up to `at`, and waits neither for the step's end nor for `after` more: there may be none."""


class Evaluator(Protocol):
    """Looks at a run as it goes on. Made and called on one thread of its own, which may wait: what it is shown then waits
    for it, and what is too much is not shown. What it answers within a second finds the steps kept that were there when it
    was asked."""

    def look(self, news: News) -> Sequence[Finding]:
        """Returns what it found. What it raises is counted, kept, and shown by the profiler."""
        ...


@runtime_checkable
class Trigger(Protocol):
    """Settings of a reason to save."""

    @property
    def name(self) -> str:
        """Names it in files, counts and reports."""
        ...

    def evaluator(self) -> Evaluator:
        """A new evaluator, which knows nothing yet; asked once for each profiler."""
        ...


MAX_TEXT = 1000
"""Characters kept of what a trigger says, and of its value."""


def copied_finding(given: object) -> Finding:
    """A finding that holds what its fields say.

    Raises:
        TypeError: if it is no finding, or has a field that cannot be what it should.
        ValueError: if a number is out of range.
    """
    if not isinstance(given, Finding):
        raise TypeError(f"look() must return Findings, {got(given)}")
    value: Any = given.value
    return Finding(
        at=whole(given.at, "Finding.at, a time in ns,"),
        value=plain(value[:MAX_TEXT] if isinstance(value, str) else value),
        text=plain(str(given.text)[:MAX_TEXT]),
        severity=real(given.severity, "Finding.severity"),
        at_once=bool(given.at_once),
    )
