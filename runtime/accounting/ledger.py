"""The ledger: produced = exported + dropped + in flight, per producer, stage and window."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import msgspec

from stepscope.runtime.events.record import Block, Kind
from stepscope.runtime.events.survey import survey


def losses(events: Block) -> Counter[str]:
    """What the gaps among these events say was lost, by reason."""
    return Counter({"overflow": int(events["id"][events["kind"] == int(Kind.GAP)].sum())}) + Counter()


def events_in(block: Block) -> int:
    """Events of a block, gaps apart."""
    return len(block) - survey(block).gaps


class SourceLedger(msgspec.Struct, frozen=True):
    """What became of one producer's events in one window (or in the whole run)."""

    produced: int = 0
    """Events that the producer made, those included that it had to drop itself."""
    accepted: int = 0
    """Events that reached the window, or any window of the run."""
    dropped: dict[str, int] = {}
    """By reason: `overflow` (ring full), `late` (after the window closed), `inbox` (inbox
    full), `source` (by the device), `closed` (the run was over)."""
    outside: int = 0
    """In the accounts of a run: events of no window, or for another profiler."""
    superseded: int = 0
    """In the accounts of a run: records of spans that had been written as open ones before."""

    def balanced(self) -> bool:
        """Whether nothing is unaccounted for."""
        return self.produced == self.accepted + self.outside + self.superseded + sum(self.dropped.values())


class OutputLedger(msgspec.Struct, frozen=True):
    """What became of a window's (or run's) events at one exporter."""

    offered: int = 0
    exported: int = 0
    """Events that were written, or confirmed by the other end; and those that are `kept`."""
    dropped: dict[str, int] = {}
    """By reason: `queue` (its queue was full), `error` (it raised), `closed` (deadline passed), `cap` (size limit),
    `deleted` (its file was deleted while it was written), and reasons of exporters that settle."""
    in_flight: int = 0
    """Events neither exported nor dropped yet: offered = exported + dropped + in flight."""
    kept: int = 0
    """Of those exported: events that nobody has confirmed, and that lie in files until they are sent."""


class Ledger(msgspec.Struct, frozen=True):
    """The accounts of one window or of a whole run."""

    sources: dict[str, SourceLedger] = {}
    outputs: dict[str, OutputLedger] = {}
    cut: dict[str, int] = {}
    """What was shortened rather than dropped (`_core.counts()`): names, values, arguments."""
    windows_left_out: int = 0
    """In the accounts of a run: windows of which nothing was recorded, as the loop was too far behind when they began."""

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

    def dropped(self) -> int:
        """Events that sources lost, over all reasons."""
        return sum(sum(source.dropped.values()) for source in self.sources.values())


MOST = (1 << 63) - 1
"""Counts are what journals claim; their sums must fit into a journal."""


def added_up(ledgers: Iterable[Ledger]) -> Ledger:
    """The sum of ledgers, by source, output and reason, in a time that is in proportion to what they say."""
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
        {name: _source(several) for name, several in sources.items()},
        {name: _output(several) for name, several in outputs.items()},
        _counts(cuts),
        _sum(left_out),
    )


def _source(several: list[SourceLedger]) -> SourceLedger:
    return SourceLedger(
        produced=_sum(one.produced for one in several),
        accepted=_sum(one.accepted for one in several),
        dropped=_counts(one.dropped for one in several),
        outside=_sum(one.outside for one in several),
        superseded=_sum(one.superseded for one in several),
    )


def _output(several: list[OutputLedger]) -> OutputLedger:
    return OutputLedger(
        offered=_sum(one.offered for one in several),
        exported=_sum(one.exported for one in several),
        dropped=_counts(one.dropped for one in several),
        in_flight=_sum(one.in_flight for one in several),
        kept=_sum(one.kept for one in several),
    )


def _counts(several: Iterable[dict[str, int]]) -> dict[str, int]:
    added = Counter[str]()
    for counts in several:
        added.update(counts)
    return {reason: _sum([count]) for reason, count in added.items()}


def _sum(counts: Iterable[int]) -> int:
    return max(-MOST, min(sum(counts), MOST))
