"""Collectives by step and name: how long they took, how much of that was waiting for other ranks, how many bytes they had.

Ranks leave a blocking collective at about the same time, so the one that was in it for the shortest time came last, and what
the others were in it for beyond that is waiting. This compares no clocks. The rank that came last shows how long the transfer takes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final, cast

import msgspec

from stepscope.analysis.findings import CollectiveTimes
from stepscope.analysis.tables.span_choice import SpanChoice
from stepscope.runtime.display.text_table import human_time, printable, shorten
from stepscope.runtime.events import strings
from stepscope.runtime.events.arguments import arguments
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.windows.step_facts import Facts, Phase, class_of

BYTES: Final = "bytes"
"""Argument of a span with which the program says how many bytes of this rank a collective has."""

MOST_RUNS = 1 << 17
"""Runs of collectives that are kept; further ones are left out of sums."""
MOST_COLLECTIVES = 20
"""Names in an answer."""

UNKNOWN: Final = -1
_DIMENSIONS, _TYPES = "Input Dims", "Input type"
_ELEMENTS, _TYPE = "In msg nelems", "dtype"
_SIZES: Final[Mapping[str, int]] = {
    "double": 8, "long": 8, "long int": 8, "c10::complex<float>": 8, "float": 4, "int": 4, "c10::half": 2,
    "c10::bfloat16": 2, "half": 2, "bfloat16": 2, "short": 2, "short int": 2, "signed char": 1, "unsigned char": 1,
    "char": 1, "byte": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element, by the names that torch has for types in traces, in small letters."""

_PEERS: Final = re.compile(r"(?P<one>\d+)(?P<way>->|<-)(?P<other>\d+)")

Key = tuple[int, str, int]
"""Step, name, and which of the runs of that name in the step, from 0."""


class CollectiveRun(msgspec.Struct, frozen=True, gc=False):
    """One collective of this rank."""

    window: int
    step: int
    name: str
    ts: int
    dur: int
    bytes: int
    """Size of this rank's input tensors; `UNKNOWN` if it was not recorded."""
    peer: str = ""
    """`<from>-<to>`, ranks of a transfer between two, as its name has them; empty for other collectives."""


def is_collective(name: str, category: str) -> bool:
    """Whether a span is a collective, by its name and category."""
    return class_of(name, category) == Phase.COMMUNICATION


class CollectiveTable:
    """Keeps the runs of collectives.

    Args:
        chosen: whether a span of this name and category is one.
    """

    def __init__(self, chosen: Callable[[str, str], bool] = is_collective) -> None:
        self.runs: list[CollectiveRun] = []
        self.left_out = 0
        """Runs for which there was no room."""
        self.in_groups = False
        """Whether only a part of the job's ranks take part in some collectives: then runs of the same name on two ranks may be of
        different collectives."""
        self._chosen = SpanChoice(chosen)

    def update(self, batch: EventBatch) -> None:
        """Takes the events of a batch."""
        events = batch.events
        found = events[(events["kind"] == Kind.SPAN) & self._chosen.of(events)]
        room = max(MOST_RUNS - len(self.runs), 0)
        self.left_out += max(len(found) - room, 0)
        for event in found[:room]:
            name = strings.text(int(event["name"]))
            self.runs.append(
                CollectiveRun(
                    window=batch.window,
                    step=int(event["step"]),
                    name=name,
                    ts=int(event["ts"]),
                    dur=int(event["dur"]),
                    bytes=_bytes_of(event, batch),
                    peer=_peer_of(name),
                )
            )

    def keyed(self) -> dict[Key, CollectiveRun]:
        """Each run by its step, its name and its place among these."""
        places: Counter[tuple[int, str]] = Counter()
        found: dict[Key, CollectiveRun] = {}
        for run in sorted(self.runs, key=lambda run: run.ts):
            found[run.step, run.name, places[run.step, run.name]] = run
            places[run.step, run.name] += 1
        return found

    def answer(self, steps: Facts, fastest: Mapping[Key, int]) -> tuple[CollectiveTimes, ...]:
        """Sums by name over the steps that are judged, the longest first.

        Args:
            steps: those that are judged.
            fastest: of `fastest_of`.
        """
        if self.left_out:  # of later steps they are missing
            steps = steps[steps["end"] <= self.runs[-1].ts]
        judged = set(zip(steps["window"].tolist(), steps["step"].tolist(), strict=True))
        names: defaultdict[str, list[tuple[CollectiveRun, int | None]]] = defaultdict(list)
        for key, run in self.keyed().items():
            if (run.window, run.step) in judged:
                names[run.name].append((run, wait_of(key, run, fastest)))
        times = [_times(name, runs, len(judged)) for name, runs in names.items()]
        return tuple(sorted(times, key=lambda each: (-each.ns, each.name))[:MOST_COLLECTIVES])


