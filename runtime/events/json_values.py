"""Reduces values of the program, such as metadata, to plain JSON-like data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from stepscope.runtime.events.value_texts import shown

MAX_DEPTH = 16
MAX_ITEMS = 10_000
MAX_TEXT = 1 << 20


def plain(value: Any, *, depth: int = MAX_DEPTH, items: int | None = MAX_ITEMS) -> Any:
    """Reduces a value to dicts with text keys, lists, text, 64-bit integers, floats, booleans and `None`.

    Values of well-known types become their text (`value_texts.shown`). Objects of other types become the name of their type, as
    their `repr` could be slow, wait for a device, or raise. Lone surrogates become text such as `\\udc80`. Containers below `depth`
    become the name of their type. Containers are cut to `items`, texts to a million characters.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int(value)
        return number if -(1 << 63) <= number < 1 << 64 else hex(number)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, str):
        return _text(value)
    kind = type(value).__name__
    container: Any = value
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value), depth=depth, items=items)
    if isinstance(value, Mapping):
        if depth <= 0:
            return f"<{kind} of {len(container)}>"
        return {_key(key): plain(item, depth=depth - 1, items=items) for key, item in list(container.items())[:items]}
    if isinstance(value, list | tuple | set | frozenset):
        if depth <= 0:
            return f"<{kind} of {len(container)}>"
        return [plain(item, depth=depth - 1, items=items) for item in list(container)[:items]]
    known = shown(value)
    return f"<{kind}>" if known is None else plain(known, depth=depth, items=items)


def _key(key: Any) -> str:
    return _text(key) if isinstance(key, str) else str(plain(key, depth=0))


def _text(value: str) -> str:
    return value[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()
