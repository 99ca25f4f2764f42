"""Times and sizes of a connection to a collector."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepscope.runtime.options import PositiveFloat
from stepscope.runtime.settings.checked import Checked

SyncInterval = Annotated[float, msgspec.Meta(gt=0, le=15)]


class LinkSettings(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds and bytes. Unknown fields are refused.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    buffer_bytes: Annotated[int, msgspec.Meta(ge=1 << 16)] = 1 << 30
    """Bytes that may wait on disk for the collector in a run without a journal of all windows. A journal has a limit of its own."""
    message_bytes: Annotated[int, msgspec.Meta(ge=1 << 12, le=8 << 20)] = 1 << 20
    """Frames are sent together up to this size."""
    timeout: PositiveFloat = 10.0
    """For a connection to be made, and for a collector to give a sign of life."""
    first_delay: PositiveFloat = 0.1
    """Until a lost connection is made again; doubled each time."""
    longest_delay: PositiveFloat = 10.0
    """No longer than this."""
    first_sync: SyncInterval = 0.25
    """Between the first comparisons of the clocks."""
    sync_interval: SyncInterval = 5.0
    """Between the later ones."""
    insecure: bool = False
    """Whether another machine may be reached without TLS: others can read the traces and the token, and send commands."""
