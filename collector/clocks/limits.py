"""Assumptions about clocks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepscope.runtime.options import PositiveFloat
from stepscope.runtime.settings.checked import Checked

Ppm = Annotated[float, msgspec.Meta(ge=0, le=100_000)]
"""Parts per million: microseconds in a second."""


class ClockLimits(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The largest differences between two clocks. Bounds of times hold while clocks stay within them. Unknown fields are refused."""

    drift_ppm: Ppm = 500.0
    """The rates of two clocks never differ by more. Crystals keep to 100, NTP may correct one by 500."""
    piece_seconds: PositiveFloat = 240.0
    """For so long a clock is taken for steady."""
    wander_ppm: Ppm = 0.05
    """The largest difference of the rate from its mean within a piece."""
    change_ppm: Ppm = 5.0
    """The largest difference of the rate from a piece's where nothing is measured: before it, after it, or while the collector
    is away."""
    grain_ns: Annotated[int, msgspec.Meta(ge=0)] = 1
    """The clocks' resolution."""
