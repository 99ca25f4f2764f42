"""JSON and MessagePack for any text. Paths, names and environment variables may contain bytes that are not UTF-8: Python
represents them by lone surrogates, which msgspec does not encode."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from stepscope.runtime.files.paths import readable

T = TypeVar("T")


def json_bytes(value: Any) -> bytes:
    """Encodes JSON for any reader: lone surrogates become the text `\\udcXX`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_readable(msgspec.to_builtins(value)))


def msgpack_bytes(value: Any) -> bytes:
    """Encodes MessagePack; lone surrogates become the text `\\udcXX`."""
    try:
        return _msgpack.encode(value)
    except UnicodeEncodeError:
        return _msgpack.encode(_readable(msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview))))


_msgpack = msgspec.msgpack.Encoder()


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return readable(value)
    container: Any = value
    if isinstance(value, dict):
        return {_readable(key): _readable(item) for key, item in container.items()}
    if isinstance(value, list | tuple):
        return [_readable(item) for item in container]
    return value


def exact_json(value: Any) -> bytes:
    """Encodes JSON that `from_exact_json` reads without loss, for paths that are opened later: lone surrogates are escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def from_exact_json(data: bytes, type: type[T]) -> T:
    """Decodes the output of `exact_json`.

    Raises:
        msgspec.MsgspecError: if it is not JSON, or does not fit the type.
        UnicodeDecodeError: if it is not UTF-8.
        RecursionError: if it is nested too deep.
    """
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if b"\\ud" not in data:  # no escaped surrogate
            raise
        try:
            found = json.loads(data)
        except ValueError:
            raise error from None
        return msgspec.convert(found, type)
