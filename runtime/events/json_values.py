"""Reduces values of the program, such as metadata, to plain JSON-like data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stepscope.runtime.events.value_texts import shown

MAX_DEPTH = 16
MAX_ITEMS = 10_000
MAX_CONTAINERS = 100_000
"""Containers of one value that are looked into, as small ones may hold each other many times."""
MAX_TEXT = 1 << 20


def plain(value: Any, *, depth: int = MAX_DEPTH, items: int | None = MAX_ITEMS) -> Any:
    """Reduces a value to dicts with text keys, lists, text, integers from -2^63 to 2^64 - 1, floats, booleans and `None`.

    Other integers become hexadecimal text. Values of well-known types become their text (`value_texts.shown`), msgspec's structs
    dicts. Objects of other types become the name of their type, as their `repr` could be slow, wait for a device, or raise. Lone
    surrogates become text such as `\\udc80`. Containers below `depth`, and those after the first `MAX_CONTAINERS`, become the name of their
    type. Containers are cut to `items` (`None`: not at all), texts to a million characters.
    """
    return _reduce(value, depth, items, iter(range(MAX_CONTAINERS)))


def _reduce(value: Any, depth: int, items: int | None, room: Iterator[int]) -> Any:
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
        return _reduce(msgspec.structs.asdict(value), depth, items, room)
    if isinstance(value, Mapping):
        if depth <= 0 or next(room, None) is None:
            return f"<{kind} of {len(container)}>"
        return {_key(key): _reduce(item, depth - 1, items, room) for key, item in list(container.items())[:items]}
    if isinstance(value, list | tuple | set | frozenset):
        if depth <= 0 or next(room, None) is None:
            return f"<{kind} of {len(container)}>"
        return [_reduce(item, depth - 1, items, room) for item in list(container)[:items]]
    text = shown(value)
    return f"<{kind}>" if text is None else _reduce(text, depth, items, room)


def _key(key: Any) -> str:
    return _text(key) if isinstance(key, str) else str(plain(key, depth=0))


def _text(value: str) -> str:
    return value[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()
