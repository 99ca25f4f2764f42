"""The interface of triggers: settings that make an evaluator, which looks at new events and returns findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events.json_values import plain
from stepscope.runtime.events.record import Block
from stepscope.runtime.settings.arguments import got, real, whole
from stepscope.runtime.settings.documented import Documented


class StepTimes(Documented, frozen=True):
    """Ended steps, the oldest first, as columns: a burst may have a hundred thousand."""

    numbers: NDArray[np.int64]
    """Numbers of the steps, as in `step_num`."""
    starts: NDArray[np.int64]
    """Begins of the steps, in ns of `stepscope.runtime.events.clock`."""
    ends: NDArray[np.int64]
    """Ends of the steps, likewise."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """How long each step took."""
        return (self.ends - self.starts) / 1e9


NO_STEPS = StepTimes(*(np.empty(0, np.int64) for _ in range(3)))


class News(Documented, frozen=True, kw_only=True):
    """Events since the last look, some times a second."""

    now: int
    """Time up to which everything is known, in ns of `stepscope.runtime.events.clock`."""
    steps: StepTimes = NO_STEPS
    """Steps that ended since, except steps with a pause in them."""
    blocks: Sequence[tuple[str, Block]] = ()
    """Events that arrived since, each block with the name of its source; they are read-only."""
    step: int = 0
    """The current step."""
    step_began: int | None = None
    """Begin of the current step, in ns; `None` while recording is paused."""


class Finding(Documented, frozen=True, kw_only=True):
    """A reason to save."""

    at: int
    """Time of the event, in ns. The step that contains this time is the last one saved, apart from `after` further ones."""
    value: float | str | None = None
    """The measured value."""
    text: str = ""
    """The same in words, for people."""
    severity: float = 0.0
    """How bad it is, in any unit. A finding twice as bad as the last saved one ignores the cool-down."""
    at_once: bool = False
    """Saves up to `at`, without waiting for the end of the step or for `after` further ones, which may never come."""


class Evaluator(Protocol):
    """Looks at a run in progress. It is made and called on its own thread, which may wait. Looks queue up meanwhile, and are
    skipped if there are too many. If it answers within a second, the steps that it refers to are still retained."""

    def look(self, news: News) -> Sequence[Finding]:
        """Returns findings. Exceptions are counted, and the profiler reports them."""
        ...


class FindsNothing:
    """The evaluator of a trigger that the profiler fires itself."""

    def look(self, news: News) -> Sequence[Finding]:
        """Returns nothing."""
        return ()


@runtime_checkable
class Trigger(Protocol):
    """Settings of a reason to save."""

    @property
    def name(self) -> str:
        """Its name in files, counts and reports."""
        ...

    def evaluator(self) -> Evaluator:
        """Returns a new evaluator. Called once for each profiler."""
        ...


MAX_TEXT = 1000
"""Characters of the text and the value of a finding; the rest is cut."""


def copied_finding(finding: object) -> Finding:
    """Copies a finding of the program, with plain values in its fields.

    Raises:
        TypeError: if it is not a `Finding`, or a field has a wrong type.
        ValueError: if a number is out of range.
    """
    if not isinstance(finding, Finding):
        raise TypeError(f"look() must return Findings, {got(finding)}")
    value: Any = finding.value
    return Finding(
        at=whole(finding.at, "Finding.at, a time in ns,"),
        value=plain(value[:MAX_TEXT] if isinstance(value, str) else value),
        text=plain(str(finding.text)[:MAX_TEXT]),
        severity=real(finding.severity, "Finding.severity"),
        at_once=bool(finding.at_once),
    )
