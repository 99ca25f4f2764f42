"""Checks of arguments. Messages name the argument, its value, and what to pass instead."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, SupportsFloat, SupportsIndex, SupportsInt, cast

import numpy as np

LONGEST = 60
"""Characters of a value in a message."""
LIMIT = 1 << 63
"""Whole numbers have 64 bits."""


def shown(value: object, show: Callable[[object], str] = repr) -> str:
    """Returns a value as text of at most `LONGEST` characters."""
    try:
        text = show(value)
    except Exception as error:  # from the `__repr__` of the program's object, or for a very long number
        text = f"<{type(value).__name__}, which cannot be shown: {type(error).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def got(value: object) -> str:
    """Returns the end of a message about a wrong type: `got int: 5`.

    Do not use it for values that may contain a secret, such as headers.
    """
    return f"got {type(value).__name__}: {shown(value)}"


def refusal(name: str, value: object, reason: str) -> str:
    """Returns a message about a wrong argument: `mode must be 'sync' or 'async', got int: 3; ...`.

    Args:
        reason: what it must be, such as `must be a number`, and what to do, if that is known, after `; `; or something
            else that is wrong with it.
    """
    if not reason.startswith("must "):
        return reason if reason.startswith(f"{name} ") else f"{name} is {shown(value)}: {reason}"
    expected, separator, hint = reason.partition("; ")
    return f"{name} {expected}, {got(value)}{separator}{hint}"


def path_argument(name: str, value: object) -> str:
    """Returns a path as text.

    Raises:
        TypeError: if it is neither a str nor a Path.
        ValueError: if it is empty.
    """
    text: object = value
    if isinstance(value, os.PathLike):
        text = cast(Any, value).__fspath__()
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str or a Path, {got(cast(Any, value))}")
    if not text:
        raise ValueError(f"{name} must not be empty")
    return text


def file_argument(name: str, value: object, example: str) -> str:
    """Returns the path of a file to write, as text. `example` is a file name, for messages.

    Raises:
        TypeError: if it is neither a str nor a Path.
        ValueError: if it is empty, or a directory.
    """
    path = path_argument(name, value)
    if os.path.isdir(path):
        raise ValueError(f"{name} is {path!r}, a directory; name a file in it, such as {os.path.join(path, example)!r}")
    return path


def number_argument(name: str, value: object, *, whole: bool = False, unit: str = "") -> None:
    """Checks that an argument is a number, or a whole one. `unit`, such as `seconds`, is for messages.

    Raises:
        TypeError: if it is not a number. A bool is not accepted.
    """
    number = isinstance(value, SupportsIndex) if whole else hasattr(value, "__float__")
    if not number or isinstance(value, bool | str):
        kind = f"{'whole ' * whole}number{f' of {unit}' if unit else ''}"
        raise TypeError(f"{name} must be a {kind}, {got(value)}")


def whole(value: object, what: str, *, least: int = -LIMIT) -> int:
    """Converts a number that a part returns, such as numpy's, to an int. The fraction of a float is cut off.

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
    """Converts a number that a part returns to a float.

    Raises:
        TypeError: if it is no number.
        OverflowError: if it is an int that no float is near to.
    """
    if not isinstance(value, SupportsFloat | SupportsIndex):
        raise TypeError(f"{what} must be a number, {got(value)}")
    return float(value)


def switch_argument(name: str, value: object) -> None:
    """Checks that an argument is a bool, also numpy's, 0, 1 or `None`: a text such as `"no"` would count as true.

    Raises:
        TypeError: if it is something else.
    """
    if value is None or isinstance(value, np.bool_):
        return
    with suppress(TypeError):  # as of an array of several numbers
        if isinstance(value, SupportsIndex) and operator.index(value) in (0, 1):
            return
    raise TypeError(f"{name} must be True or False, {got(value)}")


def lacking(item: object, contract: type) -> str:
    """Returns the names of a contract's attributes and methods that an object does not have; empty if it keeps the contract."""
    members = [name for name in (*contract.__annotations__, *vars(contract)) if not name.startswith("_")]
    return ", ".join(name for name in members if not hasattr(item, name))
