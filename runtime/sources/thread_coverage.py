"""Finds backends that recorded the wrong thread: other threads were active in the window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from stepscope.runtime.accounting.ledger import SourceLedger
from stepscope.runtime.events import tracks
from stepscope.runtime.events.record import EventBatch, distinct
from stepscope.runtime.events.tracks import Track, TrackKind
from stepscope.runtime.schedule.detail import are_operators
from stepscope.runtime.sources.source import Source
from stepscope.runtime.sources.thread_bound import BoundSource
from stepscope.runtime.windows.open_window import OpenWindow

MAX_NAMED = 4
"""Threads that a note names. It counts the others."""
SYSTEM_NUMBERS = 1 << 30
"""Numbers from here on are not the system's: threads beyond 65,536, tasks and tracks of the runtime have them."""


class _Present:
    def __init__(self) -> None:
        self.tracks: set[int] = set()
        self.operators = False
        """Whether the recorder has operators."""


class ThreadCoverage:
    """The threads in the windows of one profiler; on the loop. Without backends that record one thread only, it does nothing."""

    def __init__(self, sources: Iterable[Source], pid: int) -> None:
        """Args: sources of the profiler; process id of the threads."""
        self._sources = [
            source for source in sources if isinstance(source, BoundSource) and hasattr(source.backend, "one_thread")
        ]
        self._pid = pid
        self._present: dict[int, _Present] = {}

    def add(self, batch: EventBatch) -> None:
        """Adds a batch of the recorder."""
        if not self._sources or not len(batch):
            return
        present = self._present.setdefault(batch.window, _Present())
        rows = batch.events["track"]
        # Events are sorted by thread, so that there are few changes of the track.
        heads = rows[np.flatnonzero(rows[1:] != rows[:-1]) + 1]
        present.tracks.update([int(rows[0]), *distinct(heads)])
        present.operators = present.operators or bool(are_operators(batch.events).any())

    def discard(self, window: OpenWindow) -> None:
        """Forgets a window."""
        self._present.pop(window.index, None)

    def notes(self, window: OpenWindow, ledger: Mapping[str, SourceLedger]) -> Iterator[str]:
        """Notes on backends that saw no operators on their thread, while others recorded or called `step()`, for a window that closes.

        There is no note if a backend had another reason to see nothing: it did not record, or no thread did.
        """
        present = self._present.get(window.index, _Present())
        for source in self._without_operators(window, ledger, present):
            name, number = source.thread
            others = [each for each in self._threads(present.tracks | window.marks.tracks()) if each.tid != number]
            if others:
                yield (
                    f"backend {source.name!r} records only the thread that it is bound to, {name!r} ({number}), and recorded "
                    f"no operators there, while {_named(others)} recorded; call start() and stop() on the thread whose work "
                    "is wanted, or call step() there before start()"
                )

    def listeners(self, window: OpenWindow, ledger: Mapping[str, SourceLedger]) -> str:
        """Text on these backends and their threads, for an empty window; empty if there are none."""
        present = self._present.get(window.index, _Present())
        texts: list[str] = []
        for source in self._without_operators(window, ledger, present):
            name, number = source.thread
            texts.append(f"backend {source.name!r} records the thread {name!r} ({number}) only")
        return "; ".join(texts)

    def _without_operators(
        self, window: OpenWindow, ledger: Mapping[str, SourceLedger], present: _Present
    ) -> Iterator[BoundSource]:
        for source in self._sources:
            produced = ledger.get(source.name, SourceLedger()).produced
            if not produced and not present.operators and source.recorded_one_thread(window.start):
                yield source

    def _threads(self, rows: set[int]) -> list[Track]:
        """The threads of this process with these tracks, or with tasks that have them."""
        threads: dict[int, Track] = {}
        for row in rows:
            track = tracks.get(row)
            while track is not None and track.kind is TrackKind.TASK:
                track = tracks.get(track.parent)
            if track is not None and track.kind is TrackKind.THREAD and track.pid == self._pid:
                threads[track.id] = track
        return sorted((each for each in threads.values() if each.tid < SYSTEM_NUMBERS), key=lambda each: each.tid)


def _named(threads: list[Track]) -> str:
    named = [f"{thread.name!r} ({thread.tid})" for thread in threads[:MAX_NAMED]]
    more = len(threads) - len(named)
    named += [f"{more} more"] if more else []
    joined = " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
    return f"{'the thread' if len(threads) == 1 else 'the threads'} {joined}"
