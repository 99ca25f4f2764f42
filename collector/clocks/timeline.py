"""One reference clock for all ranks, and the map from each rank's clock to it, with a bound of the error."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from stepscope.collector.clocks.piece import Floats, Piece, RoundTrips, Times, pieces_of
from stepscope.runtime import _core
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import Block
from stepscope.runtime.journal.records import ClockSync

Pieces = Mapping[str, Sequence[Piece]]
"""Pieces in the order of their times, by the collector's clock."""

LEEWAY_NS = 50_000.0
"""Two that are apart by less than this, and what both leave open, are taken for one all the same: clocks keep to their limits
about, and who reads one clock is known to be exactly in order."""

UNKNOWN = float("inf")
"""Stands for an unknown error."""


class Readings(msgspec.Struct, frozen=True):
    """Comparisons of a rank's clock with the collector's."""

    syncs: Sequence[ClockSync]
    anchor: ClockAnchor
    """The rank's wall clock."""


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's clock, and the measurements from which it was made."""

    model: ClockModel
    trips: int
    refused: int
    """Round trips that contradict themselves, or fit no clock."""
    unsteady: int
    """Number of times that the rank's clock changed its rate, or stepped."""


class _Link(msgspec.Struct):
    """How far one collector's clock is ahead of another, in ns."""

    low: int
    high: int

    @property
    def width(self) -> int:
        return self.high - self.low


class Timeline:
    """The reference: the collector's clock that most clocks of ranks were compared with, by most round trips among those.

    A collector that was started again has another clock. Ranks that have seen both know how far these are apart, which
    holds for all ranks; it is taken to be constant, since both go on by one machine's monotonic clock.
    """

    def __init__(self, readings: Mapping[str, Readings]) -> None:
        """Args: what each clock of a rank was compared with."""
        found = {key: _by_clock(reading.syncs) for key, reading in readings.items()}
        # Clocks of ranks are counted, and not round trips, of which one rank may claim any number.
        ranks, trips = Counter[str](), Counter[str]()
        for its in found.values():
            there = {clock: sum(piece.trips for piece in fit.pieces) for clock, fit in its.items() if fit.pieces}
            ranks.update(there.keys())
            trips.update(there)
        self.reference = min(trips, key=lambda clock: (-ranks[clock], -trips[clock], clock)) if trips else ""
        """Name of the collector's clock that counts; empty if no rank was ever compared with one."""
        places = _places(self.reference, found)
        self._fitted = {key: _fitted(found[key], places, reading.anchor) for key, reading in readings.items()}

    def __getitem__(self, key: str) -> Fitted:
        return self._fitted[key]


class _Fit(msgspec.Struct, frozen=True):
    pieces: list[Piece]
    trips: int
    refused: int
    unsteady: int


def _by_clock(syncs: Iterable[ClockSync]) -> dict[str, _Fit]:
    by_clock: dict[str, list[ClockSync]] = {}
    for sync in syncs:
        by_clock.setdefault(sync.clock, []).append(sync)
    fits: dict[str, _Fit] = {}
    for clock, its in by_clock.items():
        trips = RoundTrips.of(its)
        pieces, unsteady = pieces_of(trips)
        lost = len(trips) - sum(piece.trips for piece in pieces)
        fits[clock] = _Fit(pieces, len(its), trips.refused + lost, unsteady)
    return fits


def _fitted(fits: Mapping[str, _Fit], places: Mapping[str, _Link], anchor: ClockAnchor) -> Fitted:
    placed = [
        Placed(piece, places[clock].low, places[clock].high)
        for clock, fit in fits.items()
        if clock in places
        for piece in fit.pieces
    ]
    is_connected = bool(placed)
    if not is_connected:
        # Unix time of a collector that nothing connects with the reference is still a better guess than none.
        clock = max(fits, key=lambda name: len(fits[name].pieces), default="")
        placed = [Placed(piece, 0, 0) for piece in fits[clock].pieces] if clock else []
    return Fitted(
        model=ClockModel(placed, anchor, is_connected=is_connected),
        trips=sum(fit.trips for fit in fits.values()),
        refused=sum(fit.refused for fit in fits.values()),
        unsteady=sum(fit.unsteady for fit in fits.values()),
    )


