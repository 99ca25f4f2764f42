"""Time that starts, changes and stops cost the threads of the program."""

from __future__ import annotations

import msgspec


class TransitionStatistics(msgspec.Struct, frozen=True):
    """Times in ns, on the calling threads."""

    starts: int
    start_ns: int
    """In `start()`. The first one creates directories, rings, threads and exporters."""
    change_ns: int
    """In calls of `step()` that begin or end a window, or ask the schedule."""
    longest_change_ns: int
    stop_ns: int
    """In `stop()` and `close()`, until recording has stopped."""
    wait_ns: int
    """In these after that, until exporters had all events or, in `close()`, had written them, or until the deadline."""

    def __str__(self) -> str:
        """One line for people, in ms."""
        often = f" ({self.starts:,} times)" if self.starts > 1 else ""
        return (
            f"start {_ms(self.start_ns)}{often}; changes {_ms(self.change_ns)}, the longest {_ms(self.longest_change_ns)}; "
            f"stop {_ms(self.stop_ns)}, then {_ms(self.wait_ns)} of waiting for exporters"
        )


class Transitions:
    """Sums of times, in ns."""

    def __init__(self) -> None:
        self._starts = self._start = self._opening = self._change = self._longest = self._stop = self._wait = 0

    def started(self, ns: int, opening: int) -> None:
        """Adds a start, and its part for opening backends and exporters, which is no cost of recording."""
        self._starts += 1
        self._start += ns
        self._opening += opening

    def changed(self, ns: int) -> None:
        """Adds a step that changed the action, or asked the schedule."""
        self._change += ns
        self._longest = max(self._longest, ns)

    def stopped(self, ns: int) -> None:
        """Adds a stop, without waiting."""
        self._stop += ns

    def waited(self, ns: int) -> None:
        """Adds waiting for exporters at the end."""
        self._wait += ns

    @property
    def recording_ns(self) -> int:
        """Cost of recording: all times but opening, and waiting at the end."""
        return self._start - self._opening + self._change + self._stop

    def statistics(self) -> TransitionStatistics:
        """The sums so far."""
        return TransitionStatistics(self._starts, self._start, self._change, self._longest, self._stop, self._wait)


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f} ms"
