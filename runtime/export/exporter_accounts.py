"""What became of the events that one exporter was offered: per window while these are recent, and over the run."""

from __future__ import annotations

from collections import Counter

from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.export.exporter import DeliveryResult, Lost

KEPT_WINDOWS = 256
"""Closed windows whose accounts are kept apart; those of older ones are added up, as a run may have millions."""


class Accounts:
    """Adds up; no lock: its owner has one."""

    def __init__(self) -> None:
        self._offered: Counter[int] = Counter()
        self._exported: Counter[int] = Counter()
        self._kept: Counter[int] = Counter()
        self._dropped: dict[int, Counter[str]] = {}
        self._held: Counter[int] = Counter()
        self._past_offered = self._past_exported = self._past_kept = 0
        self._past_dropped: Counter[str] = Counter()
        self._all_dropped = self._told = 0
        self._closed: dict[int, None] = {}
        self._forgotten = -1

    def offer(self, window: int, count: int) -> None:
        """So many events of a window were offered."""
        self._offered[window] += count

    def export(self, window: int, count: int) -> None:
        """So many were exported; perhaps of a window that was forgotten meanwhile."""
        if window in self:
            self._exported[window] += count
        else:
            self._past_exported += count

    def drop(self, window: int, reason: str, count: int) -> None:
        """So many were dropped; perhaps of a window that was forgotten meanwhile."""
        if count:
            self._all_dropped += count
            known = window in self
            (self._dropped.setdefault(window, Counter()) if known else self._past_dropped)[reason] += count

    def lose(self, lost: Lost) -> None:
        """Counts events as dropped that were counted as exported: of one window, or the latest that were exported."""
        left = lost.events
        windows = sorted(self._exported, reverse=True) if lost.window is None else [lost.window]
        for window in windows:
            count = min(left, self._exported.get(window, 0))
            if count:
                self._exported[window] -= count
                self.drop(window, lost.reason, count)
                left -= count
        count = min(left, self._past_exported)
        self._past_exported -= count
        self._past_dropped[lost.reason] += count
        self._all_dropped += count

    def hold(self, window: int, count: int) -> None:
        """So many are with a settling exporter, which will tell what became of them."""
        self._held[window] += count

    def settle(self, settled: DeliveryResult) -> None:
        """Counts what an exporter told of events that it held; more than those it cannot tell of."""
        window = settled.window
        left = self._held.pop(window, 0)
        exported = min(settled.exported, left)
        self.export(window, exported)
        self._keep(window, min(settled.kept, exported))
        left -= exported
        for reason, count in settled.dropped.items():
            dropped = min(count, left)
            self.drop(window, reason, dropped)
            left -= dropped
        if left:
            self._held[window] = left

    def _keep(self, window: int, count: int) -> None:
        if window in self:
            self._kept[window] += count
        else:
            self._past_kept += count

    def lose_all(self, reason: str) -> None:
        """What was exported, of all windows, cannot be read after all."""
        for window, count in list(self._exported.items()):
            self._exported[window] = 0
            self.drop(window, reason, count)
        past, self._past_exported = self._past_exported, 0
        self._past_dropped[reason] += past
        self._all_dropped += past

    def drop_held(self, reason: str) -> None:
        """Drops what was never told of."""
        for window, count in self._held.items():
            self.drop(window, reason, count)
        self._held.clear()

    @property
    def held(self) -> int:
        """Events that exporters hold and have not told of."""
        return self._held.total()

    @property
    def unreported_drops(self) -> int:
        """Events that were dropped, of windows whose end the exporter has not been given yet."""
        return self._all_dropped - self._told

    def close(self, window: int) -> None:
        """The exporter was given the end of a window; of those closed the oldest is kept apart no more, if they are many."""
        self._told += sum(self.ledger(window).dropped.values())
        self._closed[window] = None
        if len(self._closed) > KEPT_WINDOWS:
            oldest = next(iter(self._closed))
            self.forget(oldest)
            self._forgotten = max(self._forgotten, oldest)
            del self._closed[oldest]

    def closed(self, window: int) -> bool:
        """Whether the exporter was given the end of this window; from any thread."""
        return window in self._closed or window <= self._forgotten

    def keeps(self, window: int) -> bool:
        """Whether this window is still kept apart from the run."""
        return window > self._forgotten or window in self

    def forget(self, window: int) -> None:
        """Adds this window to those that are not kept apart any more."""
        self._past_offered += self._offered.pop(window, 0)
        self._past_exported += self._exported.pop(window, 0)
        self._past_kept += self._kept.pop(window, 0)
        self._past_dropped += self._dropped.pop(window, Counter())

    def __contains__(self, window: int) -> bool:
        return window in self._offered

    def ledger(self, window: int) -> OutputLedger:
        """Of one window; empty if it is not kept apart."""
        dropped = self._dropped.get(window, Counter[str]())
        return _ledger(self._offered[window], self._exported[window], self._kept[window], dropped)

    def total(self) -> OutputLedger:
        """Of the run."""
        dropped = self._past_dropped.copy()
        for reasons in self._dropped.values():
            dropped.update(reasons)
        return _ledger(
            self._past_offered + self._offered.total(),
            self._past_exported + self._exported.total(),
            self._past_kept + self._kept.total(),
            dropped,
        )


def _ledger(offered: int, exported: int, kept: int, dropped: Counter[str]) -> OutputLedger:
    return OutputLedger(offered, exported, dict(dropped), offered - exported - dropped.total(), kept)
