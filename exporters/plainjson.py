"""JSON text of values from anywhere: always valid, whatever they hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import PurePath
from typing import Any

import msgspec
import numpy as np

MAX_DEPTH = 24
"""Deeper values are shown by their type: this also ends cycles."""


def plain(value: Any, depth: int = 0) -> Any:
    """The value made of dict, list, str, int, float, bool and None alone.

    NaN and infinity become strings, for JSON has no such numbers; lone surrogates become the text `\\udXXX`; what is
    no data at all becomes `<its type>`. No `repr` of user objects is called: it may be slow, wait for a device, or
    raise.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Enum):
        return plain(value.value, depth + 1)
    if isinstance(value, PurePath):
        return plain(str(value))
    if isinstance(value, np.generic):
        return plain(value.item(), depth + 1)
    if depth < MAX_DEPTH:
        if isinstance(value, msgspec.Struct):
            return plain(msgspec.structs.asdict(value), depth + 1)
        if isinstance(value, Mapping):
            return {_key(key): plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (bytes, bytearray, memoryview)):
            return [plain(item, depth + 1) for item in value]
    return f"<{type(value).__name__}>"


def dumps(value: Any) -> str:
    """JSON text of `plain(value)` on one line, with a space after commas and colons."""
    return json.dumps(plain(value), allow_nan=False)


def _key(key: Any) -> str:
    made = plain(key, MAX_DEPTH)
    return made if isinstance(made, str) else json.dumps(made)
