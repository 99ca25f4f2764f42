"""Accounts of one exporter's events: by window for recent windows, and over the run; the outcome as text."""

from __future__ import annotations

from collections import Counter

import msgspec

from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.export.exporter import DeliveryResult, Lost, UnsentFiles

MAX_WINDOWS = 256
"""Closed windows with accounts of their own. Those of older ones are summed, as a run may have millions of windows."""


class _Sums:
    """Sums of events of one window, or of all old ones."""

    def __init__(self) -> None:
        self.offered = self.exported = self.unsent = 0
        self.dropped: Counter[str] = Counter()

    def add(self, other: _Sums) -> None:
        self.offered += other.offered
        self.exported += other.exported
        self.unsent += other.unsent
        self.dropped += other.dropped

    def ledger(self) -> OutputLedger:
        rest = self.offered - self.exported - self.dropped.total()
        return OutputLedger(self.offered, self.exported, dict(self.dropped), rest, self.unsent)


class Accounts:
    """The accounts of one exporter. The owner's lock guards them."""

    def __init__(self) -> None:
        self._windows: dict[int, _Sums] = {}
        self._past = _Sums()
        self._in_flight: Counter[int] = Counter()
        self._all_dropped = self._reported = 0
        self._closed: dict[int, None] = {}
        self._forgotten = -1

    def offer(self, window: int, count: int) -> None:
        sums = self._windows.get(window)
        if sums is None:
            sums = self._windows[window] = _Sums()
        sums.offered += count

    def export(self, window: int, count: int) -> None:
        """Counts exported events, also of an old window."""
        self._of(window).exported += count

    def drop(self, window: int, reason: str, count: int) -> None:
        """Counts dropped events, also of an old window."""
        self._drop(self._of(window), reason, count)

    def _of(self, window: int) -> _Sums:
        return self._windows.get(window, self._past)

    def _drop(self, sums: _Sums, reason: str, count: int) -> None:
        if count:
            self._all_dropped += count
            sums.dropped[reason] += count

    def lose(self, lost: Lost) -> None:
        """Counts exported events as dropped instead: of one window, or the last exported ones."""
        rest = lost.events
        windows = sorted(self._windows, reverse=True) if lost.window is None else [lost.window]
        for sums in (*map(self._of, windows), self._past):
            count = min(rest, sums.exported)
            sums.exported -= count
            self._drop(sums, lost.reason, count)
            rest -= count

    def add_in_flight(self, window: int, count: int) -> None:
        """Counts events whose outcome the exporter will report later."""
        self._in_flight[window] += count

    def resolve(self, result: DeliveryResult) -> None:
        """Counts the reported outcome of events in flight, at most as many as there are."""
        sums = self._of(result.window)
        rest = self._in_flight.pop(result.window, 0)
        exported = min(result.exported, rest)
        sums.exported += exported
        sums.unsent += min(result.unsent, exported)
        rest -= exported
        for reason, count in result.dropped.items():
            dropped = min(count, rest)
            self._drop(sums, reason, dropped)
            rest -= dropped
        if rest:
            self._in_flight[result.window] = rest

    def lose_all(self, reason: str) -> None:
        """Counts all exported events as dropped instead, as the output cannot be read."""
        for sums in (*self._windows.values(), self._past):
            self._drop(sums, reason, sums.exported)
            sums.exported = 0

    def drop_in_flight(self, reason: str) -> None:
        for window, count in self._in_flight.items():
            self.drop(window, reason, count)
        self._in_flight.clear()

    @property
    def in_flight(self) -> int:
        return self._in_flight.total()

    @property
    def unreported_drops(self) -> int:
        """Number of dropped events of windows whose end the exporter did not get yet."""
        return self._all_dropped - self._reported

    def close(self, window: int) -> None:
        """The exporter got the end of a window. If there are many closed windows, the oldest joins the sum."""
        if window in self._windows:
            self._reported += self._windows[window].dropped.total()
        self._closed[window] = None
        if len(self._closed) > MAX_WINDOWS:
            oldest = next(iter(self._closed))
            self.forget(oldest)
            self._forgotten = max(self._forgotten, oldest)
            del self._closed[oldest]

    def closed(self, window: int) -> bool:
        """Whether the exporter got the end of this window. Any thread may call."""
        return window in self._closed or window <= self._forgotten

    def forget(self, window: int) -> None:
        """Adds the accounts of this window to the sum of old windows."""
        if window in self._windows:
            self._past.add(self._windows.pop(window))

    def ledger(self, window: int) -> OutputLedger | None:
        """Accounts of one window; `None` for one that is part of the sum of old windows."""
        if window in self._windows or window > self._forgotten:
            return self._windows.get(window, _Sums()).ledger()
        return None

    def total(self) -> OutputLedger:
        sums = _Sums()
        for each in (self._past, *self._windows.values()):
            sums.add(each)
        return sums.ledger()


class ExporterStatistics(msgspec.Struct, frozen=True):
    """Accounts of one exporter over the run."""

    name: str
    ledger: OutputLedger
    waiting_events: int
    """Events in the queue, in the current call, or in flight."""
    waiting_bytes: int
    peak_bytes: int
    windows_left_out: int
    """Windows that were skipped because too many others waited for it. Their events were dropped, with the reason `queue`."""
    errors: int
    first_error: str
    busy_ns: int
    """Time spent in the exporter's calls, the one in progress included, in ns."""
    unsent_files: UnsentFiles | None = None
    """Files of the events in `ledger.unsent`; `None` if there are none."""


def counted(ledger: OutputLedger, unsent: UnsentFiles | None = None) -> str:
    """Outcome of all events: `0 of 80 events confirmed, 77 kept in runs/1/unsent/a (no answer), 3 dropped (undelivered)`."""
    if 0 < ledger.offered == ledger.in_flight:  # "0 of 80" would look like a failure
        return f"{ledger.offered:,} events not written yet"
    text = f"{ledger.exported - ledger.unsent:,} of {ledger.offered:,} events"
    if ledger.unsent or unsent is not None:
        what = f"{ledger.unsent:,}" if ledger.unsent else "the end of the stream"
        text += f" confirmed, {what} kept" + (f" in {unsent.place} ({unsent.why})" if unsent is not None else "")
    text += "".join(f", {count:,} dropped ({reason})" for reason, count in ledger.dropped.items() if count)
    return text + (f", {ledger.in_flight:,} not written yet" if ledger.in_flight else "")


def remedy(unsent: UnsentFiles | None) -> str:
    """How to send unconfirmed events, after a semicolon; empty if there are none."""
    return "" if unsent is None else f"; when this process has ended, send that with: {unsent.command}"
