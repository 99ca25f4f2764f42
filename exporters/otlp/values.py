"""Attributes of OTLP: values of any type as the protocol has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from stepscope.runtime.events.json_values import plain

NAMELESS = "unnamed"
"""Key of what has an empty one, which the protocol forbids."""


def attribute(key: str, value: Any) -> KeyValue | None:
    """An attribute; `None` for a value of `None`, which means the same as no attribute."""
    if value is None:
        return None
    return KeyValue(key=clean(key) or NAMELESS, value=any_value(value))


def attributes(values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> list[KeyValue]:
    """Attributes, each key once: the last one counts."""
    found = [attribute(key, value) for key, value in dict(values).items()]
    return [one for one in found if one is not None]


def any_value(value: Any) -> AnyValue:
    """Text, numbers and lists of one type as such; all else, which stores do not search, as JSON text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        fits = -(1 << 63) <= value < 1 << 63
        return AnyValue(int_value=value) if fits else AnyValue(string_value=str(value))
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=clean(value))
    items: Any = value
    if isinstance(value, list):
        if all(isinstance(item, str | bool | int | float) and type(item) is type(items[0]) for item in items):
            return AnyValue(array_value=ArrayValue(values=map(any_value, items)))
    return AnyValue(string_value=msgspec.json.encode(plain(value)).decode())


def clean(text: str) -> str:
    """The text as UTF-8 can hold it: lone surrogates become `\\\\udXXX`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
