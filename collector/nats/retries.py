"""Failures of reading from NATS, and when to try again."""

from __future__ import annotations

import logging
import time

import msgspec

from stepscope.exporters.network.backoff import Backoff

log = logging.getLogger("stepscope.collector")

FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds until what failed is tried again, of `Backoff`."""


class _Failure(msgspec.Struct):
    text: str
    retry_at: float
    backoff: Backoff


class Retries:
    """Failures of streams, of partitions and of the connection, and when to try again. Each text is logged once."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._failures: dict[str, _Failure] = {}

    def fail(self, what: str, error: BaseException) -> None:
        """Notes a failure. The time until the next try grows.

        Args:
            what: what failed, such as `stream ...`; empty: the connection.
        """
        before = self._failures.get(what)
        if isinstance(error, TimeoutError) and before is not None:
            text = before.text  # it says more
        else:
            text = f"{type(error).__name__}: {error}"[:500]
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY) if before is None else before.backoff
        self._failures[what] = _Failure(text, time.monotonic() + backoff.delay(), backoff)
        if before is None or before.text != text:
            failed = f"{what} of {self._where}" if what else self._where
            log.error("%s cannot be read, and is tried again: %s", failed, ascii(text)[1:-1])

    def succeed(self, what: str) -> None:
        """Forgets a failure."""
        self._failures.pop(what, None)

    def wait(self, what: str) -> float:
        """Seconds until something is to be tried again; 0 if it has not failed."""
        failure = self._failures.get(what)
        return 0.0 if failure is None else max(failure.retry_at - time.monotonic(), 0.0)

    @property
    def problem(self) -> str:
        """The failure of the connection, or else any; empty if there is none. One that was not tried again counts no more."""
        limit = time.monotonic() - 2 * LONGEST_DELAY
        self._failures = {what: failure for what, failure in self._failures.items() if failure.retry_at > limit}
        if "" in self._failures:
            return self._failures[""].text
        return next((f"{what}: {failure.text}" for what, failure in self._failures.items()), "")
