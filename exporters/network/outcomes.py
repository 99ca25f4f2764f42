"""Outcomes of events until `SupportsDeferredAck.delivery_results` reports them."""

from __future__ import annotations

from collections import Counter

from stepscope.runtime.export.exporter import DeliveryResult


class Outcomes:
    """Sums by window since the last `take`."""

    def __init__(self) -> None:
        self._exported: Counter[int] = Counter()
        self._unsent: Counter[int] = Counter()
        self._dropped: dict[int, Counter[str]] = {}

    def export(self, window: int, count: int) -> None:
        """So many events of a window have arrived."""
        if count:
            self._exported[window] += count

    def add_unsent(self, window: int, count: int) -> None:
        """So many events of a window are in files until they are sent; they count as exported."""
        if count:
            self._unsent[window] += count
            self._exported[window] += count

    def drop(self, window: int, reason: str, count: int) -> None:
        """So many events of a window are not sent."""
        if count:
            self._dropped.setdefault(window, Counter())[reason] += count

    def drain(self) -> list[DeliveryResult]:
        """The counts since the last call."""
        windows = sorted({*self._exported, *self._dropped})
        results = [
            DeliveryResult(
                window, self._exported[window], dict(self._dropped.get(window, Counter())), self._unsent[window]
            )
            for window in windows
        ]
        self._exported.clear()
        self._unsent.clear()
        self._dropped.clear()
        return results
