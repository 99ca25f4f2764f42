"""Reduces values of the program, such as metadata, to plain JSON-like data.

Values of well-known types have a text, which is fast and runs no code of the program. The type must be exactly one of these: a
subclass may have its own `__str__`, which could be slow, wait for a device or raise. Other values are shown by the name of their
type.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, cast

import msgspec

from stepscope.runtime import _core

MAX_DEPTH = 16
MAX_ITEMS = 10_000
MAX_CONTAINERS = 100_000
"""Containers of one value that are looked into, as small ones may hold each other many times."""
MAX_TEXT = 1 << 20

_BY_MODULE: dict[str, frozenset[str]] = {
    "uuid": frozenset({"UUID"}),
    PurePath.__module__: frozenset({"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"}),
    "datetime": frozenset({"date", "datetime", "time", "timedelta"}),
    "decimal": frozenset({"Decimal"}),
    "fractions": frozenset({"Fraction"}),
    "builtins": frozenset({"complex"}),
    "numpy": frozenset({"complex64", "complex128", "datetime64", "timedelta64"}),
    "torch": frozenset({"dtype", "device", "layout", "memory_format", "Size"}),
}
_NUMBERS = {
    "numpy": frozenset({"bool", "bool_", "float16", "float32", "float64"})
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
}
_DTYPE = {"numpy": frozenset({"dtype"})}
_ZONES = {"datetime": frozenset({"timezone"}), "zoneinfo": frozenset({"ZoneInfo"})}


def plain(value: Any, *, depth: int = MAX_DEPTH, items: int | None = MAX_ITEMS) -> Any:
    """Reduces a value to dicts with text keys, lists, text, integers from -2^63 to 2^64 - 1, floats, booleans and `None`.

    Other integers become hexadecimal text. Values of well-known types become their text (`shown`), msgspec's structs
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


def shown(value: object) -> str | dict[str, Any] | float | None:
    """The text of a value, or its number, or the fields of a dataclass; `None` for an unknown type.

    For an enum, it is the value if that is text, else the name with that of the class, such as `Color.RED`.
    """
    kind = type(value)
    if _is(kind, _BY_MODULE):
        zone: object = getattr(value, "tzinfo", None) if kind.__module__ == "datetime" else None
        return str(value) if zone is None or _is(type(zone), _ZONES) else None
    if _is(kind, _NUMBERS):
        return cast(float, cast(Any, value).item())
    if kind.__module__ == "numpy.dtypes" and any(_is(base, _DTYPE) for base in kind.__mro__):
        return str(value)
    fields = cast(dict[str, Any], getattr(value, "__dict__", {}) if _plain_attributes(kind) else {})
    if issubclass(kind, Enum):
        name, text = fields.get("_name_"), fields.get("_value_")
        if type(text) is str:
            return text
        return f"{kind.__name__}.{name}" if type(name) is str else None
    declared = kind.__dict__.get("__dataclass_fields__")
    if type(declared) is dict:
        names = cast(dict[str, object], declared)
        return {name: fields[name] for name in names if name in fields}
    return None


def _is(kind: type | None, names_by_module: Mapping[str, Collection[str]]) -> bool:
    """Whether a type is one of these, and not another one with the same name."""
    if kind is None or type(kind.__module__) is not str:
        return False
    names = names_by_module.get(kind.__module__)
    if names is None or kind.__name__ not in names:
        return False
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def _plain_attributes(kind: type) -> bool:
    """Whether reading an attribute runs no code of the program."""
    getter: object = kind.__getattribute__
    return getter is object.__getattribute__


_core.set_known_values(shown)
