"""Memory that comes near its limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from stepscope.runtime.flight.triggers.memory import ProcessMemory, Usage
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.checked import Checked

_REARM = 0.95
"""Share of the threshold below which memory must fall before the trigger may fire again."""


class MemoryHigh(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fires when the process comes near a limit of its memory: that of its cgroup, RLIMIT_AS, or `limit`.

    It saves at once. It may fire again after memory has fallen clearly below the threshold.

    Raises:
        ValueError: for a value out of its range; names the field.
        TypeError: if `device` cannot be called.
    """

    __unchecked__ = ("device",)

    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    """Share of a limit from which on memory counts as high."""
    limit: Annotated[int, msgspec.Meta(gt=0)] | None = None
    """A limit of resident memory in bytes, in addition to the limits of the system."""
    device: Callable[[], float] | None = None
    """Returns the used share of a device's memory, 0 to 1. A trigger with a device runs on its own thread, as a trigger of the
    program does, so the function may be slow."""
    interval: Annotated[float, msgspec.Meta(ge=0)] = 0.5
    """Seconds from one look to the next."""

    @property
    def name(self) -> str:
        """`memory_high`."""
        return "memory_high"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device is not None and not callable(self.device):
            raise TypeError(f"MemoryHigh.device must be a function without arguments, {got(self.device)}")

    def evaluator(self) -> Evaluator:
        """Knows whether memory is high now."""
        return _Evaluator(self, ProcessMemory(self.limit))


class _Evaluator:
    def __init__(self, settings: MemoryHigh, memory: ProcessMemory) -> None:
        self._settings = settings
        self._memory = memory
        self._next = 0
        self._high = False

    def look(self, news: News) -> Sequence[Finding]:
        if news.now < self._next:
            return ()
        self._next = news.now + round(self._settings.interval * 1e9)
        measured = [(usage.share, _text(usage)) for usage in self._memory.read()]
        if self._settings.device is not None:
            used = float(self._settings.device())
            measured.append((used, f"{used:.1%} of the device's memory is used"))
        share, text = max(measured, default=(0.0, ""))
        if self._high:
            self._high = share >= self._settings.share * _REARM
            return ()
        if share < self._settings.share:
            return ()
        self._high = True
        return [Finding(at=news.now, value=share, text=text, at_once=True)]


def _text(usage: Usage) -> str:
    return f"{usage.what}: {usage.used / 2**20:,.0f} of {usage.limit / 2**20:,.0f} MiB are used ({usage.share:.1%})"
