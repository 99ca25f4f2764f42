"""What a trigger found, made anew of plain values: what it gave may be of any kind."""

from __future__ import annotations

from typing import Any

from stepscope.runtime.events.json_values import plain
from stepscope.runtime.flight.triggers.trigger import Finding
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.numbers import real, whole

MAX_TEXT = 1000
"""Characters kept of what a trigger says, and of its value."""


def made_anew(given: object) -> Finding:
    """A finding that holds what its fields say.

    Raises:
        TypeError: if it is no finding, or has a field that cannot be what it should.
        ValueError: if a number is out of range.
    """
    if not isinstance(given, Finding):
        raise TypeError(f"look() must return Findings, {got(given)}")
    value: Any = given.value
    return Finding(
        at=whole(given.at, "Finding.at, a time in ns,"),
        value=plain(value[:MAX_TEXT] if isinstance(value, str) else value),
        text=plain(str(given.text)[:MAX_TEXT]),
        severity=real(given.severity, "Finding.severity"),
        at_once=bool(given.at_once),
    )
