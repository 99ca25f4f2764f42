"""Estimates what a recording will cost from what earlier ones of the same profiler took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.overhead.budget import MIN_RECORDED_NS
from stepscope.runtime.overhead.meter import event_costs

EVENT_BYTES: Final = 8
"""Bytes that an event takes in the raw data, about, arguments not included (docs/segment-format.md)."""


class RecordingCost(NamedTuple):
    """The cost of one recording."""

    steps: int
    size: int
    """Bytes of raw data."""
    cost_ns: int
    """Time of the program's threads and processor time in the background."""
    recorded_ns: int
    """How long it was."""


class CostEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The mean cost of the recordings so far."""

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

    @classmethod
    def by(cls, recordings: Sequence[RecordingCost]) -> CostEstimate:
        """The estimate for another recording with the same options."""
        steps, size, cost_ns, recorded_ns = map(sum, zip(RecordingCost(0, 0, 0, 0), *recordings, strict=True))
        return cls(
            steps=steps,
            bytes_per_step=size / steps if steps else 0.0,
            ns_per_step=cost_ns / steps if steps else 0.0,
            fraction=cost_ns / recorded_ns if recorded_ns >= MIN_RECORDED_NS else None,
            ns_per_event=event_costs().span,
        )

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
