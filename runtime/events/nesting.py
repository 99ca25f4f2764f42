"""Makes spans of several sources nest on one track, as viewers require.

Spans of one source nest on their track. Those of two sources may not, as each has its own clock and borders: a Python frame of
torch's tracer begins before the region that is entered in it, and may end within that. A viewer would drop one of them, or end
it at the wrong time. So spans are compared with those of other sources as they arrive:

* Steps and regions keep their exact times.
* A Python frame that crosses a border is cut there, unless this removes more than `MAX_CUT_NS` and `MAX_CUT_SHARE` of it.
* Any other span that crosses a border becomes an async pair, in full length.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind

FRAMES = "python_function"
"""Category of Python frames."""

ANNOTATIONS = "user_annotation"
"""Category of names of the program or a framework: regions, data loading, optimizer steps."""

MAX_CUT_NS = 100_000
"""Time that is cut off a Python frame, if it is not longer."""
MAX_CUT_SHARE = 1 / 32
"""Share of a Python frame that is cut off, if it is not more: the function that calls `step()` crosses the border for as long as
the call lasts."""

MAX_SPANS = 1 << 19
"""Spans in memory per source and window. Beyond that the oldest are dropped."""

Times: TypeAlias = NDArray[np.int64]
Steps: TypeAlias = tuple[NDArray[np.uint32], Times, Times]


class Edges(msgspec.Struct, frozen=True):
    """Begins and ends of the spans of a track, in the order of their times. Spans that touch do not overlap."""

    times: Times
    opens: NDArray[np.bool_]
    partner: Times
    """Index of the other end of the same span."""

    @classmethod
    def of(cls, begins: Times, ends: Times) -> Edges:
        """The edges of spans. Empty spans have none."""
        lasting = ends > begins
        begins, ends = begins[lasting], ends[lasting]
        count = len(begins)
        number = np.arange(count)
        times = np.concatenate([begins, ends])
        opens = np.repeat([True, False], count)
        order = np.lexsort((np.concatenate([number, -number]), np.concatenate([-ends, -begins]), opens, times))
        place = np.empty(2 * count, np.int64)
        place[order] = np.arange(2 * count)
        return cls(times[order], opens[order], place[(order + count) % max(2 * count, 1)])

    def at(self, time: int) -> range:
        """Indexes of the edges at this time."""
        return range(*np.searchsorted(self.times, [time, time + 1]).tolist())

    def cuts(self, begin: int, end: int) -> list[int]:
        """Times at which a span with this begin and end would cross one of these."""
        found: list[int] = []
        at = int(np.searchsorted(self.times, begin, "right"))
        last = int(np.searchsorted(self.times, end, "left"))
        while at < last:
            other = int(self.partner[at])
            across = int(self.times[other])
            if self.opens[at]:
                if across <= end:
                    at = other  # the whole span is within
                else:
                    found.append(int(self.times[at]))
            elif across < begin:
                found.append(int(self.times[at]))
            at += 1
        return found


def fit(events: Block, chosen: NDArray[np.intp], edges: Edges) -> None:
    """Makes spans of a track nest with others, in place: Python frames are cut, other spans are flagged as `ASYNC`.

    Args:
        events: a block.
        chosen: indexes of the track's spans in it.
        edges: edges of the other spans of the track.
    """
    if not len(edges.times) or not len(chosen):
        return
    begins = events["ts"][chosen]
    ends = begins + np.maximum(events["dur"][chosen], 0)
    first = np.searchsorted(edges.times, begins, "right")
    last = np.searchsorted(edges.times, ends, "left")
    same = (edges.times[np.maximum(first, 1) - 1] == begins) | (
        edges.times[np.minimum(last, len(edges.times) - 1)] == ends
    )
    frames = events["category"][chosen] == strings.category(FRAMES)
    for at in np.flatnonzero(((last > first) | same) & (ends > begins)).tolist():
        index, begin, end = chosen[at], int(begins[at]), int(ends[at])
        clipped = bool(events["flags"][index] & int(Flag.CLIPPED))
        cut = _cut(edges, begin, end, clipped) if frames[at] else (begin, end)
        lost = end - begin - (cut[1] - cut[0])
        too_much = lost > max(MAX_CUT_NS, (end - begin) * MAX_CUT_SHARE)
        if too_much or edges.cuts(*cut) or (not clipped and _ambiguous(edges, *cut)):
            events["flags"][index] |= int(Flag.ASYNC)
        elif cut != (begin, end):
            events["ts"][index], events["dur"][index] = cut[0], cut[1] - cut[0]
            events["self_dur"][index] = min(int(events["self_dur"][index]), cut[1] - cut[0])


def cut_frames(events: Block) -> None:
    """Makes the Python frames of one source nest with its own annotations, in place."""
    nested = (events["kind"] == int(Kind.SPAN)) & (events["flags"] & int(Flag.ASYNC) == 0)
    frames = nested & (events["category"] == strings.category(FRAMES))
    annotations = nested & (events["category"] == strings.category(ANNOTATIONS))
    for track in np.unique(events["track"][annotations]).tolist() if frames.any() else ():
        here = events["track"] == track
        begins = events["ts"][here & annotations]
        edges = Edges.of(begins, begins + events["dur"][here & annotations])
        fit(events, np.flatnonzero(here & frames), edges)


def _cut(edges: Edges, begin: int, end: int, clipped: bool) -> tuple[int, int]:
    """The longest part of a frame that crosses no other span, and has no border at the same time as another one.

    Some readers nest spans with the same time in the order of the file, which is not known here. So a frame that was running when
    the window began, and contains a span that begins with the window, begins 1 ns before it.
    """
    borders = [begin, *edges.cuts(begin, end), end]
    first, last = max(zip(borders, borders[1:], strict=False), key=lambda part: part[1] - part[0])
    if clipped and _contains_first(edges, first, last):
        return first - 1, last
    if last - first > 2:
        first += bool(edges.at(first)) and not _contains_first(edges, first, last)
        last -= any(edges.opens[at] for at in edges.at(last))
    return first, last


def _ambiguous(edges: Edges, begin: int, end: int) -> bool:
    """Whether readers that use the order of the file may nest it wrongly."""
    return any(edges.opens[at] for at in edges.at(end)) or _contains_first(edges, begin, end)


def _contains_first(edges: Edges, begin: int, end: int) -> bool:
    """Whether it contains a span that begins with it."""
    return any(edges.opens[at] and edges.times[edges.partner[at]] < end for at in edges.at(begin))


class _Spans:
    """Spans of one source, by arrival."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[tuple[NDArray[np.uint32], Times, Times]] = []

    def add(self, spans: Block) -> None:
        begins = spans["ts"].copy()
        self._parts.append((spans["track"].copy(), begins, begins + spans["dur"]))
        self.count += len(begins)
        while self.count > MAX_SPANS and len(self._parts) > 1:
            self.count -= len(self._parts.pop(0)[0])

    def on(self, track: int) -> tuple[Times, Times]:
        """Begins and ends of the spans on a track."""
        if len(self._parts) > 1:
            columns: Any = zip(*self._parts, strict=True)
            self._parts = [tuple(np.concatenate(column) for column in columns)]  # type: ignore[list-item]
        if not self._parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        tracks, begins, ends = self._parts[0]
        here = tracks == track
        return begins[here], ends[here]


