"""Facts about a run, for every output."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from stepscope.runtime.events.json_values import plain
from stepscope.runtime.files.paths import readable
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.threads import locks

log = logging.getLogger("stepscope")


class Metadata:
    """A thread-safe mapping of JSON-like values."""

    def __init__(self, initial: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        self._lock = locks.reentrant()
        for key, value in (initial or {}).items():
            self.add(key, value)

    def add(self, key: str, value: Any) -> None:
        """Adds or replaces a value. Values that JSON does not support become the name of their type (`plain`).

        Raises:
            TypeError: if the key is no str.
        """
        _check_str("key", key)
        reduced = plain(value)
        with self._lock:
            self._values[readable(key)] = reduced

    def add_json(self, key: str, text: str) -> None:
        """Adds a value from JSON text. Text that is no JSON, or nested too deeply, is logged and stored as a string.

        Raises:
            TypeError: if key or text is no str.
        """
        _check_str("key", key)
        _check_str("value", text)
        value: Any = text
        try:
            value = plain(msgspec.json.decode(text))
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            log.warning("metadata %r is not JSON (%s); it is kept as text", key, error)
        with self._lock:
            self._values[readable(key)] = value

    def snapshot(self) -> dict[str, Any]:
        """The current values."""
        with self._lock:
            return dict(self._values)


def _check_str(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} of metadata must be a str, {got(value)}")
