"""JSON of our own small files, whose paths may hold bytes that are not UTF-8."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def encode(value: Any) -> bytes:
    """A value as JSON that `decode` reads back without loss. Lone surrogates, by which Python represents bytes of a path that
    are not UTF-8, are escaped, which msgspec does not do."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def decode(data: bytes, type: type[T]) -> T:
    """What `encode` has written.

    Raises:
        msgspec.MsgspecError: if it is not JSON, or does not fit the type.
        UnicodeDecodeError: if it is not UTF-8.
    """
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if b"\\ud" not in data:  # no surrogate
            raise
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise error from None
        return msgspec.convert(found, type)
