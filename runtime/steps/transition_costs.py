"""Time that starts, changes and stops cost the threads of the program."""

from __future__ import annotations

import msgspec


class TransitionStatistics(msgspec.Struct):
    """Times in ns, on the calling threads."""

    starts: int = 0
    start_ns: int = 0
    """In `start()`. The first one creates directories, rings, threads and exporters."""
    opening_ns: int = 0
    """The part of that for opening backends and exporters, which is no cost of recording."""
    change_ns: int = 0
    """In calls of `step()` that begin or end a window, or ask the schedule."""
    longest_change_ns: int = 0
    stop_ns: int = 0
    """In `stop()` and `close()`, until recording has stopped."""
    wait_ns: int = 0
    """In these after that, until exporters had all events or, in `close()`, had written them, or until the deadline."""

    def changed(self, ns: int) -> None:
        """Adds a step that changed the action, or asked the schedule."""
        self.change_ns += ns
        self.longest_change_ns = max(self.longest_change_ns, ns)

    @property
    def recording_ns(self) -> int:
        """Cost of recording: all times but opening, and waiting at the end."""
        return self.start_ns - self.opening_ns + self.change_ns + self.stop_ns

    def __str__(self) -> str:
        """One line for people, in ms."""
        often = f" ({self.starts:,} times)" if self.starts > 1 else ""
        return (
            f"start {_ms(self.start_ns)}{often}; changes {_ms(self.change_ns)}, the longest {_ms(self.longest_change_ns)}; "
            f"stop {_ms(self.stop_ns)}, then {_ms(self.wait_ns)} of waiting for exporters"
        )


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f} ms"
