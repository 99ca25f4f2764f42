"""Accounts of one exporter's events: by window for recent windows, and over the run."""

from __future__ import annotations

from collections import Counter

from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.export.exporter import DeliveryResult, Lost

MAX_WINDOWS = 256
"""Closed windows with accounts of their own. Those of older ones are summed, as a run may have millions of windows."""


_NOTHING: Counter[str] = Counter()


class Accounts:
    """Sums of events. The owner's lock guards them."""

    def __init__(self) -> None:
        self._offered: Counter[int] = Counter()
        self._exported: Counter[int] = Counter()
        self._unsent: Counter[int] = Counter()
        self._dropped: dict[int, Counter[str]] = {}
        self._in_flight: Counter[int] = Counter()
        self._past_offered = self._past_exported = self._past_unsent = 0
        self._past_dropped: Counter[str] = Counter()
        self._all_dropped = self._reported = 0
        self._closed: dict[int, None] = {}
        self._forgotten = -1

    def offer(self, window: int, count: int) -> None:
        """Counts offered events of a window."""
        self._offered[window] = self._offered.get(window, 0) + count

    def export(self, window: int, count: int) -> None:
        """Counts exported events, also of an old window."""
        if window in self:
            self._exported[window] = self._exported.get(window, 0) + count
        else:
            self._past_exported += count

    def drop(self, window: int, reason: str, count: int) -> None:
        """Counts dropped events, also of an old window."""
        if count:
            self._all_dropped += count
            is_open = window in self
            (self._dropped.setdefault(window, Counter()) if is_open else self._past_dropped)[reason] += count

    def lose(self, lost: Lost) -> None:
        """Counts exported events as dropped instead: of one window, or the last exported ones."""
        rest = lost.events
        windows = sorted(self._exported, reverse=True) if lost.window is None else [lost.window]
        for window in windows:
            count = min(rest, self._exported.get(window, 0))
            if count:
                self._exported[window] -= count
                self.drop(window, lost.reason, count)
                rest -= count
        count = min(rest, self._past_exported)
        self._past_exported -= count
        self._past_dropped[lost.reason] += count
        self._all_dropped += count

    def add_in_flight(self, window: int, count: int) -> None:
        """Counts events whose outcome the exporter will report later."""
        self._in_flight[window] += count

    def resolve(self, result: DeliveryResult) -> None:
        """Counts the reported outcome of events in flight, at most as many as there are."""
        window = result.window
        rest = self._in_flight.pop(window, 0)
        exported = min(result.exported, rest)
        self.export(window, exported)
        self._add_unsent(window, min(result.unsent, exported))
        rest -= exported
        for reason, count in result.dropped.items():
            dropped = min(count, rest)
            self.drop(window, reason, dropped)
            rest -= dropped
        if rest:
            self._in_flight[window] = rest

    def _add_unsent(self, window: int, count: int) -> None:
        if window in self:
            self._unsent[window] += count
        else:
            self._past_unsent += count

    def lose_all(self, reason: str) -> None:
        """Counts all exported events as dropped instead, as the output cannot be read."""
        for window, count in list(self._exported.items()):
            self._exported[window] = 0
            self.drop(window, reason, count)
        past, self._past_exported = self._past_exported, 0
        self._past_dropped[reason] += past
        self._all_dropped += past

    def drop_in_flight(self, reason: str) -> None:
        """Counts all events in flight as dropped."""
        for window, count in self._in_flight.items():
            self.drop(window, reason, count)
        self._in_flight.clear()

    @property
    def in_flight(self) -> int:
        """Number of events in flight."""
        return self._in_flight.total()

    @property
    def unreported_drops(self) -> int:
        """Number of dropped events of windows whose end the exporter did not get yet."""
        return self._all_dropped - self._reported

    def close(self, window: int) -> None:
        """The exporter got the end of a window. If there are many closed windows, the oldest joins the sum."""
        if window in self._dropped:
            self._reported += self._dropped[window].total()
        self._closed[window] = None
        if len(self._closed) > MAX_WINDOWS:
            oldest = next(iter(self._closed))
            self.forget(oldest)
            self._forgotten = max(self._forgotten, oldest)
            del self._closed[oldest]

    def closed(self, window: int) -> bool:
        """Whether the exporter got the end of this window. Any thread may call."""
        return window in self._closed or window <= self._forgotten

    def has_window(self, window: int) -> bool:
        """Whether this window is not part of the sum of old windows."""
        return window > self._forgotten or window in self

    def forget(self, window: int) -> None:
        """Adds the accounts of this window to the sum of old windows."""
        self._past_offered += self._offered.pop(window, 0)
        self._past_exported += self._exported.pop(window, 0)
        self._past_unsent += self._unsent.pop(window, 0)
        if window in self._dropped:
            self._past_dropped += self._dropped.pop(window)

    def __contains__(self, window: int) -> bool:
        return window in self._offered

    def ledger(self, window: int) -> OutputLedger:
        """Accounts of one window; empty for an old one."""
        offered, exported = self._offered.get(window, 0), self._exported.get(window, 0)
        return _ledger(offered, exported, self._unsent.get(window, 0), self._dropped.get(window, _NOTHING))

    def total(self) -> OutputLedger:
        """Accounts of the run."""
        dropped = self._past_dropped.copy()
        for reasons in self._dropped.values():
            dropped.update(reasons)
        return _ledger(
            self._past_offered + self._offered.total(),
            self._past_exported + self._exported.total(),
            self._past_unsent + self._unsent.total(),
            dropped,
        )


def _ledger(offered: int, exported: int, unsent: int, dropped: Counter[str]) -> OutputLedger:
    return OutputLedger(offered, exported, dict(dropped), offered - exported - dropped.total(), unsent)