def _places(reference: str, found: Mapping[str, Mapping[str, _Fit]]) -> dict[str, _Link]:
    """The offset to the reference of each clock that links connect with it, by the most exact chain of links."""
    links: dict[tuple[str, str], _Link] = {}
    for fits in found.values():
        for one, other, link in _links_of(fits):
            before = links.get((one, other))
            links[one, other] = link if before is None else _both(before, link)
    places = {reference: _Link(0, 0)} if reference else {}
    waiting = set(places)
    while waiting:
        here = waiting.pop()
        for (one, other), link in links.items():
            for start, end, low, high in ((one, other, -link.high, -link.low), (other, one, link.low, link.high)):
                if start != here:
                    continue
                place = _Link(places[here].low + low, places[here].high + high)
                if end not in places or place.width < places[end].width:
                    places[end] = place
                    waiting.add(end)
    return places


def _links_of(fits: Mapping[str, _Fit]) -> list[tuple[str, str, _Link]]:
    """(one, other, how far `one` is ahead of `other`) of the clocks that follow one another at one rank."""
    rows = sorted(
        ((piece.start, clock, piece) for clock, fit in fits.items() for piece in fit.pieces), key=lambda row: row[:2]
    )
    found: list[tuple[str, str, _Link]] = []
    for (_, clock, piece), (_, next_clock, following) in zip(rows, rows[1:], strict=False):
        if clock == next_clock:
            continue
        (one, first), (other, second) = sorted(((clock, piece), (next_clock, following)), key=lambda pair: pair[0])
        times = (piece.end, (piece.end + following.start) // 2, following.start)
        link = _difference(first, second, times[0])
        for at in times[1:]:
            link = _both(link, _difference(first, second, at))
        found.append((one, other, link))
    return found


def _difference(one: Piece, other: Piece, at: int) -> _Link:
    when = np.array([at], np.int64)
    (one_low,), (one_high,) = (values.tolist() for values in one.reach(when))
    (other_low,), (other_high,) = (values.tolist() for values in other.reach(when))
    base = one.base - other.base
    return _Link(base + math.floor(one_low - other_high), base + math.ceil(one_high - other_low))


def _both(one: _Link, other: _Link) -> _Link:
    """The offsets that both measurements allow; those that either allows, if they contradict each other."""
    low, high = max(one.low, other.low), min(one.high, other.high)
    return _Link(low, high) if low <= high else _Link(min(one.low, other.low), max(one.high, other.high))


def pieces_by_clock(syncs: Iterable[ClockSync]) -> Pieces:
    """Pieces of the clocks with which one process was compared, by clock."""
    return {clock: fit.pieces for clock, fit in _by_clock(syncs).items()}


def contradict(one: Pieces, other: Pieces) -> bool:
    """Whether two pieces contradict each other: no clock can have shown both."""
    return any(_apart(piece, other[clock]) for clock in one.keys() & other.keys() for piece in one[clock])


def _apart(piece: Piece, others: Sequence[Piece]) -> bool:
    """Whether a piece is far from the one of the others that is nearest in time."""
    if not others:
        return False
    at = bisect_left(others, piece.start, key=lambda other: other.start)
    near = min(others[max(at - 1, 0) : at + 1], key=lambda other: _between(piece, other))
    times = np.array([piece.start, (piece.start + piece.end) // 2, piece.end], np.int64)
    low, high = piece.reach(times)
    its_low, its_high = (reach + float(near.base - piece.base) for reach in near.reach(times))
    gap = np.maximum(low, its_low) - np.minimum(high, its_high)
    return bool((gap > (high - low) + (its_high - its_low) + LEEWAY_NS).any())


def _between(one: Piece, other: Piece) -> int:
    """Time between two pieces, 0 if they overlap."""
    return max(one.start - other.end, other.start - one.end, 0)


class Placed(msgspec.Struct, frozen=True):
    """A piece, with the offset of its collector's clock from the reference."""

    piece: Piece
    low: int
    """Least offset, in ns, by which the collector's clock is ahead of the reference."""
    high: int
    """Largest offset, in ns."""


class ClockModel:
    """Maps times of a rank's monotonic clock to the reference. The map grows everywhere, so what nests goes on nesting.

    Between the beginnings and ends of its pieces it is straight, and there in the middle of what is possible.
    """

    def __init__(self, pieces: Sequence[Placed], fallback: ClockAnchor, *, is_connected: bool = True) -> None:
        """
        Args:
            pieces: what was measured, in any order; may be none.
            fallback: the rank's wall clock, which counts if nothing was measured.
            is_connected: whether the pieces determine the rank's offset.
        """
        self._pieces = sorted(pieces, key=lambda placed: (placed.piece.start, placed.piece.end))
        self.is_connected = is_connected and bool(pieces)
        """Whether there is a bound at all."""
        if self._pieces:
            self._base = self._pieces[0].piece.base - self._pieces[0].low
            self._make_knots()
        else:
            self._base = fallback.wall_ns - fallback.monotonic_ns
            self._knots, self._values = np.array([fallback.monotonic_ns], np.int64), np.zeros(1)
            self._before = self._after = 0.0

    def to_reference(self, at: Times) -> Times:
        """The reference's ns for ns of the rank's monotonic clock."""
        return at + self._base + np.rint(self._offsets(at)).astype(np.int64)

    def align(self, events: Block) -> bool:
        """Gives events the reference's times, in place, as `to_reference` has them. Nested events stay nested, to the
        nanosecond. Returns whether any event is of a flow."""
        return _core.align(events, self._knots, self._values, self._base, self._before, self._after)

    def error(self, at: Times) -> Floats:
        """The largest error of `to_reference`, in ns; `UNKNOWN` if nothing bounds it."""
        if not self.is_connected:
            return np.full(len(at), UNKNOWN)
        low, high = self._possible(at)
        chosen = self._offsets(at)
        return np.maximum(high - chosen, chosen - low) + 1.0

    def drift_ppm(self, at: int) -> tuple[float, float]:
        """The rate at which the reference gains on the rank's clock around a time, and its largest error, in parts per
        million."""
        if not self._pieces:
            return 0.0, UNKNOWN
        low, high = self._pieces[int(self._nearest(np.array([at], np.int64))[0])].piece.slopes
        return (low + high) / 2 * 1e6, (high - low) / 2 * 1e6

    def _make_knots(self) -> None:
        knots = np.unique(np.array([(p.piece.start, p.piece.end) for p in self._pieces], np.int64))
        low, high = self._possible(knots)
        values = (low + high) / 2
        for index in range(1, len(knots)):
            # Even where the pieces say nonsense, time does not run backwards.
            values[index] = max(values[index], values[index - 1] - 0.5 * float(knots[index] - knots[index - 1]))
        self._knots, self._values = knots, values
        self._before, self._after = sum(self._pieces[0].piece.slopes) / 2, sum(self._pieces[-1].piece.slopes) / 2

    def _offsets(self, at: Times) -> Floats:
        first, last = int(self._knots[0]), int(self._knots[-1])
        knots: Floats = (self._knots - first).astype(np.float64)
        times: Floats = (at - first).astype(np.float64)
        extrapolated: Floats = self._before * np.minimum(at - first, 0) + self._after * np.maximum(at - last, 0)
        inside: Floats = np.asarray(np.interp(times, knots, self._values), np.float64)
        return inside + extrapolated

    def _possible(self, at: Times) -> tuple[Floats, Floats]:
        """The lowest and the highest offset at each time, in ns more than the base: what the nearest pieces leave."""
        low, high = np.empty(len(at)), np.empty(len(at))
        which = self._nearest(at)
        for index in np.unique(which).tolist():
            where = np.flatnonzero(which == index)
            lowest, highest = self._reach(index, at[where])
            for neighbour in (index - 1, index + 1):
                if not 0 <= neighbour < len(self._pieces):
                    continue
                its_low, its_high = self._reach(neighbour, at[where])
                apart = np.maximum(lowest, its_low) > np.minimum(highest, its_high)
                # Pieces that contradict each other: one is wrong, and nobody knows which.
                lowest, highest = (
                    np.where(apart, np.minimum(lowest, its_low), np.maximum(lowest, its_low)),
                    np.where(apart, np.maximum(highest, its_high), np.minimum(highest, its_high)),
                )
            low[where], high[where] = lowest, highest
        return low, high

    def _nearest(self, at: Times) -> Times:
        ends = np.array([placed.piece.end for placed in self._pieces], np.int64)
        starts = np.array([placed.piece.start for placed in self._pieces], np.int64)
        borders = ends[:-1] + (starts[1:] - ends[:-1]) // 2
        return np.asarray(np.searchsorted(np.maximum.accumulate(borders), at), np.int64)

    def _reach(self, index: int, at: Times) -> tuple[Floats, Floats]:
        placed = self._pieces[index]
        low, high = placed.piece.reach(at)
        base = placed.piece.base - self._base
        return low + float(base - placed.high), high + float(base - placed.low)
