"""Clocks that are known, and networks that delay what is sent: for tests of what is found out about them."""

from __future__ import annotations

import math
import random

import msgspec

from stepscope.runtime.journal.records import ClockSync

START = 1_000_000_000_000_000
"""ns of the rank's clock when a test begins."""
UNIX = 1_795_000_000_000_000_000


class TrueClock(msgspec.Struct, frozen=True, kw_only=True):
    """A collector's clock as a function of a rank's."""

    ahead_ns: int = 0
    """The difference of the collector's clock to `UNIX` at the beginning."""
    drift_ppm: float = 0.0
    name: str = "collector"

    def at(self, rank_ns: int) -> int:
        """The collector's ns when the rank's clock shows this."""
        since = rank_ns - START
        return UNIX + self.ahead_ns + since + math.floor(since * self.drift_ppm * 1e-6)


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """Delays in ns: one part is always there, the other is drawn anew with a heavy tail (Pareto)."""

    out_ns: int = 50_000
    back_ns: int = 50_000
    jitter_ns: int = 100_000
    tail: float = 1.2
    """The smaller, the heavier."""

    def delay(self, least: int, chance: random.Random) -> int:
        """How long one message takes, ten seconds at most."""
        return min(least + int(self.jitter_ns * (chance.paretovariate(self.tail) - 1)), 10_000_000_000)


def round_trips(
    clock: TrueClock, network: Network, times: list[int], chance: random.Random, server_ns: int = 20_000
) -> list[ClockSync]:
    """Round trips that are begun at these times of the rank's clock."""
    made: list[ClockSync] = []
    for sent in times:
        arrived = sent + network.delay(network.out_ns, chance)
        answered = arrived + chance.randrange(server_ns + 1)
        returned = answered + network.delay(network.back_ns, chance)
        made.append(
            ClockSync(
                sent=sent,
                arrived=clock.at(arrived),
                answered=clock.at(answered),
                returned=returned,
                clock=clock.name,
            )
        )
    return made


def every(seconds: float, until: float, first: float = 0.0) -> list[int]:
    """Times of the rank's clock."""
    return [START + int((first + index * seconds) * 1e9) for index in range(int((until - first) / seconds) + 1)]
