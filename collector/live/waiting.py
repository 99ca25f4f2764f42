"""The time in which a rank waits for others: what is left of its steps is its own.

Where ranks meet in every step, as in data-parallel training, the slow one makes the steps of all as long as its own. What
tells it apart is that it waits least.
"""

from __future__ import annotations

import time
from collections import Counter

import numpy as np

from stepscope.collector.live.stretches import Stretches, Times
from stepscope.runtime.events.record import Block, Flag, Kind
from stepscope.runtime.journal import format as fmt

COLLECTIVES = (
    *("gloo:", "nccl", "mpi:", "c10d::", "_c10d_functional::", "c10d_functional::", "record_param_comms"),
    *("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "broadcast", "barrier"),
)
"""How the names of spans begin, in lower case, in which a rank waits for others: as torch names them, and as people do."""
_MOST_STRETCHES = 2048
_MOST_BYTES = 8 << 20
"""Larger frames of events are not looked into."""
_LOOK_FIRST = 100
_LOOK_EVERY = 8
"""Until a stream has had a collective, the first frames of each source are looked into, and then one of so many."""
_MOST_SOURCES = 64


class Allowance:
    """Processor time that may be spent on a matter: a share of the time that passes, saved up, then spent without a break.

    So what is looked at is looked at whole for a while, of all streams, and not a bit of everything.
    """

    def __init__(self, share: float = 0.05, saved: float = 0.5) -> None:
        """Args: share of one core; seconds that may be saved up."""
        self._share, self._most = share, saved
        self._left = saved
        self._at = time.perf_counter()
        self._open = True

    def open(self) -> bool:
        """Whether something may be spent now."""
        now = time.perf_counter()
        self._left = min(self._left + (now - self._at) * self._share, self._most)
        self._at = now
        self._open = self._left > 0 if self._open else self._left >= self._most
        return self._open

    def spend(self, seconds: float) -> None:
        """So much was spent."""
        self._left -= seconds


class Waiting:
    """What a stream tells of the time that its rank waits. Not for two threads at once."""

    def __init__(self, allowance: Allowance) -> None:
        """Args: what looking into events may cost, all streams together."""
        self._allowance = allowance
        self._frames: Counter[str] = Counter()
        """Number of frames, by source."""
        self._collectives = False
        """Whether it has had any."""
        self._waits = Stretches(_MOST_STRETCHES)
        self._unseen = Stretches(_MOST_STRETCHES)
        self._from: int | None = None
        self._to = 0

    def events(self, header: fmt.EventsHeader, flags: int, payload: fmt.Bytes) -> None:
        """A frame of events; it is looked into while that is allowed."""
        source = header.source if len(self._frames) < _MOST_SOURCES else ""
        self._frames[source] += 1
        count = self._frames[source]
        if not self._collectives and count > _LOOK_FIRST and count % _LOOK_EVERY:
            return
        if header.body_bytes > _MOST_BYTES or not self._allowance.open():
            if self._collectives:
                self._unseen.add(np.array([header.first_ns]), np.array([header.last_ns]))
            return
        began = time.perf_counter()
        decoded = fmt.decode_unnamed(bytes(payload), flags)
        if decoded is not None:
            events, texts = decoded
            names = [place for place, text in enumerate(texts) if text[:32].lower().startswith(COLLECTIVES)]
            self._collectives |= bool(names)
            if self._collectives:
                self._add(header, events[np.isin(events["name"], np.array(names, np.uint32))])
        self._allowance.spend(time.perf_counter() - began)

    def _add(self, header: fmt.EventsHeader, waits: Block) -> None:
        waits = waits[(waits["kind"] == int(Kind.SPAN)) & (waits["flags"] & int(Flag.OPEN) == 0)]
        starts = waits["ts"].astype(np.int64)
        self._waits.add(starts, starts + np.clip(waits["dur"], 0, 1 << 50))
        self._from = header.first_ns if self._from is None else self._from
        self._to = max(self._to, header.last_ns)

    def own(self, starts: Times, durations: Times) -> Times:
        """Of the steps of which everything was seen, the time in which the rank did not wait, in ns."""
        if self._from is None or not len(starts):
            return np.empty(0, np.int64)
        ends = starts + durations
        since = max(self._from, self._waits.complete_from or self._from, self._unseen.complete_from or self._from)
        seen = (starts >= since) & (ends <= self._to) & (self._unseen.within(starts, ends) == 0)
        starts, ends, durations = starts[seen], ends[seen], durations[seen]
        return durations - self._waits.within(starts, ends)


def comparable(ranks: dict[str, tuple[Times, Times]], fewest: int) -> tuple[dict[str, Times], bool]:
    """The times by which ranks are compared: their own if they are known of each, else whole steps.

    Args:
        ranks: times of the newest steps of each, and those of them that were its own.
        fewest: steps that must be known.

    Returns:
        Times of each rank, and whether they are its own.
    """
    judged = {id: pair for id, pair in ranks.items() if len(pair[0]) >= fewest}
    own = bool(judged) and all(len(mine) >= fewest for _, mine in judged.values())
    return {id: mine if own else steps for id, (steps, mine) in judged.items()}, own
