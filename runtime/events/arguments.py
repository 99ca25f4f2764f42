"""The arguments of events."""

from __future__ import annotations

from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Flag


def arguments(batch: EventBatch, event: Any) -> dict[str, Any]:
    """The arguments of an event of a batch, by their names."""
    if int(event["flags"]) & Flag.ARG_INLINE:
        return {strings.text(int(event["args_at"])): int(event["args_len"])}
    at, length = int(event["args_at"]), int(event["args_len"])
    return dict(_core.decode_arguments(batch.args, at, length)) if length else {}
