"""Arguments that users give: what is wrong with one, its value, and what would do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, SupportsIndex, cast

LONGEST = 60
"""Characters of a value in a message."""


def shown(value: object, show: Callable[[object], str] = repr) -> str:
    """A value, as long as a message has room for."""
    try:
        text = show(value)
    except Exception as error:  # of the program's own object, or because it is too long a number
        text = f"<{type(value).__name__}, which cannot be shown: {type(error).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def got(value: object) -> str:
    """What was given, as messages about a wrong type say it: `got int: 5`.

    Where it may hold a secret, as headers do, they say only the type.
    """
    return f"got {type(value).__name__}: {shown(value)}"


def path_argument(name: str, given: object) -> str:
    """A path that was given, as text.

    Raises:
        TypeError: if it is neither a str nor a Path.
        ValueError: if it is empty.
    """
    text: object = given
    if isinstance(given, os.PathLike):
        text = cast(Any, given).__fspath__()
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str or a Path, {got(cast(Any, given))}")
    if not text:
        raise ValueError(f"{name} must not be empty")
    return text


def file_argument(name: str, given: object, example: str) -> str:
    """The path of a file to write, as text.

    Args:
        name: of the argument.
        given: what was given.
        example: a file's name, for messages.

    Raises:
        TypeError: if it is neither a str nor a Path.
        ValueError: if it is empty, or a directory.
    """
    path = path_argument(name, given)
    if os.path.isdir(path):
        raise ValueError(f"{name} is {path!r}, a directory; name a file in it, such as {os.path.join(path, example)!r}")
    return path


def number_argument(name: str, given: object, *, whole: bool = False, unit: str = "") -> None:
    """Checks that a number was given.

    Args:
        name: of the argument.
        given: what was given.
        whole: whether it must be a whole number.
        unit: of it, for messages, such as seconds.

    Raises:
        TypeError: if it is none. A bool is none, either.
    """
    number = isinstance(given, SupportsIndex) if whole else hasattr(given, "__float__")
    if not number or isinstance(given, bool | str):
        kind = f"{'whole ' * whole}number{f' of {unit}' if unit else ''}"
        raise TypeError(f"{name} must be a {kind}, {got(given)}")


def switch_argument(name: str, given: object) -> None:
    """Checks that it is no text: `"no"` would count as true.

    Raises:
        TypeError: if it is a text.
    """
    if isinstance(given, str):
        raise TypeError(f"{name} must be True or False, {got(given)}")
