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
        """Adds or replaces a value; what JSON cannot hold is named by its type (`plain`).

        Raises:
            TypeError: if the key is no str.
        """
        _check_str("key", key)
        kept = plain(value)
        with self._lock:
            self._values[readable(key)] = kept

    def add_json(self, key: str, text: str) -> None:
        """Adds a value given as JSON text; other text, and what is nested too deep, is kept as a string, and logged.

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

    def copy(self) -> Metadata:
        """The same values, with a lock of their own: that of this one may be held for ever in a forked child."""
        return Metadata(self._values)

    def snapshot(self) -> dict[str, Any]:
        """The values as they are now."""
        with self._lock:
            return dict(self._values)


def _check_str(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} of metadata must be a str, {got(value)}")
