"""Decodes JSON that people write, with line and column in every error message."""

from __future__ import annotations

import json
import re
from typing import TypeVar

import msgspec

from stepscope.runtime.errors import ControlError
from stepscope.runtime.files.encoding import from_exact_json
from stepscope.runtime.settings.validation import InvalidValue, find_invalid_value

T = TypeVar("T", bound=msgspec.Struct)

_BYTE = re.compile(r"\(byte (\d+)\)")


def decode_json(content: bytes, kind: type[T]) -> T:
    """Decodes a JSON object into settings.

    Raises:
        ControlError: with line, column and reason; for an unknown name with a similar one.
    """
    if not content.strip():
        raise ControlError("it is empty: expected a JSON object", line=1, column=1)
    if content.startswith(b"\xef\xbb\xbf"):  # the byte order mark of some editors
        content = content[3:]
    try:
        return from_exact_json(content, kind)
    except msgspec.ValidationError as error:
        raise _invalid(content, kind, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = str(error)
        found = _BYTE.search(text)
        at = int(found[1]) if found else min(getattr(error, "start", len(content)), len(content))
        line, column = _place(content, at)
        reason = _BYTE.sub("", text).strip()
        raise ControlError(f"line {line}, column {column}: {reason}", line=line, column=column) from error


def _invalid(content: bytes, kind: type[msgspec.Struct], text: str) -> ControlError:
    try:
        invalid = find_invalid_value(json.loads(content), kind, reason=text)
    except (ValueError, RecursionError):  # a syntax error follows this one
        invalid = None
    invalid = invalid or InvalidValue((), text)
    keys = invalid.keys or tuple(_named(kind, invalid.text))
    line, column = _place(content, _position_of(content, keys))
    return ControlError(f"line {line}, column {column}: {invalid.text}", line=line, column=column)


def _named(kind: type[msgspec.Struct], reason: str) -> list[str]:
    """The first field that a message about several fields names."""
    named = [field for field in kind.__struct_fields__ if re.search(rf"\b{field}\b", reason)]
    return [min(named, key=reason.find)] if named else []


def _position_of(content: bytes, keys: tuple[str | int, ...]) -> int:
    """Position of the last of these nested names; 0 for none."""
    at = 0
    for key in keys:
        if isinstance(key, str):
            found = re.compile(re.escape(msgspec.json.encode(key)) + rb"\s*:").search(content, at)
            at = found.start() if found else at
    return at


def _place(content: bytes, at: int) -> tuple[int, int]:
    """Line and column of a byte, from 1."""
    before = content[:at]
    return before.count(b"\n") + 1, at - (before.rfind(b"\n") + 1) + 1