def fastest_of(ranks: Sequence[CollectiveTable]) -> dict[Key, int]:
    """For each collective that all ranks have run equally often in a step: ns on the rank that was in it for the shortest time. Empty for
    one rank alone, and where ranks form groups."""
    if any(each.in_groups for each in ranks):
        return {}
    keyed = [each.keyed() for each in ranks if each.runs]
    if len(keyed) < 2:
        return {}
    counts = [Counter((step, name) for step, name, _ in found) for found in keyed]
    same = {which for which, count in counts[0].items() if all(other[which] == count for other in counts[1:])}
    return {key: min(found[key].dur for found in keyed) for key in keyed[0] if key[:2] in same}


def wait_of(key: Key, run: CollectiveRun, fastest: Mapping[Key, int]) -> int | None:
    """ns that a rank waited in a collective for the others; `None` if that is not known."""
    return None if key not in fastest else max(run.dur - fastest[key], 0)


def _times(name: str, runs: list[tuple[CollectiveRun, int | None]], steps: int) -> CollectiveTimes:
    waits = [wait for _, wait in runs]
    sizes = [run.bytes for run, _ in runs]
    ns = sum(run.dur for run, _ in runs)
    waited = None if None in waits else sum(wait for wait in waits if wait is not None)
    size = None if UNKNOWN in sizes or not any(sizes) else sum(sizes)
    transit = ns - (waited or 0)
    return CollectiveTimes(
        name=name,
        calls=len(runs) / steps,
        ns=ns / steps,
        wait_ns=None if waited is None else waited / steps,
        bytes=None if size is None else size / steps,
        bandwidth=size / transit * 1e9 if size is not None and transit else None,
    )


def _peer_of(name: str) -> str:
    """torch names transfers `nccl:send 0->1`, and on the other rank `nccl:recv 1<-0`."""
    found = _PEERS.search(name)
    if found is None:
        return ""
    ranks = found["one"], found["other"]
    return "-".join(ranks if found["way"] == "->" else ranks[::-1])


def _bytes_of(event: Any, batch: EventBatch) -> int:
    values = arguments(batch, event)
    declared = values.get(BYTES)
    if isinstance(declared, int | float):
        return int(declared) if 0 <= declared < 1 << 60 else UNKNOWN
    elements, kind = values.get(_ELEMENTS), values.get(_TYPE)
    if isinstance(elements, int) and isinstance(kind, str) and kind.lower() in _SIZES:
        return elements * _SIZES[kind.lower()]
    shapes, kinds = (_list_of(values.get(name)) for name in (_DIMENSIONS, _TYPES))
    tensors = [(shape, str(kind).lower()) for shape, kind in zip(shapes, kinds, strict=False)]
    sized = [(shape, _SIZES[kind]) for shape, kind in tensors if kind in _SIZES]
    try:
        return sum(prod(shape) * size for shape, size in sized) if sized else UNKNOWN
    except TypeError:  # a list of tensors, without their types
        return UNKNOWN


def _list_of(value: object) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def collectives_text(collectives: Sequence[CollectiveTimes]) -> str:
    """A line about the collectives that took longest in a step."""
    first = collectives[0]
    calls = f"{first.calls:.3g} call{'' if first.calls == 1 else 's'}"
    parts = [f"{human_time(first.ns)} a step in {shorten(printable(first.name), 48)} ({calls})"]
    if first.wait_ns is not None:
        parts.append(f"of that {human_time(first.wait_ns)} waits for other ranks")
    if first.bytes is not None and first.bandwidth is not None:
        parts.append(f"{first.bytes / 1e6:,.3g} MB a step at {first.bandwidth / 1e9:.3g} GB/s")
    return ", ".join(parts)
