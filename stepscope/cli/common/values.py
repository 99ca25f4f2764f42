"""Values of options: sizes, seconds, names; and settings that are called by the names of their options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping

UNITS: dict[str, int] = {"": 1} | {
    f"{prefix}{unit}": int(base**power)
    for unit, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate("KMGT", start=1)
}
"""Bytes of each unit, by its name."""

_SIZE = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")
_BY_NAME: dict[str, int] = {name.lower(): size for name, size in UNITS.items()} | {"b": 1}


def size(text: str) -> int:
    """Reads `50000000000`, `50GB` or `1.5 GiB`, whatever the case of the unit; the bytes, rounded down.

    Raises:
        argparse.ArgumentTypeError: if it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = None if found is None else _BY_NAME.get(found[2].lower())
    if found is None or unit is None or unit == 1 and "." in found[1]:
        raise argparse.ArgumentTypeError(
            f"{text[:60]!r} is no size: give bytes, or a number with KB, MB, GB or TB (thousands) or KiB, MiB, GiB or TiB "
            "(of 1,024), such as 50GB"
        )
    whole, _, part = found[1].partition(".")
    return int(whole + part) * unit // int(10 ** len(part))


def above_zero(kind: str, most: float = float("inf")) -> Callable[[str], float]:
    """Returns a reader of a number above 0 and below `most`.

    Args:
        kind: what the number is, for the message.
    """

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 0 < number < most:
            raise argparse.ArgumentTypeError(f"must be a {kind}, got {text[:60]!r}")
        return number

    return read


def number(kind: type[int] | type[float], name: str) -> Callable[[str], float]:
    """Returns a reader of a number.

    Args:
        kind: its type.
        name: what it is called in the message.
    """

    def read(text: str) -> float:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {name}, got {text[:60]!r}") from None

    return read


seconds = above_zero("number of seconds above 0")


def option_text(error: ValueError, kinds: str, options: Mapping[str, str] | None = None, prefix: str = "") -> str:
    """The text of an error of settings, with the names of options in place of those of fields.

    Args:
        error: that the settings raised.
        kinds: names of their types, separated by `|`.
        options: by the name of a field, an option that is called otherwise.
        prefix: of the options.
    """
    named = options or {}

    def option(field: re.Match[str]) -> str:
        return named.get(field[1]) or f"--{prefix}{field[1].replace('_', '-')}"

    return re.sub(rf"\b(?:{kinds})\.(\w+)", option, str(error))
