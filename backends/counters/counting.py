"""A backend that reads figures from time to time, and records them as counters."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, NamedTuple

from stepscope.backends.counters.sampling import SamplingBackend
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import clock, strings, tracks
from stepscope.runtime.events.record import Block, Kind, empty_block, join_blocks
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import did_you_mean
from stepscope.runtime.sources.sink import BackendReport


class Reading(NamedTuple):
    """One figure, as it was read."""

    name: str
    value: float
    total: bool = False
    """True if it only ever grows: what is recorded is by how much in a second."""


class CountingBackend(SamplingBackend):
    """Records what `_read` finds. A level has the time at which it was read; a rate that at which what it was measured over
    began, for viewers draw a value from its time on. In a window that is shorter than the interval it is measured over what
    there is of it.

    Args:
        name: of this source.
        interval: seconds between two samples.
        always: whether windows have samples that were not asked for with them.

    Raises:
        ValueError: if the interval is not above 0.
    """

    category: ClassVar[str]
    """Of the counters."""
    what: ClassVar[str] = "counters"
    """Which part of a window its samples are."""

    def __init__(self, name: str, interval: float, *, always: bool = True) -> None:
        super().__init__(name, interval, always=always)
        self._since = 0
        self._totals: dict[str, float] = {}
        self._rated = False
        self._notes: dict[str, None] = {}

    def report(self) -> BackendReport:
        report = super().report()
        return BackendReport(mode=report.mode, notes=(*report.notes, *self._notes))

    @abstractmethod
    def _read(self) -> Iterable[Reading]:
        """The figures now; what cannot be read is left out, and told by `_note`."""

    def _rates(self, rates: Mapping[str, float]) -> Mapping[str, float]:
        """The values of counters, from the increase of each total in a second."""
        return rates

    def _nothing(self, why: object) -> BackendError:
        """The error of `open` where there is nothing to read."""
        return BackendError(f"backend {self.name!r} can read nothing here: {why}")

    def _note(self, text: str) -> None:
        """Keeps what could not be read, for the report; the same text once."""
        self._notes[text] = None

    def _sample(self, now: int) -> tuple[Block | None, bytes]:
        at = clock.now()
        found = list(self._read())
        levels = {reading.name: reading.value for reading in found if not reading.total}
        totals = {reading.name: reading.value for reading in found if reading.total}
        block = join_blocks([self._increase(at, totals), self._block(now, levels)])
        self._since, self._totals = at, totals
        return block, b""

    def _border_passed(self, now: int) -> tuple[Block | None, bytes]:
        if self._recording or not self._totals:
            return None, b""
        at = clock.now()
        long_enough = not self._rated or at - self._since >= self._interval * 5e8
        totals = {reading.name: reading.value for reading in self._read() if reading.total} if long_enough else {}
        block = self._increase(at, totals)
        self._totals, self._rated = {}, False
        return block, b""

    def _delivered_until(self, now: int) -> int:
        return self._since if self._totals else now

    def _increase(self, at: int, totals: Mapping[str, float]) -> Block:
        """Rates since the last sample; none without one."""
        seconds = (at - self._since) / 1e9
        both = totals.keys() & self._totals.keys()
        if not both or seconds <= 0:
            return empty_block()
        self._rated = True
        rates = {name: max(totals[name] - self._totals[name], 0.0) / seconds for name in totals if name in both}
        return self._block(self._since, self._rates(rates))

    def _block(self, at: int, values: Mapping[str, float]) -> Block:
        events = empty_block(len(values))
        events["ts"], events["kind"] = at, int(Kind.COUNTER)
        events["name"] = [strings.intern(name) for name in values]
        events["category"], events["track"] = strings.category(self.category), tracks.process()
        events["value"] = list(values.values())
        return events


def chosen(argument: str, value: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """The chosen names, once each.

    Raises:
        TypeError: if it is neither a name nor a list of names.
        ValueError: for an unknown name, with the nearest; if there is none.
    """
    if not isinstance(value, Iterable):
        raise TypeError(f"{argument} must be a list of names, {got(value)}; known: {', '.join(sorted(allowed))}")
    names = (value,) if isinstance(value, str) else tuple(dict.fromkeys(value))
    for name in names:
        if name not in allowed:
            raise ValueError(f"{argument} has {name!r}, which there is not{did_you_mean(str(name), allowed)}")
    if not names:
        raise ValueError(f"{argument} is empty; known: {', '.join(sorted(allowed))}")
    return names
