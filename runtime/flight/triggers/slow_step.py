"""A step that took longer than steps usually take."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.display.text_table import human_number
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News
from stepscope.runtime.settings.checked import Checked

MEMORY = 512
"""Number of times that count: the quantile follows a run whose steps become longer or shorter."""
_TOGETHER = 64
"""Steps that are compared with one quantile, before they are added to it."""


class RunningQuantile:
    """The quantiles of the last `MEMORY` times."""

    def __init__(self) -> None:
        self._times: deque[int] = deque(maxlen=MEMORY)
        self.count = 0
        """Times added."""

    def add(self, times: NDArray[np.int64]) -> None:
        """Adds times in ns."""
        self._times.extend(times[-MEMORY:].tolist())
        self.count += len(times)

    def at(self, quantile: float) -> int:
        """The time in ns that this share of the times does not exceed; 0 before any was added."""
        return sorted(self._times)[ceil(quantile * len(self._times)) - 1] if self._times else 0


class SlowStep(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fires when a step takes longer than `factor` times a running quantile of the steps before it.

    Raises:
        ValueError: for a value out of its range; names the field.
    """

    name = "slow_step"

    factor: Annotated[float, msgspec.Meta(ge=1)] = 1.5
    """How many times the usual a step must take to be slow."""
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95
    """The quantile of earlier steps' times that counts as usual: 0.95 is the time that 95 % of these steps stayed below."""
    warmup: Annotated[int, msgspec.Meta(ge=1)] = 20
    """Steps that are only learned from, from the beginning of the run on; the first ones compile and fill caches."""
    least: Annotated[float, msgspec.Meta(ge=0)] = 0.001
    """Seconds; no shorter step is slow."""

    def evaluator(self) -> Evaluator:
        """Learns from the first `warmup` steps, then compares."""
        return _Evaluator(self)


class _Evaluator:
    def __init__(self, settings: SlowStep) -> None:
        self._settings = settings
        self._usual = RunningQuantile()

    def look(self, news: News) -> Sequence[Finding]:
        found: list[Finding] = []
        settings, steps = self._settings, news.steps
        times = steps.ends - steps.starts
        start = 0
        while start < len(times):
            learning = settings.warmup - self._usual.count
            stop = start + (learning if learning > 0 else _TOGETHER)
            part = times[start:stop]
            if learning <= 0:
                usual = self._usual.at(settings.quantile)
                limit = max(settings.factor * usual, settings.least * 1e9)
                for index in np.flatnonzero(part > limit):
                    at, took = start + int(index), int(part[index])
                    text = (
                        f"step {steps.numbers[at]} took {human_number(took / 1e6, 3)} ms, "
                        f"{human_number(took / max(usual, 1), 3)} times the running p{settings.quantile * 100:g} of "
                        f"{human_number(usual / 1e6, 3)} ms"
                    )
                    found.append(Finding(at=int(steps.ends[at]) - 1, value=took / 1e9, text=text, severity=took / 1e9))
            self._usual.add(part)
            start = stop
        return found
