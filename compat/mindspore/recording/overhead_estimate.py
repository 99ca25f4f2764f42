"""What a recording is likely to cost, by what this process has recorded so far: told when one starts."""

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

Detail = tuple[bool, bool, bool, bool]


class CostEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate before the first step: what recordings of the same detail in this process took, on average."""

    steps: int = 0
    """Steps that it is based on; 0 if nothing was recorded yet."""
    bytes_per_step: float = 0.0
    """Of raw data, which are deleted when the products are complete (`data_simplification`)."""
    ns_per_step: float = 0.0
    """Of the program's threads and of the background's processor time together."""
    fraction: float | None = None
    """That time as a share of the time recorded; `None` where that is too short to say."""
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


class _Sum:
    """What recordings of one detail took."""

    def __init__(self) -> None:
        self.steps = self.bytes = self.cost_ns = self.recorded_ns = 0


class CostBook:
    """Adds up what the recordings of this process took, by how much they recorded."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begins anew."""
        self._lock = locks.reentrant()
        self._sums: dict[Detail, _Sum] = {}

    def add(self, options: ProfilerOptions, *, steps: int, size: int, cost_ns: int, recorded_ns: int) -> None:
        """Enters a recording that has ended.

        Args:
            options: those that it was made with.
            steps: that it recorded.
            size: of its raw data, in bytes.
            cost_ns: time that recording took from the program and in the background.
            recorded_ns: time in which it recorded.
        """
        with self._lock:
            each = self._sums.setdefault(_detail(options), _Sum())
            each.steps += steps
            each.bytes += size
            each.cost_ns += cost_ns
            each.recorded_ns += recorded_ns

    def estimate(self, options: ProfilerOptions) -> CostEstimate:
        """Estimates the cost of a recording with these options."""
        with self._lock:
            each = self._sums.get(_detail(options), _Sum())
            steps = each.steps
            return CostEstimate(
                steps=steps,
                bytes_per_step=each.bytes / steps if steps else 0.0,
                ns_per_step=each.cost_ns / steps if steps else 0.0,
                fraction=each.cost_ns / each.recorded_ns if each.recorded_ns >= MIN_RECORDED_NS else None,
                ns_per_event=event_costs().span,
            )


def _detail(options: ProfilerOptions) -> Detail:
    return options.operators, options.shapes, options.memory, options.stacks


costs: Final = CostBook()
"""Those of this process."""

os.register_at_fork(after_in_child=costs.forget)
