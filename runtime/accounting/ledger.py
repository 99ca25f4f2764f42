"""The ledger: produced = exported + dropped + in flight, per producer, stage and window."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from stepscope.runtime.events.record import Block
from stepscope.runtime.events.survey import survey


def losses(events: Block) -> Counter[str]:
    """Returns the number of lost events that the gaps among these events report, by reason."""
    return Counter({"overflow": survey(events).lost}) + Counter()


def events_in(block: Block) -> int:
    """Returns the number of events in a block, without gaps."""
    return len(block) - survey(block).gaps


class SourceLedger(msgspec.Struct, frozen=True):
    """Accounts of the events of one source in one window, or in the whole run."""

    produced: int = 0
    """Events that the source produced, including those that it dropped itself."""
    accepted: int = 0
    """Events that reached the window, or any window of the run."""
    dropped: dict[str, int] = {}
    """Lost events by reason: `overflow` (ring full), `late` (after the window closed), `inbox` (inbox full), `source` (by the
    device), `closed` (after the run)."""
    outside: int = 0
    """In the accounts of a run: events that belong to no window, or to another profiler."""
    superseded: int = 0
    """In the accounts of a run: records of spans that had been written as open spans before."""
    missing: dict[str, int] = {}
    """Time in ns, by reason, for which the source has no events, or not all, although it should record."""

    def balanced(self) -> bool:
        """Whether every event is accounted for."""
        return self.produced == self.accepted + self.outside + self.superseded + sum(self.dropped.values())


class OutputLedger(msgspec.Struct, frozen=True):
    """Accounts of the events of one window, or of the whole run, at one exporter."""

    offered: int = 0
    exported: int = 0
    """Events that were written or that a server confirmed, and those that are `unsent`."""
    dropped: dict[str, int] = {}
    """Lost events by reason: `queue` (its queue was full), `error` (it raised), `closed` (deadline passed), `cap` (size limit),
    `deleted` (its file was deleted while it was written), and reasons that an exporter reports itself."""
    in_flight: int = 0
    """Events neither exported nor dropped yet: offered = exported + dropped + in flight. An output that closes a window does not
    know what others will write of it later; the accounts of the run say that."""
    unsent: int = 0
    """Exported events in files that were not sent yet, or not confirmed by the server."""


class Ledger(msgspec.Struct, frozen=True):
    """The accounts of one window or of a whole run."""

    sources: dict[str, SourceLedger] = {}
    outputs: dict[str, OutputLedger] = {}
    cut: dict[str, int] = {}
    """Number of shortened names, values and arguments (`_core.counts()`)."""
    windows_left_out: int = 0
    """In the accounts of a run: windows that were not recorded, because the loop was too far behind when they began."""

    def __str__(self) -> str:
        """One line for people: `98 of 100 events; dropped: 2 of recorder (overflow)`."""
        accepted = sum(source.accepted for source in self.sources.values())
        produced = sum(source.produced for source in self.sources.values())
        lost = [
            f"{n:,} of {name} ({why})" for name, source in self.sources.items() for why, n in source.dropped.items()
        ]
        lost += [
            f"{n:,} at {name} ({why})" for name, output in self.outputs.items() for why, n in output.dropped.items()
        ]
        return f"{accepted:,} of {produced:,} events" + (f"; dropped: {', '.join(lost)}" if lost else "")

    def lost(self, output: str) -> Counter[str]:
        """Events by reason that sources lost, or that this output did not write."""
        lost = Counter[str]()
        for source in self.sources.values():
            lost.update(source.dropped)
        if output in self.outputs:
            lost.update(self.outputs[output].dropped)
        return lost

    def dropped(self) -> int:
        """Events that sources lost, over all reasons."""
        return sum(sum(source.dropped.values()) for source in self.sources.values())


L = TypeVar("L", SourceLedger, OutputLedger)

MAX_COUNT = (1 << 63) - 1
"""Counts of journals may be damaged; their sums must fit into a journal."""


def sum_ledgers(ledgers: Iterable[Ledger]) -> Ledger:
    """Adds ledgers by source, output and reason, in linear time."""
    sources: defaultdict[str, list[SourceLedger]] = defaultdict(list)
    outputs: defaultdict[str, list[OutputLedger]] = defaultdict(list)
    cuts: list[dict[str, int]] = []
    left_out: list[int] = []
    for ledger in ledgers:
        for name, source in ledger.sources.items():
            sources[name].append(source)
        for name, output in ledger.outputs.items():
            outputs[name].append(output)
        cuts.append(ledger.cut)
        left_out.append(ledger.windows_left_out)
    return Ledger(
        {name: _sums(SourceLedger, each) for name, each in sources.items()},
        {name: _sums(OutputLedger, each) for name, each in outputs.items()},
        _counts(cuts),
        _sum(left_out),
    )


def _sums(kind: type[L], ledgers: Sequence[L]) -> L:
    """The sum of ledgers of a kind, each of whose fields is a count, or counts by reason."""
    sums: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        column: list[Any] = [getattr(each, name) for each in ledgers]
        sums[name] = _counts(column) if isinstance(column[0], dict) else _sum(column)
    return kind(**sums)


def _counts(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for counts in counters:
        total.update(counts)
    return {reason: _sum([count]) for reason, count in total.items()}


def _sum(counts: Iterable[int]) -> int:
    return max(-MAX_COUNT, min(sum(counts), MAX_COUNT))
