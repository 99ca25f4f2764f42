"""Transitions: what starts, changes and stops take from the threads of the program."""

from __future__ import annotations

import msgspec


class TransitionStatistics(msgspec.Struct, frozen=True):
    """Times in ns, of the threads that called."""

    starts: int
    start_ns: int
    """In `start()`, with what the first one makes: directories, rings, threads, exporters."""
    change_ns: int
    """In calls of `step()` that begin or end a window, or look whether they do."""
    longest_change_ns: int
    stop_ns: int
    """In `stop()` and `close()`, until nothing more is recorded."""
    wait_ns: int
    """In these after that, until exporters had everything or, in `close()`, had written it; or until the deadline came."""

    def __str__(self) -> str:
        """One line for people, in ms."""
        often = f" ({self.starts:,} times)" if self.starts > 1 else ""
        return (
            f"start {_ms(self.start_ns)}{often}; changes {_ms(self.change_ns)}, the longest {_ms(self.longest_change_ns)}; "
            f"stop {_ms(self.stop_ns)}, then {_ms(self.wait_ns)} of waiting for exporters"
        )


class Transitions:
    """Adds up; times in ns."""

    def __init__(self) -> None:
        self._starts = self._start = self._opening = self._change = self._longest = self._stop = self._wait = 0

    def started(self, took: int, opening: int) -> None:
        """A start, and how much of it was the opening, which is no cost of recording."""
        self._starts += 1
        self._start += took
        self._opening += opening

    def changed(self, took: int) -> None:
        """A step that changed something, or looked whether to."""
        self._change += took
        self._longest = max(self._longest, took)

    def stopped(self, took: int) -> None:
        """A stop, without the waiting."""
        self._stop += took

    def waited(self, took: int) -> None:
        """The waiting for exporters at the end."""
        self._wait += took

    @property
    def recording_ns(self) -> int:
        """What recording took: everything but the opening, and the waiting at the end."""
        return self._start - self._opening + self._change + self._stop

    def statistics(self) -> TransitionStatistics:
        """What there was so far."""
        return TransitionStatistics(self._starts, self._start, self._change, self._longest, self._stop, self._wait)


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f} ms"
