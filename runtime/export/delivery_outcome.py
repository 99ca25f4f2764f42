"""The outcome of an exporter as text, for reports, logs and files."""

from __future__ import annotations

import msgspec

from stepscope.runtime.accounting.ledger import OutputLedger


class UnsentFiles(msgspec.Struct, frozen=True):
    """Files of an exporter with events that the other end has not confirmed."""

    place: str
    """The directory."""
    why: str
    """Why they were not confirmed."""
    command: str
    """Command that sends them."""


def counted(ledger: OutputLedger, unsent: UnsentFiles | None = None) -> str:
    """Outcome of all events: `0 of 80 events confirmed, 77 kept in runs/1/unsent/a (no answer), 3 dropped (undelivered)`.

    Args:
        ledger: accounts of a window or a run.
        unsent: files of unconfirmed events, if there are any.
    """
    if 0 < ledger.offered == ledger.in_flight:  # "0 of 80" would look like a failure
        return f"{ledger.offered:,} events not written yet"
    text = f"{ledger.exported - ledger.unsent:,} of {ledger.offered:,} events"
    if ledger.unsent or unsent is not None:
        what = f"{ledger.unsent:,}" if ledger.unsent else "the end of the stream"
        text += f" confirmed, {what} kept" + (f" in {unsent.place} ({unsent.why})" if unsent is not None else "")
    text += "".join(f", {count:,} dropped ({reason})" for reason, count in ledger.dropped.items() if count)
    return text + (f", {ledger.in_flight:,} not written yet" if ledger.in_flight else "")


def remedy(unsent: UnsentFiles | None) -> str:
    """How to send unconfirmed events, after a semicolon; empty if there are none."""
    return "" if unsent is None else f"; when this process has ended, send that with: {unsent.command}"
