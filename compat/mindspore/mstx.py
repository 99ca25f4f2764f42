"""`mstx`: marks and ranges, as instants and spans that every profiler records, on any device."""

from __future__ import annotations

import itertools
import logging
from typing import Any

from stepscope.runtime import _core
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.threads import locks

log = logging.getLogger("stepscope")

CATEGORY = "mstx"
"""Category of marks in the default domain; of others it has `:` and the domain behind it."""

MAX_OPEN = 65_536
"""Ranges that may be open at once; further ones are not recorded, which the log has once."""

_numbers = itertools.count(1)
_open: dict[int, tuple[_core.span, str]] = {}
_lock = locks.reentrant()
_reported: set[str] = set()


def category_of(domain: str) -> str:
    """The category of a domain's marks."""
    return CATEGORY if domain == "default" else f"{CATEGORY}:{domain}"


def is_wanted_domain(category: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    """True if events of a category are wanted; those that are no marks always are."""
    if category != CATEGORY and not category.startswith(f"{CATEGORY}:"):
        return True
    domain = category.partition(":")[2] or "default"
    return (domain in include) if include else domain not in exclude


class mstx:
    """The calls of `mindspore.profiler.mstx`. Wrong arguments are logged once, and nothing is recorded."""

    @staticmethod
    def mark(message: str, stream: Any = None, domain: str = "default") -> None:
        """Records an instant with a message, in a domain, which is part of the category. `stream` is accepted for MindSpore's sake."""
        if _usable("mark", message, domain):
            _core.instant(message, category=category_of(domain))

    @staticmethod
    def range_start(message: str, stream: Any = None, domain: str = "default") -> int:
        """Begins a span, which may end on another thread, and need not nest. Arguments are those of `mark`.

        Returns:
            Its number, for `range_end`; 0 if nothing was begun.
        """
        if not _usable("range_start", message, domain):
            return 0
        span = _core.span(message, category=category_of(domain))
        with _lock:
            number = next(_numbers) if len(_open) < MAX_OPEN else 0
            if number:
                _open[number] = (span, domain)
        if not number:
            _log_once("range_start", f"{MAX_OPEN} ranges are open already: range_end() is missing somewhere")
            return 0
        span.__enter__()
        return number

    @staticmethod
    def range_end(range_id: int, domain: str = "default") -> None:
        """Ends a span.

        Args:
            range_id: what `range_start` returned; 0 changes nothing.
            domain: as given there.
        """
        if range_id == 0:
            return
        with _lock:
            found = _open.get(range_id) if isinstance(range_id, int) else None
            if found is not None and found[1] == domain:
                del _open[range_id]
        if found is None:
            _log_once("range_end", f"no range {range_id!r} is open; give what range_start() returned, once")
        elif found[1] != domain:
            _log_once("range_end", f"range {range_id} is of domain {found[1]!r}, not {domain!r}: it goes on")
        else:
            found[0].__exit__(None, None, None)


def _usable(call: str, message: object, domain: object) -> bool:
    for what, text in (("message", message), ("domain", domain)):
        if not isinstance(text, str) or not text:
            _log_once(call, f"{what} must be a non-empty str, {got(text)}")
            return False
    return True


def _log_once(call: str, text: str) -> None:
    if call not in _reported:
        _reported.add(call)
        log.warning("mstx.%s: %s", call, text)
