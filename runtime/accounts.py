"""What became of the events that one exporter was offered: per window while these are recent, and over the run."""

from __future__ import annotations

from collections import Counter

from stepscope.runtime.consumer import Settled
from stepscope.runtime.ledger import OutputLedger


class Accounts:
    """Adds up; no lock: its owner has one."""

    def __init__(self) -> None:
        self._offered: Counter[int] = Counter()
        self._exported: Counter[int] = Counter()
        self._dropped: dict[int, Counter[str]] = {}
        self._held: Counter[int] = Counter()
        self._past_offered = self._past_exported = 0
        self._past_dropped: Counter[str] = Counter()
        self.dropped = 0
        """Events dropped over the run, for any reason."""

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
            self.dropped += count
            known = window in self
            (self._dropped.setdefault(window, Counter()) if known else self._past_dropped)[reason] += count

    def hold(self, window: int, count: int) -> None:
        """So many are with a settling exporter, which will tell what became of them."""
        self._held[window] += count

    def settle(self, settled: Settled) -> None:
        """Counts what an exporter told of events that it held; more than those it cannot tell of."""
        window = settled.window
        left = self._held.pop(window, 0)
        exported = min(settled.exported, left)
        self.export(window, exported)
        left -= exported
        for reason, count in settled.dropped.items():
            dropped = min(count, left)
            self.drop(window, reason, dropped)
            left -= dropped
        if left:
            self._held[window] = left

    def drop_held(self, reason: str) -> None:
        """Drops what was never told of."""
        for window, count in self._held.items():
            self.drop(window, reason, count)
        self._held.clear()

    @property
    def held(self) -> int:
        """Events that exporters hold and have not told of."""
        return self._held.total()

    def forget(self, window: int) -> None:
        """Adds this window to those that are not kept apart any more; a run may have millions."""
        self._past_offered += self._offered.pop(window, 0)
        self._past_exported += self._exported.pop(window, 0)
        self._past_dropped += self._dropped.pop(window, Counter())

    def __contains__(self, window: int) -> bool:
        return window in self._offered

    def ledger(self, window: int) -> OutputLedger:
        """Of one window; empty if it is not kept apart."""
        return _ledger(self._offered[window], self._exported[window], self._dropped.get(window, Counter()))

    def total(self) -> OutputLedger:
        """Of the run."""
        dropped = self._past_dropped.copy()
        for reasons in self._dropped.values():
            dropped.update(reasons)
        return _ledger(
            self._past_offered + sum(self._offered.values()),
            self._past_exported + sum(self._exported.values()),
            dropped,
        )


def _ledger(offered: int, exported: int, dropped: Counter[str]) -> OutputLedger:
    return OutputLedger(offered, exported, dict(dropped), offered - exported - dropped.total())
