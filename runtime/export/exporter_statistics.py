"""A snapshot of the accounts of one exporter."""

from __future__ import annotations

import msgspec

from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.export.delivery_outcome import UnsentFiles


class ExporterStatistics(msgspec.Struct, frozen=True):
    """Accounts of one exporter over the run."""

    name: str
    ledger: OutputLedger
    waiting_events: int
    """Events in the queue, in the current call, or in flight."""
    waiting_bytes: int
    peak_bytes: int
    windows_left_out: int
    """Windows that were skipped because too many others waited for it. Their events were dropped, with the reason `queue`."""
    errors: int
    first_error: str
    busy_ns: int
    """Time spent in the exporter's calls, the one in progress included, in ns."""
    unsent_files: UnsentFiles | None = None
    """Files of the events in `ledger.unsent`; `None` if there are none."""
