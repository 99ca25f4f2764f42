"""Sums of all streams since the start of the collector. They never fall."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from stepscope.collector.live.stream import Amounts, Stream

MOST_JOBS = 4096
"""Jobs of which it is remembered what streams have brought that are forgotten; the sum over all jobs has them all."""

_NOTHING = Amounts()


class Totals:
    """Sums by job, and over all. A stream counts with the most that it was ever seen to have, and goes on counting when it
    is forgotten.
    """

    def __init__(self) -> None:
        self._highest: dict[str, Amounts] = {}
        self._past: OrderedDict[str, Amounts] = OrderedDict()
        self._past_of_all = _NOTHING

    def look(self, streams: Iterable[Stream]) -> tuple[Amounts, dict[str, Amounts]]:
        """The sums now.

        Args:
            streams: all that are known.

        Returns:
            Over all jobs, and by job.
        """
        streams = list(streams)
        for stream in streams:
            self._see(stream)
        of_all, by_job = self._past_of_all, dict(self._past)
        for stream in streams:
            brought = self._highest[stream.id]
            of_all += brought
            by_job[stream.job] = by_job.get(stream.job, _NOTHING) + brought
        return of_all, by_job

    def forget(self, stream: Stream) -> None:
        """A stream is not known any more."""
        self._see(stream)
        brought = self._highest.pop(stream.id)
        self._past_of_all += brought
        self._past[stream.job] = self._past.get(stream.job, _NOTHING) + brought
        self._past.move_to_end(stream.job)
        if len(self._past) > MOST_JOBS:
            self._past.popitem(last=False)

    def _see(self, stream: Stream) -> None:
        now = stream.amounts
        before = self._highest.get(stream.id)
        if before != now:
            self._highest[stream.id] = now if before is None else before.highest(now)
