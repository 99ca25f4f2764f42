"""Numbers that parts give: made plain, or refused where they come in, so that nothing behind has to expect others."""

from __future__ import annotations

from typing import SupportsFloat, SupportsIndex, SupportsInt

from stepscope.runtime.settings.arguments import got

LIMIT = 1 << 63


def whole(value: object, what: str, *, least: int = -LIMIT) -> int:
    """A whole number of 64 bits; also of a number of numpy's, or of a float, whose fraction is cut off.

    Args:
        value: what was given.
        what: it is, as the error has it.
        least: the least that it may be.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is too small, too large or not finite.
    """
    if not isinstance(value, SupportsInt | SupportsIndex):
        raise TypeError(f"{what} must be a whole number, {got(value)}")
    try:
        number = int(value)
    except OverflowError:  # infinite
        number = LIMIT
    if not least <= number < LIMIT:
        raise ValueError(f"{what} must be {least:,} to {LIMIT - 1:,}, got {value!r}")
    return number


def real(value: object, what: str) -> float:
    """A number, as a float.

    Args:
        value: what was given.
        what: it is, as the error has it.

    Raises:
        TypeError: if it is no number.
        OverflowError: if it is an int that no float is near to.
    """
    if not isinstance(value, SupportsFloat | SupportsIndex):
        raise TypeError(f"{what} must be a number, {got(value)}")
    return float(value)
