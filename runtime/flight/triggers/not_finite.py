"""A counter that is not a finite number any more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind
from stepscope.runtime.flight.triggers.trigger import Evaluator, Finding, News
from stepscope.runtime.settings.checked import Checked


class NotFinite(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fires when a counter, written by `counter()` or a backend, becomes NaN or infinite.

    Once for each counter: it may fire again after the counter was finite in between. A value that is no number, such as text
    or a tensor of several, is counted as an argument that could not be read, and fires nothing.
    """

    name = "not_finite"

    counters: tuple[str, ...] = ()
    """Names of those to watch; none means all."""

    def evaluator(self) -> Evaluator:
        """Knows which counters are not finite now."""
        return _Evaluator(self.counters)


class _Evaluator:
    def __init__(self, names: Sequence[str]) -> None:
        self._watched = np.array([strings.intern(name) for name in names], np.uint32)
        self._bad: set[int] = set()

    def look(self, news: News) -> Sequence[Finding]:
        found: list[Finding] = []
        for _, events in news.blocks:
            counters = events[(events["kind"] == int(Kind.COUNTER)) & (events["flags"] & int(Flag.NO_NUMBER) == 0)]
            if len(self._watched):
                counters = counters[np.isin(counters["name"], self._watched)]
            if len(counters):
                found += self._changes(counters)
        return found

    def _changes(self, counters: Block) -> list[Finding]:
        """Places at which counters became not finite. It looks one by one only at names that are or become so."""
        found: list[Finding] = []
        bad = ~np.isfinite(counters["value"])
        if not bad.any() and not self._bad:
            return found
        for name in np.unique(counters["name"][bad | np.isin(counters["name"], list(self._bad))]).tolist():
            own = counters["name"] == name
            rows, states = counters[own], bad[own]
            order = np.argsort(rows["ts"], kind="stable")
            states = states[order]
            before = np.append([name in self._bad], states[:-1])
            for index in np.flatnonzero(states & ~before)[:1]:
                row = rows[order[index]]
                value = float(row["value"])
                text = f"counter {strings.text(name)!r} is {value}"
                found.append(Finding(at=int(row["ts"]), value=str(value), text=text))
            (self._bad.add if states[-1] else self._bad.discard)(name)
        return found
