"""Decoding of what people write: JSON into settings, with the place and the nearest valid name in every complaint."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from stepscope.runtime.errors import ControlError

T = TypeVar("T", bound=msgspec.Struct)

_BOUND = re.compile(r"Expected `(?:int|float)[^`]*` [<>]= (-?[0-9.]+)")
_SWITCH = re.compile(r"Expected `bool")
_BYTE = re.compile(r"\(byte (\d+)\)")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_PATH = re.compile(r" - at `\$((?:\.[^`]*|\[[^`]*)?)`")
_LAST_NAME = re.compile(r"\.([A-Za-z_][A-Za-z_0-9]*)[^.]*$")


def decode_json(content: bytes, kind: type[T]) -> T:
    """Decodes a JSON object into settings.

    Raises:
        ControlError: with line, column and reason. An unknown name comes with the nearest that there is.
    """
    if not content.strip():
        raise ControlError("it is empty: expected a JSON object", line=1, column=1)
    if content.startswith(b"\xef\xbb\xbf"):  # the mark that some editors begin a file with
        content = content[3:]
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(content, kind, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = str(error)
        found = _BYTE.search(text)
        at = int(found[1]) if found else min(getattr(error, "start", len(content)), len(content))
        line, column = _place(content, at)
        reason = _BYTE.sub("", text).strip()
        raise ControlError(f"line {line}, column {column}: {reason}", line=line, column=column) from error


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean ...?`, or all that there are, for a message."""
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def _invalid(content: bytes, kind: type[msgspec.Struct], text: str) -> ControlError:
    unknown = _UNKNOWN.search(text)
    path = _PATH.search(text)
    name = ""
    if unknown:
        name = unknown[1]
        inside = path[1] if path and path[1] else ""
        place = f" in {inside.lstrip('.')}" if inside else ""
        inner = _struct_at(kind, inside)
        fixed: dict[str, str] = getattr(inner, "__fixed__", {})
        reason = f"unknown field {name!r}{place}"
        if name in fixed:
            reason = f"{name}{place} cannot be changed at run time: {fixed[name]}"
        elif inner is not None:
            reason += nearest(name, inner.__struct_fields__)
    else:
        last = _LAST_NAME.search(path[1]) if path and path[1] else None
        name = last[1] if last else ""
        reason = _PATH.sub("", text)
        where = path[1].lstrip(".") if path and path[1] else ""
        reason = f"{where}: {reason}" if where else reason
        if not where:  # a rule over several fields: the first that it names
            named = [field for field in kind.__struct_fields__ if re.search(rf"\b{field}\b", reason)]
            name = min(named, key=reason.find, default="")
        value = _value_of(content, name)
        if value and where:
            reason += f" ({value})"
        words = _words(kind, name)
        if words and "enum value" in reason:
            reason += nearest(value.strip('"'), words)
        reason += _nearest_value(reason)
    at = _position_of(content, name)
    line, column = _place(content, at) if at >= 0 else (1, 1)
    return ControlError(f"line {line}, column {column}: {reason}", line=line, column=column)


def _nearest_value(reason: str) -> str:
    """What could stand there instead, where a number is out of its range or a switch is none."""
    bound = _BOUND.search(reason)
    if bound:
        return f"; the nearest is {bound[1]}"
    return "; write true or false" if _SWITCH.search(reason) else ""


def _struct_at(kind: type[msgspec.Struct], path: str) -> type[msgspec.Struct] | None:
    """The struct that a path such as `.window.detail` leads to; `None` if that is none."""
    found: type[msgspec.Struct] | None = kind
    for name in filter(None, path.split(".")):
        if found is None:
            break
        hint = typing.get_type_hints(found).get(name)
        found = next(
            (each for each in _parts(hint) if isinstance(each, type) and issubclass(each, msgspec.Struct)), None
        )
    return found


def _parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in typing.get_args(hint):
        yield from _parts(part)


def _words(kind: type[msgspec.Struct], name: str) -> list[str]:
    """The words that a field of the outermost object can hold; empty if it is not one of words."""
    hints = typing.get_type_hints(kind)

    def words(hint: Any) -> list[str]:
        if typing.get_origin(hint) is Literal:
            return [word for word in typing.get_args(hint) if isinstance(word, str)]
        return [word for part in typing.get_args(hint) for word in words(part)]

    return words(hints[name]) if name in hints else []


def _position_of(content: bytes, name: str) -> int:
    return content.find(b'"' + name.encode() + b'"') if name else -1


def _value_of(content: bytes, name: str) -> str:
    """What the text gives a field of the outermost object, shortened; for a message."""
    try:
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return ""
    raw = bytes(fields.get(name, b"")).decode("utf-8", "replace")
    return raw if len(raw) <= 60 else raw[:57] + "..."


def _place(content: bytes, at: int) -> tuple[int, int]:
    """Line and column, from 1, of a byte."""
    before = content[:at]
    return before.count(b"\n") + 1, at - (before.rfind(b"\n") + 1) + 1
