"""What is wrong with values and names that people give, in msgspec's words."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import msgspec
from msgspec.inspect import CollectionType, EnumType, LiteralType, StructType, Type, UnionType, type_info

from stepscope.runtime.arguments import shown

_PATH = re.compile(r" - at `(?:key` in `)?\$([^`]*)`$")
_KEY = re.compile(r"\.(\w+)|\[(\d+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)

P = ParamSpec("P")
R = TypeVar("R")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean ...?`, or all names that there are, for a message about an unknown one."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def suggesting(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: an argument that the function does not have is refused with the name that is like it."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                called = function.__qualname__.removesuffix(".__init__")
                raise TypeError(f"{called}() has no argument {name!r}{did_you_mean(name, names)}")
        return function(*args, **kwargs)

    return call


class Misfit(NamedTuple):
    """The first part of a value that does not fit its type."""

    keys: tuple[str | int, ...]
    """The way to it: names of fields, numbers of items."""
    text: str
    """Where it is, what it is, and what should be there: `Control.poll is 0: ...`."""


def find_misfit(value: object, kind: Any, at: str = "", *, strict: bool = True) -> Misfit | None:
    """The first part of a value that does not fit a type; `None` if all do.

    Args:
        value: of plain Python objects, as JSON is read into, or as programs give it.
        kind: the type.
        at: the name of the value, for the message.
        strict: whether a text is no number, as in what a URL says it is.
    """
    try:
        msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        reason = whole = str(error)
    else:
        return None
    path = _PATH.search(reason)
    reason, place = (reason[: path.start()], path[1]) if path else (reason, "")
    keys: list[str | int] = []
    inside = _alternatives(type_info(kind))
    for name, number in _KEY.findall(place.partition("[...]")[0]):  # msgspec does not say the keys of mappings
        keys.append(name or int(number))
        try:
            value = cast(Any, value)[keys[-1]]
        except (LookupError, TypeError):  # an unknown name that looks like a path
            return Misfit((), whole)
        inside = [part for one in inside for part in _parts(one, keys[-1])]
    where = f"{at}{place}".removeprefix(".")
    unknown = _UNKNOWN.fullmatch(reason)
    structs = [one for one in inside if isinstance(one, StructType)]
    if unknown and structs:
        reason = unknown_field(unknown[1], structs[0].cls)
        return Misfit((*keys, unknown[1]), f"{where}: {reason}" if where else reason)
    if isinstance(value, str) and reason.startswith("Invalid enum value"):
        reason += did_you_mean(value, [word for one in inside for word in _words(one)])
    if not where:
        return Misfit((), reason)
    said = "" if reason.startswith("Object ") else f" is {shown(value)}"
    return Misfit(tuple(keys), f"{where}{said}: {reason}")


def unknown_field(name: str, kind: type) -> str:
    """Says that a struct has no such field, and which is like it; for a name in its `__fixed__`, why there is none."""
    fixed: Mapping[str, str] = getattr(kind, "__fixed__", {})
    if name in fixed:
        return f"{name} cannot be changed at run time: {fixed[name]}"
    return f"unknown field {name!r}{did_you_mean(name, kind.__struct_encode_fields__)}"  # type: ignore[attr-defined]


def _alternatives(kind: Type) -> list[Type]:
    return [part for one in kind.types for part in _alternatives(one)] if isinstance(kind, UnionType) else [kind]


def _parts(kind: Type, key: str | int) -> list[Type]:
    """The types of what a type has at a key."""
    if isinstance(kind, StructType):
        return [part for field in kind.fields if field.encode_name == key for part in _alternatives(field.type)]
    return _alternatives(kind.item_type) if isinstance(kind, CollectionType) else []


def _words(kind: Type) -> list[str]:
    """The texts that a type of some texts has."""
    if isinstance(kind, EnumType):
        return [str(member.value) for member in kind.cls]
    return [str(value) for value in kind.values] if isinstance(kind, LiteralType) else []
