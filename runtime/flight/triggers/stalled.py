"""A step that does not end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from stepscope.runtime.display.text_table import human_number
from stepscope.runtime.flight.triggers.slow_step import RunningQuantile
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News
from stepscope.runtime.settings.checked import Checked


class Stalled(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fires while a step hangs: when it lasts longer than `factor` times a running quantile, and than `least`.

    It saves at once, with the open spans marked as such, and once for each step. The watchdog is the background loop:
    it looks every `Options.drain_interval`, and sees nothing while code that hangs holds the interpreter's lock.

    Raises:
        ValueError: for a value out of its range; names the field.
    """

    name = "stalled"

    factor: Annotated[float, msgspec.Meta(ge=1)] = 10.0
    """How many times the usual a step must last to be a stall."""
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95
    """The quantile of earlier steps' times that counts as usual: 0.95 is the time that 95 % of these steps stayed below."""
    least: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """Seconds; no shorter step is a stall. Saving a checkpoint, say, may take its time."""
    warmup: Annotated[int, msgspec.Meta(ge=1)] = 3
    """Steps that must have ended before one can be a stall: loading and compiling come first."""

    def evaluator(self) -> Evaluator:
        """Learns from every step that ends."""
        return _Evaluator(self)


class _Evaluator:
    def __init__(self, settings: Stalled) -> None:
        self._settings = settings
        self._usual = RunningQuantile()
        self._reported: int | None = None

    def look(self, news: News) -> Sequence[Finding]:
        self._usual.add(news.steps.ends - news.steps.starts)
        began = news.step_began
        if began is None or began == self._reported or self._usual.count < self._settings.warmup:
            return ()
        usual = self._usual.at(self._settings.quantile)
        lasts = news.now - began
        if lasts < max(self._settings.factor * usual, self._settings.least * 1e9):
            return ()
        self._reported = began
        text = (
            f"step {news.step} has lasted {human_number(lasts / 1e9, 3)} s and not ended; the running "
            f"p{self._settings.quantile * 100:g} is {human_number(usual / 1e9, 3)} s"
        )
        return [Finding(at=news.now, value=lasts / 1e9, text=text, at_once=True)]
