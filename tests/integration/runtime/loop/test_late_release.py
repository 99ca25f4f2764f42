"""Late release: a slot of a ring is free when the journals have its event."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from stepscope.runtime.recording.late_release import STALL_TIMEOUT_NS, LateRelease
from tests.support.recording import run_program


def a_journal() -> Any:
    """The worker of a journal, as far as rings wait for it."""
    return SimpleNamespace(items_queued=0, handled=0, unreported_drops=0)


def joined_processes() -> Any:
    """The rings of joined processes: what was called."""
    calls: list[str] = []
    return SimpleNamespace(calls=calls, mark=lambda: calls.append("mark"), release=lambda: calls.append("release"))


def test_slots_are_released_when_the_journals_are_through() -> None:
    """One barrier at a time; each release covers what was marked before, as soon as the journals have it."""
    joined, journal = joined_processes(), a_journal()
    release = LateRelease(joined, lambda: False)
    release.begin()
    journal.items_queued = 1
    release.advance(20, 10, [journal])  # a part of the drain is not routed yet
    journal.handled = 1
    release.release_due()
    assert joined.calls == ["mark"] and not release.due()
    journal.items_queued = 2
    release.advance(30, 30, [journal])
    assert joined.calls == ["mark"] and not release.due()
    journal.handled = 2
    assert release.due()
    release.release_due()
    assert joined.calls == ["mark", "release"] and not release.due()
    release.advance(40, 40, [journal])  # of a drain without events
    assert joined.calls[2:] == ["mark", "release"]
    release.advance(50, 50, [])
    assert joined.calls[4:] == ["mark", "release"]


def test_a_stalled_journal_does_not_keep_full_rings() -> None:
    """They are freed once it makes no progress, and that is counted; not while it does."""
    full, journal, joined = [False], a_journal(), joined_processes()
    release = LateRelease(joined, lambda: full[0])
    journal.items_queued = 1
    release.begin()
    release.advance(1, 1, [journal])
    full[0] = True
    release.advance(2, 2, [journal])
    assert release.waiting() and "release" not in joined.calls
    time.sleep(STALL_TIMEOUT_NS / 1e9 * 1.1)
    release.advance(3, 3, [journal])
    assert joined.calls.count("release") == 1
    release.end()
    assert not release.waiting()


def test_drained_events_stay_in_rings_until_their_release() -> None:
    """As long as slots wait, recovery finds their events; a thread goes on in another ring when one is full."""
    ((waiting, unreleased), freed, known) = run_program(
        """
        def record():
            for _ in range(300):
                with span("x"):
                    pass

        _core.release_late(True)
        record()
        log.drain()
        print_json([_core.ring_statistics()["waiting"], _core.unreleased()])
        _core.mark_rings()
        record()
        log.drain()
        _core.release_rings()
        print_json(_core.unreleased())
        print_json(len(log.rows))
        """,
        options="ring_slots=1024",
    )
    assert (waiting, unreleased, freed, known) == (0, 300, 300, 600)