class Rows:
    """The tracks of one window that have spans of several sources."""

    def __init__(self) -> None:
        self._spans: dict[str, _Spans] = {}
        self._edges: dict[tuple[str, int], tuple[int, Edges]] = {}

    def add(self, source: str, events: Block, steps: Steps | None) -> None:
        """Makes spans nest with earlier ones of other sources, in place, and remembers them.

        Args:
            source: source of the events.
            events: events of the window.
            steps: tracks, begins and ends of the window's steps; `None` if the events nest with them already.
        """
        spans = np.flatnonzero(
            (events["kind"] == int(Kind.SPAN)) & (events["flags"] & int(Flag.ASYNC) == 0) & (events["dur"] > 0)
        )
        if not len(spans):
            return
        rows = events["track"][spans]
        for track in np.unique(rows).tolist():
            fit(events, spans[rows == track], self._others(source, track, steps))
        nested = events["flags"][spans] & int(Flag.ASYNC) == 0
        self._spans.setdefault(source, _Spans()).add(events[spans[nested]])

    def _others(self, source: str, track: int, steps: Steps | None) -> Edges:
        others = [spans for name, spans in self._spans.items() if name != source]
        found: list[tuple[Times, Times]] = []
        if steps is not None:
            here = steps[0] == track
            found.append((steps[1][here], steps[2][here]))
        count = sum(spans.count for spans in others) + sum(len(begins) for begins, _ in found)
        cached = self._edges.get((source, track))
        if cached is not None and cached[0] == count:
            return cached[1]
        found += [spans.on(track) for spans in others]
        none = np.zeros(0, np.int64)
        edges = Edges.of(
            np.concatenate([none, *(part[0] for part in found)]), np.concatenate([none, *(part[1] for part in found)])
        )
        self._edges[source, track] = count, edges
        return edges
