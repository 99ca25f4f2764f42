"""A ledger as lines for people."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.runtime.accounting.ledger import Ledger, SourceLedger
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.export.delivery_outcome import counted


def lines(ledger: Ledger) -> Iterator[str]:
    """Rows: events that sources made and lost; then each source with events in no window, each output, and texts that were left out or cut."""
    yield str(ledger)
    for name, source in ledger.sources.items():
        if source.outside or source.superseded:
            yield f"{name}: {_source(source)}"
    for name, output in ledger.outputs.items():
        yield f"{name}: {counted(output)}"
    if ledger.windows_left_out:
        yield f"left out: {human_count(ledger.windows_left_out, 'window')}, which began faster than they could be sorted"
    if any(ledger.cut.values()):
        yield "cut: " + ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in ledger.cut.items() if count)


def _source(source: SourceLedger) -> str:
    parts = ((source.outside, "in no window"), (source.superseded, "written as open ones before"))
    return f"of {source.produced:,} events, " + ", ".join(f"{count:,} {what}" for count, what in parts if count)
