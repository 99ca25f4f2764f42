"""The accounts of one exporter, as others see them."""

from __future__ import annotations

import msgspec

from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.export.delivery_outcome import UnsentFiles


class ExporterStatistics(msgspec.Struct, frozen=True):
    """Accounts of one exporter over the run."""

    name: str
    ledger: OutputLedger
    batches: int
    waiting_batches: int
    waiting_events: int
    """Those in the queue, and in the exporter's hands."""
    waiting_bytes: int
    peak_bytes: int
    windows_left_out: int
    """Windows that it was not given, as too many others waited for it; their events are dropped, reason `queue`."""
    errors: int
    first_error: str
    busy_ns: int
    """Time spent in the exporter's calls, in ns."""
    kept: UnsentFiles | None = None
    """Where those events are that are `ledger.kept`; `None` while there are none."""
