"""Validation of values by msgspec, with suggestions for unknown names in the messages."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import msgspec
from msgspec.inspect import CollectionType, EnumType, LiteralType, StructType, Type, UnionType, type_info

from stepscope.runtime.settings.arguments import got, shown

_PATH = re.compile(r" - at `(?:key` in `)?\$([^`]*)`$")
_KEY = re.compile(r"\.(\w+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_EXPECTED = re.compile(r"Expected `([^`]*)`(?:, got `.*`|( .*))?", re.DOTALL)
_LARGE = ("Number out of range", "Integer value out of range")
_NAMED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "str": "a str",
    "null": "None",
    "array": "a list",
    "object": "a mapping",
}
"""Types in messages, by msgspec's names."""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name: `; did you mean ...?`, or all known names."""
    allowed = sorted(names)
    close = difflib.get_close_matches(name, allowed, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(allowed)}"


P = ParamSpec("P")
R = TypeVar("R")


def suggesting(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator for functions: the message about an unknown argument suggests a similar name."""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    called = function.__qualname__.removesuffix(".__init__").removesuffix(".__call__")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:
            check_names(called, kwargs, names)
        return function(*args, **kwargs)

    return call


def check_names(called: str, arguments: Iterable[str], names: Collection[str]) -> None:
    """Checks the names of a call's arguments.

    Raises:
        TypeError: if the function `called` has none of these `names`; the message suggests a similar one.
    """
    for name in arguments:
        if name not in names:
            raise TypeError(f"{called}() has no argument {name!r}{did_you_mean(name, names)}")


class InvalidValue(NamedTuple):
    """The first invalid part of a value."""

    keys: tuple[str | int, ...]
    """Its path: names of fields, numbers of items."""
    text: str
    """Its place, what it should be, its value, and what to do: `Control.poll must be a number >= 0.01, got int: 0`."""
    wrong_type: bool = False
    """Whether its type is wrong; else the value is out of its range."""


def find_invalid_value(
    value: object, kind: Any, at: str = "", *, strict: bool = True, reason: str = ""
) -> InvalidValue | None:
    """Returns the first part of a value that does not fit a type; `None` if all do.

    Args:
        value: consists of plain Python objects, as from JSON.
        kind: the type.
        at: name of the value, for the message.
        strict: if false, a text may stand for a number, as in a URL.
        reason: why the value is invalid, in msgspec's words, for one that fits the type otherwise.
    """
    try:
        msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        reason = str(error)
    if not reason:
        return None
    path = _PATH.search(reason)
    reason, place = (reason[: path.start()], path[1]) if path else (reason, "")
    # msgspec's message does not contain the keys of mappings.
    keys = tuple(name or int(number) for name, number in _KEY.findall(place.partition("[...]")[0]))
    with suppress(LookupError, TypeError):  # an unknown name may look like a path
        for key in keys:
            value = cast(Any, value)[key]
    where = f"{at}{place}".removeprefix(".")
    parts = list(_reached(type_info(kind), keys))
    if unknown := _UNKNOWN.fullmatch(reason):
        structs = [part.cls for part in parts if isinstance(part, StructType)]
        reason = unknown_field(unknown[1], structs[0]) if structs else f"unknown field {unknown[1]!r}"
        return InvalidValue((*keys, unknown[1]), f"{where}: {reason}" if where else reason)
    if missing := _MISSING.fullmatch(reason):
        return InvalidValue(keys, f"{where} lacks {missing[1]!r}".strip())
    expected = expected_value(reason, parts)
    if not expected:  # from a check of our own
        return InvalidValue(keys, f"{where} is {shown(value)}: {reason}" if where else reason)
    hint = _similar(value, parts)
    if isinstance(value, str) and where.endswith("_bytes"):
        hint = "; give the number of bytes, such as 64_000_000"
    wrong_type = (found := _EXPECTED.fullmatch(reason)) is not None and found[2] is None
    return InvalidValue(keys, f"{where} must be {expected}, {got(value)}{hint}".strip(), wrong_type)


def expected_value(reason: str, parts: Sequence[Type] = ()) -> str:
    """A value's type and limits in words, from a message of msgspec; empty if that is about something else."""
    if reason in _LARGE:
        return "a number of at most 64 bits"
    found = _EXPECTED.fullmatch(reason)
    wrong_type = found is not None and found[2] is None
    if any(_allowed(parts)) and (wrong_type or reason.startswith("Invalid enum value")):
        return _either([*map(repr, _allowed(parts)), *_other_types(parts)])
    if found is None:
        return ""
    names = found[1].split(" | ")
    return _either([_NAMED.get(name, f"a {name}") for name in names]) + (found[2] or "")


def _either(choices: Sequence[str]) -> str:
    *most, last = dict.fromkeys(one for choice in choices for one in choice.split(" or "))
    return f"{', '.join(most)} or {last}" if most else last


def _allowed(parts: Iterable[Type]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, LiteralType):
            yield from part.values
        elif isinstance(part, EnumType):
            yield from (member.value for member in part.cls)


def _other_types(parts: Iterable[Type]) -> Iterator[str]:
    """Types in words that a value may have as well as be one of a few names."""
    for part in parts:
        name = type(part).__name__.removesuffix("Type").lower()
        if not isinstance(part, LiteralType | EnumType):
            yield _NAMED.get("null" if name == "none" else name, name)


def _similar(value: object, parts: Iterable[Type]) -> str:
    """The end of a message about a wrong name, if one of those allowed is like it."""
    names = [name for name in _allowed(parts) if isinstance(name, str)]
    close = difflib.get_close_matches(value, names, n=1) if isinstance(value, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown_field(name: str, kind: type[msgspec.Struct]) -> str:
    """Returns a message about an unknown field, with a similar name; for a name in `__fixed__`, with the reason."""
    fixed: Mapping[str, str] = getattr(kind, "__fixed__", {})
    if name in fixed:
        return f"{name} cannot be changed at run time: {fixed[name]}"
    return f"unknown field {name!r}{did_you_mean(name, kind.__struct_encode_fields__)}"


def _reached(kind: Type, keys: tuple[str | int, ...]) -> Iterator[Type]:
    """Yields the possible types of the part of a value that a path leads to."""
    if isinstance(kind, UnionType):
        for one in kind.types:
            yield from _reached(one, keys)
    elif not keys:
        yield kind
    elif isinstance(kind, StructType):
        for field in kind.fields:
            if field.encode_name == keys[0]:
                yield from _reached(field.type, keys[1:])
    elif isinstance(kind, CollectionType):
        yield from _reached(kind.item_type, keys[1:])
