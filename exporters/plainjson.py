"""JSON text of values from anywhere: always valid, whatever they hold."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from typing import Any, cast

import msgspec
import numpy as np

from stepscope.runtime.events.value_texts import shown

MAX_DEPTH = 24
"""Deeper values are shown by their type: this also ends cycles."""

MAX_VALUES = 100_000
"""Values of one text; later ones are shown by their type."""


MAX_BITS = 4096
"""Larger integers are shown by their size: Python refuses to print very long ones."""


def plain(value: Any) -> Any:
    """The value made of dict, list, str, int, float, bool and None alone.

    NaN and infinity become strings, for JSON has no such numbers; lone surrogates become the text `\\udXXX`. Values of
    well-known types become their text (`known_values.shown`), and other objects `<their type>`. No `repr` of user objects is
    called: it may be slow, wait for a device, or raise.
    """
    return _Plain().of(value, 0)


def dumps(value: Any) -> str:
    """JSON text of `plain(value)` on one line, with a space after commas and colons, and every character as it is.

    Perfetto shows escapes such as \\u00e9 in names of processes and threads as they stand.
    """
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False)


def dumps_records(value: Any) -> str:
    """Compact JSON text of our own structs, and of dicts and lists of whole numbers and text, in a twentieth of the time of `dumps`,
    which it calls for what these do not hold. NaN must not occur."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):  # a lone surrogate is a ValueError
        return dumps(value)


class _Plain:
    def __init__(self) -> None:
        self._left = MAX_VALUES

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        kind: Any = cast(Any, type(cast(object, value)))
        if kind is str:  # most values are text or a dict
            return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
        if kind is dict and depth < MAX_DEPTH and self._left >= 0:
            return {self._key(key): self.of(item, depth + 1) for key, item in value.items()}
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value if value.bit_length() <= MAX_BITS else f"<int of {value.bit_length()} bits>"
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            return value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, PurePath):
            return self.of(str(value), depth)
        if depth >= MAX_DEPTH or self._left < 0:
            return f"<{type(cast(object, value)).__name__}>"
        return self._inside(value, depth + 1)

    def _inside(self, value: Any, depth: int) -> Any:
        if isinstance(value, np.generic):
            return self.of(value.item(), depth)
        if isinstance(value, msgspec.Struct):
            return self.of(msgspec.structs.asdict(value), depth)
        if isinstance(value, Mapping):
            return {self._key(key): self.of(item, depth) for key, item in cast(Any, value).items()}
        if isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (bytes, bytearray, memoryview)):
            return [self.of(item, depth) for item in cast(Iterable[Any], value)]
        known = shown(cast(object, value))
        return f"<{type(cast(object, value)).__name__}>" if known is None else self.of(known, depth)

    def _key(self, key: Any) -> str:
        if type(key) is str and key.isascii():
            self._left -= 1
            return key
        made = self.of(key, MAX_DEPTH - 2)
        return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)
