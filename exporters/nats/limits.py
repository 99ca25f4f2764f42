"""Limits of all streams together in JetStream."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from stepscope.runtime.settings.checked import Checked


class NatsLimits(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that the stream in JetStream is made with, if it is not there yet: whoever made it decides them. Unknown fields
    are refused."""

    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 8 << 30
    """Bytes, which the server sets aside at once; 0: as much as the server allows."""
    max_age: Annotated[float, msgspec.Meta(ge=0)] = 7 * 86_400.0
    """Seconds after which what was published is thrown away, taken or not; 0: never."""
    discard: Literal["old", "new"] = "old"
    """Which messages go when it is full: `old` throws the oldest away, taken or not, and readers count what is missing; `new` takes
    nothing more, so that exporters keep it, until age has made room."""
