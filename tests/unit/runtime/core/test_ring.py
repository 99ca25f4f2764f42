"""Rings: whatever threads do and however full rings are, produced = drained + dropped + waiting, to the event."""

from __future__ import annotations

import threading

import pytest

from stepscope.runtime._core import instant, span
from stepscope.runtime.options import Options
from stepscope.runtime.recording.recorder import recorder
from tests.support.recording import Row, recording, run_program

ONE_SMALL_RING = "ring_slots=64, ring_bytes=4096"


def numbers(rows: list[Row], name: str = "number") -> list[int]:
    """The argument `number` of events of a name, in their order."""
    return [row.arguments["number"] for row in rows if row.name == name]


def test_statistics_add_up_at_every_moment() -> None:
    """Also while other threads record and drain."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            with span("work"):
                instant("inside", text="x" * 200)

    def look() -> None:
        try:
            for _ in range(3000):
                now = source.statistics()
                assert now.produced == now.drained + now.dropped + now.waiting
                assert min(now.drained, now.dropped, now.waiting) >= 0 and now.waiting < 1 << 40
        except AssertionError as error:
            failed.append(error)
        finally:
            done.set()

    failed: list[AssertionError] = []
    with recording():
        source = recorder(Options())
        threads = [threading.Thread(target=target) for target in (work, work, look)]
        for thread in threads:
            thread.start()
        while not done.is_set():
            source.drain()
        for thread in threads:
            thread.join()
    assert not failed
    assert source.statistics().waiting == 0


def test_a_thread_goes_on_in_another_ring() -> None:
    """A burst larger than a ring is recorded while memory is allowed, in order, and its thread keeps its track."""
    ((count, positions, in_order, tracks),) = run_program(
        """
        for number in range(3000):
            instant("number", position=number) if number % 1000 == 0 else instant("number")
        with span("after"):
            pass
        log.drain()
        times = [row.ts for row in log.rows]
        positions = [row.arguments["position"] for row in log.rows if row.arguments]
        print_json([len(log.rows), positions, times == sorted(times), len({row.track for row in log.rows})])
        """,
        options="ring_slots=1024",
    )
    assert (count, positions, in_order, tracks) == (3001, [0, 1000, 2000], True, 1)


def test_rings_of_ended_threads_are_used_again() -> None:
    """A thousand threads one after the other need a few rings, lose nothing and have a track each."""

    def work(number: int) -> None:
        instant("number", number=number)

    with recording() as log:
        source = recorder(Options())
        rings = source.statistics().rings
        for number in range(1000):
            one = threading.Thread(target=work, args=(number,))
            one.start()
            one.join()
            if number % 10 == 0:
                log.drain()
    assert sorted(numbers(log.rows)) == list(range(1000))
    assert len({row.track for row in log.rows}) == 1000
    assert source.statistics().rings <= rings + 15


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_a_full_ring_drops_by_policy(policy: str) -> None:
    """The ring keeps the first or the last events that fit, and the gap has the number that are missing."""
    ((numbers, gaps, statistics),) = run_program(
        """
        for number in range(1000):
            instant("number", number=number)
        log.drain()
        received = [row.arguments["number"] for row in log.of(Kind.INSTANT)]
        now = recorder.statistics()
        print_json([received, [[row.name, row.id] for row in log.of(Kind.GAP)], [now.produced, now.drained, now.dropped]])
        """,
        options=f"{ONE_SMALL_RING}, overflow={policy!r}",
    )
    missing = 1000 - len(numbers)
    assert gaps == [["dropped", missing]] and statistics == [1000, len(numbers), missing]
    assert numbers == (list(range(len(numbers))) if policy == "drop_newest" else list(range(missing, 1000)))
    # An instant with its arguments is two slots.
    assert len(numbers) == 32


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
def test_accounts_are_exact_for_any_burst(policy: str) -> None:
    """Random bursts of events of random sizes: after each drain, everything was seen or is in a gap."""
    (outcome,) = run_program(
        """
        import random
        chance = random.Random(7)
        made = seen = dropped = 0
        for _ in range(150):
            for _ in range(chance.randrange(150)):
                made += 1
                with span("x", **{"text": "x" * chance.choice([0, 1, 50, 54, 55, 300, 3000])} if chance.random() < 0.5 else {}):
                    pass
            log.drain()
            seen = len(log.spans)
            dropped = sum(row.id for row in log.of(Kind.GAP))
            assert made == seen + dropped, (made, seen, dropped)
            assert all(gap.ts <= gap.end <= _core.now() for gap in log.of(Kind.GAP))
        assert all(set(row.arguments.get("text", "")) <= {"x"} for row in log.spans)
        print_json([dropped > 0, recorder.statistics().dropped == dropped, recorder.statistics().drained == seen])
        """,
        options=f"{ONE_SMALL_RING}, overflow={policy!r}",
    )
    assert outcome == [True, True, True]
