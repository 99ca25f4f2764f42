"""The outcome of an exporter: what became of its events, in the words that reports, logs and files use."""

from __future__ import annotations

import msgspec

from stepscope.runtime.accounting.ledger import OutputLedger


class UnsentFiles(msgspec.Struct, frozen=True):
    """Where an exporter has put what the other end has not confirmed."""

    place: str
    """The directory."""
    why: str
    """Why it was not confirmed."""
    command: str
    """What sends it."""


def counted(ledger: OutputLedger, kept: UnsentFiles | None = None) -> str:
    """What became of each event: `0 of 80 events confirmed, 77 kept in runs/1/unsent/a (no answer), 3 dropped (undelivered)`.

    Args:
        ledger: of a window or a run.
        kept: where those are that are kept, if that is known.
    """
    said = f"{ledger.exported - ledger.kept:,} of {ledger.offered:,} events"
    if ledger.kept or kept is not None:
        what = f"{ledger.kept:,}" if ledger.kept else "the end of the stream"
        said += f" confirmed, {what} kept" + (f" in {kept.place} ({kept.why})" if kept is not None else "")
    said += "".join(f", {count:,} dropped ({reason})" for reason, count in ledger.dropped.items() if count)
    return said + (f", {ledger.in_flight:,} in flight" if ledger.in_flight else "")


def remedy(kept: UnsentFiles | None) -> str:
    """What is to be done about what is kept, after a semicolon; empty if nothing is."""
    return "" if kept is None else f"; when this process has ended, send that with: {kept.command}"
