"""Sums of ledgers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stepscope.runtime.ledger import Ledger, OutputLedger, SourceLedger

MOST = (1 << 63) - 1
"""Counts are what journals claim; their sums must fit into a journal."""


def added_up(ledgers: Iterable[Ledger]) -> Ledger:
    """The sum of ledgers, by source, output and reason."""
    sources: dict[str, SourceLedger] = {}
    outputs: dict[str, OutputLedger] = {}
    cut: dict[str, int] = {}
    left_out = 0
    for ledger in ledgers:
        for name, source in ledger.sources.items():
            sources[name] = _source(sources.get(name, SourceLedger()), source)
        for name, output in ledger.outputs.items():
            outputs[name] = _output(outputs.get(name, OutputLedger()), output)
        cut = _counts(cut, ledger.cut)
        left_out = _sum(left_out, ledger.windows_left_out)
    return Ledger(sources, outputs, cut, left_out)


def _source(one: SourceLedger, other: SourceLedger) -> SourceLedger:
    return SourceLedger(
        produced=_sum(one.produced, other.produced),
        accepted=_sum(one.accepted, other.accepted),
        dropped=_counts(one.dropped, other.dropped),
        outside=_sum(one.outside, other.outside),
        superseded=_sum(one.superseded, other.superseded),
    )


def _output(one: OutputLedger, other: OutputLedger) -> OutputLedger:
    return OutputLedger(
        offered=_sum(one.offered, other.offered),
        exported=_sum(one.exported, other.exported),
        dropped=_counts(one.dropped, other.dropped),
        in_flight=_sum(one.in_flight, other.in_flight),
        kept=_sum(one.kept, other.kept),
    )


def _counts(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    added = Counter(one)
    added.update(other)
    return {reason: _sum(count, 0) for reason, count in added.items()}


def _sum(one: int, other: int) -> int:
    return max(-MOST, min(one + other, MOST))
