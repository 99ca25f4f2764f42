"""How a rank's clock compares with its collector's now, for those who look while it streams."""

from __future__ import annotations

import math
from collections import deque

import msgspec
import numpy as np

from stepscope.collector.clocks.model import ClockModel
from stepscope.collector.clocks.timeline import Readings, Timeline
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.journal.records import ClockSync

MAX_SYNCS = 32
"""The most round trips in memory: the newest."""
FRESH = 4
"""So many new ones make it fit anew, fewer while there are few: a fit takes some hundred microseconds."""
_FAR = 1 << 62
"""ns: offsets that are larger do not fit sums with times."""


class ClockBound(msgspec.Struct, frozen=True, gc=False):
    """Unix time is the rank's monotonic time plus `offset_ns`, give or take `bound_ns`."""

    offset_ns: int
    bound_ns: int | None
    """`None` where nothing bounds it."""


class LatestClock:
    """The time line of `collector/clocks`, of the newest round trips of one stream to the collector's latest clock.

    The result depends on the round trips alone, and not on when they came: read from a file they give the same. It is
    fitted again when some are new and somebody looks; in between the bound grows as the model has it.
    """

    def __init__(self, anchor: ClockAnchor) -> None:
        """Args: the rank's wall clock, which counts until there is a round trip."""
        self._anchor = anchor
        self.first: int | None = None
        """When the collector was asked first, ns of its clock; `None`: not yet."""
        self.last = 0
        """When it was asked last."""
        self._syncs: deque[ClockSync] = deque(maxlen=MAX_SYNCS)
        self._fresh = 0
        self._unfitted: list[ClockSync] | None = None
        """Round trips of which the next model is made, when it is needed."""
        self._model: ClockModel | None = None
        offset = anchor.wall_ns - anchor.monotonic_ns
        self.offset_ns = offset if abs(offset) < _FAR else 0
        """About what `now` has, and known without a fit: by the quickest of the last round trips, half of which it may be off."""
        self._quickest, self._since = math.inf, 0
        self._now: ClockBound | None = ClockBound(self.offset_ns, None)
        self._before = self._now

    def add(self, sync: ClockSync) -> None:
        """A round trip, the latest."""
        self.first = sync.arrived if self.first is None else self.first
        self.last = sync.arrived
        if self._syncs and sync.clock != self._syncs[-1].clock:
            self._syncs.clear()  # another start of the collector
            self._fresh, self._model, self._unfitted = 0, None, None
            self._quickest = math.inf
        self._syncs.append(sync)
        self._estimate(sync)
        self._fresh += 1
        if self._fresh >= min(max(len(self._syncs) // 2, 1), FRESH):
            self._fresh = 0
            self._unfitted = list(self._syncs)
        self._now = None

    @property
    def now(self) -> ClockBound:
        """The offset and its bound at the time of the newest round trip."""
        if self._now is None:
            self._now = self._before = self._read() or self._before
        return self._now

    def _estimate(self, sync: ClockSync) -> None:
        under_way = sync.returned - sync.sent - (sync.answered - sync.arrived)
        offset = (sync.arrived - sync.sent + sync.answered - sync.returned) // 2
        self._since += 1
        if 0 <= under_way and (under_way <= self._quickest or self._since >= MAX_SYNCS) and abs(offset) < _FAR:
            self._quickest, self._since, self.offset_ns = under_way, 0, offset

    def _read(self) -> ClockBound | None:
        if self._unfitted is not None:
            self._model = Timeline({"": Readings(self._unfitted, self._anchor)})[""].model
            self._unfitted = None
        at = self._syncs[-1].returned
        if self._model is None or not self._model.is_connected or not -_FAR < at < _FAR:
            return None
        when = np.array([at], np.int64)
        offset, bound = int(self._model.to_reference(when)[0]) - at, float(self._model.error(when)[0])
        return ClockBound(offset, math.ceil(bound)) if math.isfinite(bound) and abs(offset) < _FAR else None
