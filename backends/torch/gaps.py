"""Times in a recording of which torch's operators are missing."""

from __future__ import annotations

import os
from collections import Counter

from stepscope.runtime.errors import ClosedError
from stepscope.runtime.sources.sink import Sink


class Gaps:
    """Collects gaps for the report and for the sink, which adds them to the windows. One thread at a time may use it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._pid = os.getpid()
        self._since: int | None = None
        self._why = ""
        self._times: Counter[str] = Counter()
        self._missing_ns: Counter[str] = Counter()

    @property
    def open(self) -> bool:
        """True if operators are missing now."""
        return self._since is not None

    def begin(self, at: int, why: str) -> None:
        """Begins a gap, in which nothing is recorded; the first reason stays until it ends."""
        if self._since is None:
            self._since, self._why = at, why

    def end(self, at: int, *, again: bool = False) -> None:
        """Ends the gap, if there is one; with `again` the next one begins at once, for the window that follows."""
        since, why = self._since, self._why
        if since is None:
            return
        self._since = at if again else None
        self.add(since, at, why)

    def add(self, start: int, end: int, why: str) -> None:
        """Adds a time of which everything is missing."""
        if end <= start or os.getpid() != self._pid:  # a forked child has no windows
            return
        self._times[why] += 1
        self._missing_ns[why] += end - start
        try:
            self._sink.missing(start, end, why)
        except ClosedError:
            return  # the note is in the report all the same

    def notes(self) -> list[str]:
        """A sentence for each reason."""
        return [
            f"operators of {self._missing_ns[why] / 1e6:,.3f} ms are missing: {why}"
            + (f" ({n} times)" if n > 1 else "")
            for why, n in self._times.items()
        ]
