"""Sums of ledgers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from stepscope.runtime.accounting.ledger import Ledger, OutputLedger, SourceLedger

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
