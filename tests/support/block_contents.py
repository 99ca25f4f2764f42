"""Blocks in plain terms, for tests to compare."""

from __future__ import annotations

from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block


def texts(events: Block, field: str = "name") -> list[str]:
    """Names or categories of events."""
    return [strings.text(int(number)) for number in events[field]]


def decoded(events: Block, args: bytes) -> list[dict[str, Any]]:
    """Arguments of events that have theirs in the heap."""
    return [
        _core.decode_arguments(args, int(event["args_at"]), int(event["args_len"])) if event["args_len"] else {}
        for event in events
    ]
