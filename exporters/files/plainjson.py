"""JSON text of values from anywhere: always valid, whatever they hold."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from stepscope.runtime.events.json_values import plain

_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=msgspec.structs.asdict)


def dumps(value: Any) -> str:
    """JSON text on one line, with a space after commas and colons, and every character as it is. `json_values.plain` reduces what
    JSON does not hold, such as NaN.

    Perfetto shows escapes such as \\u00e9 in names of processes and threads as they stand.
    """
    try:
        text = _encoder.encode(value)
        text.encode()
    except (TypeError, ValueError, RecursionError):  # a lone surrogate is a ValueError
        return json.dumps(plain(value, items=None), allow_nan=False, ensure_ascii=False)
    return text


def dumps_records(value: Any) -> str:
    """Compact JSON text of our own structs, and of dicts and lists of whole numbers and text, in a twentieth of the time of `dumps`,
    which it calls for what these do not hold. NaN must not occur."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):  # a lone surrogate is a ValueError
        return dumps(value)
