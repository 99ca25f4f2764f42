"""Arguments of `DynamicProfilerMonitor`: which are refused, and which are replaced with a word in the log."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Final, Literal

from stepscope.runtime.settings.validation import did_you_mean

log = logging.getLogger("stepscope")

DEFAULT_OUTPUT: Final = "./dyn_profile_data"
DEFAULT_POLL: Final = 2.0

Position = Literal["begin", "end"]

_SETTINGS = ("late", "granularity", "step_position", "strict", "agree")


def check(late: object, step_position: object, granularity: object) -> None:
    """Checks what has no meaning if it is wrong.

    Raises:
        ValueError: naming the argument, the value and what it should be.
    """
    for name, value, known in (("late", late, ("refuse", "clip")), ("step_position", step_position, ("begin", "end"))):
        if value not in known:
            raise ValueError(f"{name} must be {known[0]!r} or {known[1]!r}, got {value!r}")
    if isinstance(granularity, bool) or not isinstance(granularity, int) or granularity < 1:
        raise ValueError(f"granularity must be a whole number from 1, got {granularity!r}")


def warn_of_unknown(names: Iterable[str]) -> None:
    """Says of each that it has no effect, and which is meant."""
    for name in names:
        log.warning(
            "DynamicProfilerMonitor: %r is no argument and has no effect%s", name, did_you_mean(name, _SETTINGS)
        )


def output_directory(given: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The directory for windows, or the default for what is no path."""
    if isinstance(given, str | os.PathLike):
        return given
    log.warning("output_path must be a path, got %r; %r is taken", given, DEFAULT_OUTPUT)
    return DEFAULT_OUTPUT


def poll_seconds(given: object) -> float:
    """Seconds between two looks, or the default for what is none."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0.01 <= given <= 86_400:
        log.error("poll_interval must be a number of seconds from 0.01 to 86400, got %r; 2 is taken", given)
        return DEFAULT_POLL
    return float(given)
