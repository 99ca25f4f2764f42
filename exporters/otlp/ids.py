"""Ids of traces and spans: the same for the same event of the same run, whoever sends it and how often."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block
from stepscope.runtime.export.run import Run

Ids = NDArray[np.uint64]


class RunIds:
    """Derives all ids from what tells a run from every other: host, process, rank, name and its clocks' first reading.

    So ids differ between ranks, a request that was sent twice names the same spans, and so does a journal that is sent
    again later.
    """

    def __init__(self, run: Run) -> None:
        facts = (run.host, run.pid, run.rank, run.name, run.anchor.wall_ns, run.anchor.monotonic_ns)
        self._key = blake2b(repr(facts).encode("utf-8", "backslashreplace"), digest_size=32).digest()
        self.instance = self._hash("instance", 16).hex()
        """Names the run."""
        self.trace = self._hash("run", 16)
        """Trace of the run: its windows, and what belongs to no single step."""
        self.span = self._hash("run span", 8)
        self._tracks: dict[int, int] = {}
        """What stands for a track, whatever its number is in this process."""

    def window(self, window: int) -> bytes:
        """Span of a window, in the run's trace."""
        return self._hash(f"window {window}", 8)

    def step_trace(self, window: int, step: int) -> bytes:
        """Trace of a step."""
        return self._hash(f"trace {window} {step}", 16)

    def step(self, window: int, step: int) -> bytes:
        """Span of a step, the root of its trace."""
        return self._hash(f"step {window} {step}", 8)

    def events(self, window: int, events: Block) -> Ids:
        """Span ids of events of a window; two are equal only if the events are. See `other`."""
        mixed: Ids = np.full(len(events), np.uint64(int.from_bytes(self._hash(f"events {window}", 8), "big")))
        for field in ("id", "ts", "dur"):
            mixed = _mix(mixed ^ events[field].astype(np.uint64))
        # Numbers of tracks and names are this process's own; who plays the journal has others.
        mixed = _mix(mixed ^ _each(events["track"], self._track))
        return _mix(mixed ^ _each(events["name"], lambda name: _number(strings.text(name))))

    @staticmethod
    def other(number: int) -> int:
        """A further id, for an event that equals one that was sent, and is another one."""
        return (number * 6364136223846793005 + 1442695040888963407) % (1 << 64)

    def _track(self, number: int) -> int:
        if number not in self._tracks and (track := tracks.get(number)):
            self._tracks[number] = _number(f"{int(track.kind)} {track.pid} {track.tid} {track.name}")
        return self._tracks.get(number, 0)

    def _hash(self, what: str, size: int) -> bytes:
        found = blake2b(what.encode(), digest_size=size, key=self._key).digest()
        return found if any(found) else b"\x01" * size  # all zeros mean that there is no id


def _each(numbers: NDArray[np.uint32], meaning: Callable[[int], int]) -> Ids:
    """What each number means; it is asked for once each."""
    distinct, places = np.unique(numbers, return_inverse=True)
    return np.array([meaning(number) for number in distinct.tolist()], np.uint64)[places]


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _mix(values: Ids) -> Ids:
    """splitmix64's finaliser: every bit of the input changes half of the output's."""
    with np.errstate(over="ignore"):
        mixed: Any = values + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))  # type: ignore[no-any-return]
