"""Estimates what a recording will cost from what earlier recordings of this process took."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from stepscope.compat.mindspore.options.options import ProfilerOptions
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.overhead.budget import MIN_RECORDED_NS
from stepscope.runtime.overhead.meter import event_costs
from stepscope.runtime.threads import locks

EVENT_BYTES: Final = 8
"""Bytes that an event takes in the raw data, about, arguments not included (docs/event-columns.md)."""


class CostEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The mean cost of recordings of the same detail in this process."""

    steps: int = 0
    """Steps that it is based on; 0 if nothing was recorded yet."""
    bytes_per_step: float = 0.0
    """Of raw data, which are deleted when the products are complete (`data_simplification`)."""
    ns_per_step: float = 0.0
    """Of the program's threads and of the background's processor time together."""
    fraction: float | None = None
    """That time as a share of the time recorded; `None` where that is too short."""
    ns_per_event: float = 0.0
    """What a span takes of the thread that records it, measured on this machine."""

    def __str__(self) -> str:
        if not self.steps:
            return (
                f"nothing was recorded so far: about {self.ns_per_event:.0f} ns and {EVENT_BYTES} bytes for each event "
                "without arguments"
            )
        share = "" if self.fraction is None else f", {self.fraction:.2%} of the time"
        return (
            f"by {human_count(self.steps, 'step')} recorded so far: about {self.bytes_per_step:,.0f} bytes of raw data and "
            f"{self.ns_per_step / 1000:,.1f} us a step{share}"
        )


class RecordingCosts:
    """Adds up the costs of the recordings of this process, by their detail."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begins anew."""
        self._lock = locks.reentrant()
        self._sums: dict[tuple[bool, ...], tuple[int, int, int, int]] = {}

    def add(self, options: ProfilerOptions, steps: int, size: int, cost_ns: int, recorded_ns: int) -> None:
        """Enters a recording that has ended.

        Args:
            options: its options.
            steps: how many it had.
            size: bytes of raw data.
            cost_ns: what it took of the program's threads and in the background.
            recorded_ns: how long it was.
        """
        with self._lock:
            before = self._sums.get(_detail(options), (0, 0, 0, 0))
            self._sums[_detail(options)] = (
                before[0] + steps,
                before[1] + size,
                before[2] + cost_ns,
                before[3] + recorded_ns,
            )

    def estimate(self, options: ProfilerOptions) -> CostEstimate:
        """Estimates the cost of a recording with these options."""
        with self._lock:
            steps, size, cost_ns, recorded_ns = self._sums.get(_detail(options), (0, 0, 0, 0))
        return CostEstimate(
            steps=steps,
            bytes_per_step=size / steps if steps else 0.0,
            ns_per_step=cost_ns / steps if steps else 0.0,
            fraction=cost_ns / recorded_ns if recorded_ns >= MIN_RECORDED_NS else None,
            ns_per_event=event_costs().span,
        )


def _detail(options: ProfilerOptions) -> tuple[bool, ...]:
    return options.operators, options.shapes, options.memory, options.stacks


costs: Final = RecordingCosts()
"""Those of this process."""

os.register_at_fork(after_in_child=costs.forget)
