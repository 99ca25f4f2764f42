"""`step_list`: the steps that are to be analysed, and which of them there are not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stepscope.runtime.settings.validation import find_invalid_value

MOST_NAMED = 5
"""Steps that a sentence names; it counts the others."""


def read_step_list(step_list: Any) -> tuple[int, ...] | None:
    """The steps in ascending order, each once; `None`, for all, stays.

    Raises:
        TypeError: if it is something else than an iterable of whole numbers; names what is wrong in it.
    """
    if step_list is None:
        return None
    try:
        steps: Any = step_list if isinstance(step_list, str | bytes) else list(step_list)
    except TypeError:
        steps = step_list
    invalid = find_invalid_value(steps, list[int], "step_list")
    if invalid is not None:
        raise TypeError(invalid.text)
    return tuple(sorted(set(steps)))


def not_recorded(requested: Sequence[int] | None, recorded: Iterable[int]) -> str:
    """Says which of the steps asked for were not recorded, with the nearest that was; empty if all were."""
    steps = sorted(set(recorded))
    missing = sorted(set(requested or ()) - set(steps))
    if not missing:
        return ""
    named = ", ".join(map(str, missing[:MOST_NAMED]))
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    if not steps:
        return f"step_list: {named}{more}: no step was recorded"
    nearest = min(steps, key=lambda step: abs(step - missing[0]))
    were = "was" if len(missing) == 1 else "were"
    return f"step_list: {named}{more} {were} not recorded; the nearest to {missing[0]} is {nearest}"
