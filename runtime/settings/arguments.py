"""Checks of arguments. Messages name the argument, its value, and what to pass instead."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, SupportsIndex, cast

LONGEST = 60
"""Characters of a value in a message."""


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
    """Returns the path of a file to write, as text.

    Args:
        name: of the argument.
        value: its value.
        example: a file name, for messages.

    Raises:
        TypeError: if it is neither a str nor a Path.
        ValueError: if it is empty, or a directory.
    """
    path = path_argument(name, value)
    if os.path.isdir(path):
        raise ValueError(f"{name} is {path!r}, a directory; name a file in it, such as {os.path.join(path, example)!r}")
    return path


def number_argument(name: str, value: object, *, whole: bool = False, unit: str = "") -> None:
    """Checks that an argument is a number.

    Args:
        name: of the argument.
        value: its value.
        whole: whether it must be a whole number.
        unit: for messages, such as `seconds`.

    Raises:
        TypeError: if it is not a number. A bool is not accepted.
    """
    number = isinstance(value, SupportsIndex) if whole else hasattr(value, "__float__")
    if not number or isinstance(value, bool | str):
        kind = f"{'whole ' * whole}number{f' of {unit}' if unit else ''}"
        raise TypeError(f"{name} must be a {kind}, {got(value)}")


def switch_argument(name: str, value: object) -> None:
    """Checks that a switch is not a text: `"no"` would count as true.

    Raises:
        TypeError: if it is a text.
    """
    if isinstance(value, str):
        raise TypeError(f"{name} must be True or False, {got(value)}")


def lacking(item: object, contract: type) -> str:
    """Returns the names of a contract's attributes and methods that an object does not have; empty if it keeps the contract."""
    members = [name for name in (*contract.__annotations__, *vars(contract)) if not name.startswith("_")]
    return ", ".join(name for name in members if not hasattr(item, name))
