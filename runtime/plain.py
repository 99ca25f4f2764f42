"""Values as files can hold them: what users put into metadata, reduced to plain JSON-like data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 16
MAX_ITEMS = 10_000
MAX_TEXT = 1 << 20


def plain(value: Any, *, depth: int = MAX_DEPTH) -> Any:
    """Reduces a value to dicts with text keys, lists, text, 64-bit integers, floats, booleans and `None`.

    Objects of other types are named by their type: their `repr` could be slow, wait for a device, or raise. Lone surrogates become text
    such as `\\udc80`; what lies deeper than `depth` or beyond 10,000 items of one container is named instead of kept.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)
        return number if -(1 << 63) <= number < 1 << 63 else hex(number)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        if depth <= 0:
            return f"<{type(value).__name__} of {len(value)}>"
        if isinstance(value, Mapping):
            return {
                _text(key) if isinstance(key, str) else str(plain(key, depth=0)): plain(item, depth=depth - 1)
                for key, item in list(value.items())[:MAX_ITEMS]
            }
        return [plain(item, depth=depth - 1) for item in list(value)[:MAX_ITEMS]]
    return f"<{type(value).__name__}>"


def _text(value: str) -> str:
    return value[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()
