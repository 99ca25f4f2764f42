"""Running, ready and waiting of tasks, of tasks that are known to the nanosecond."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.rules.event_loops import TURN_NS, blocked, check_tasks_pile_up, loops_of
from stepscope.analysis.rules.evidence import Job
from stepscope.analysis.tables.rank_summary import Collection, RankSummary, Sample, TaskRun
from tests.support.viewers.scene import make_window

MS = 1_000_000


class Recorded:
    """A process with tasks, as far as loops are made of it."""

    rank = None

    def __init__(
        self,
        tasks: dict[str, tuple[int, int, list[tuple[int, int]]]],
        callbacks: dict[str, tuple[int, int]] | None = None,
        windows: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """Each task: begin, end, and its waits. Each callback and each window: begin and end."""
        self.recorded = SimpleNamespace(
            windows={
                index: msgspec.structs.replace(make_window(index), start_ns=begin, end_ns=end)
                for index, (begin, end) in enumerate(windows)
            }
        )
        self.samples: list[Sample] = []
        self.facts: list[int] = []
        self.collections: list[Collection] = []
        self.task_waits: dict[str, list[tuple[int, float]]] = {}
        self.callbacks = [
            TaskRun(begin, end - begin, name, 2_000_000, open=False) for name, (begin, end) in (callbacks or {}).items()
        ]
        self.tasks = [
            TaskRun(begin, end - begin, name, 1_000_000 + number, open=False)
            for number, (name, (begin, end, _)) in enumerate(tasks.items())
        ]
        waits = [
            (begin, end - begin, 1_000_000 + number)
            for number, (_, _, several) in enumerate(tasks.values())
            for begin, end in several
        ]
        self.suspended = [tuple(np.array(waits, np.int64).reshape(-1, 3).T)]


def times(**tasks: tuple[int, int, list[tuple[int, int]]]) -> dict[str, tuple[int, int, int]]:
    """Running, ready and waiting of each."""
    (loop,) = loops_of(cast(RankSummary, Recorded(tasks)))
    return {each.name: (each.running, each.ready, each.waiting) for each in loop.times()}


def test_a_task_that_waits_while_another_runs_was_ready_at_most_since_it_began() -> None:
    """And before, when nothing ran, it waited."""
    found = times(
        blocker=(0, 100 * MS, [(0, 50 * MS)]),
        waiter=(0, 101 * MS, [(0, 100 * MS)]),
    )
    assert found == {"blocker": (50 * MS, 0, 50 * MS), "waiter": (MS, 50 * MS, 50 * MS)}


def test_a_task_after_a_pause_of_the_loop_was_not_ready() -> None:
    """It would have run in the pause."""
    pause = 2 * TURN_NS
    found = times(
        blocker=(0, 50 * MS, []),
        waiter=(0, 60 * MS, [(0, 50 * MS + pause)]),
    )
    assert found["waiter"] == (10 * MS - pause, 0, 50 * MS + pause)


def test_a_long_callback_blocks_the_loop_as_a_task_does() -> None:
    """It is named, with its place, and a task that is to go on meanwhile is ready since it began, and waits so long."""
    recorded = cast(
        RankSummary,
        Recorded(
            {"waiter": (0, 200 * MS, [(0, 100 * MS), (101 * MS, 199 * MS)])},
            {"Feed.tick (/p/feed.py:7)": (20 * MS, 100 * MS)},
        ),
    )
    (loop,) = loops_of(recorded)
    assert [(each.name, each.ready, each.count) for each in loop.times()] == [("waiter", 80 * MS, 1)]
    found = blocked(recorded, loop)
    assert found is not None and found.cost_ns == 80 * MS and found.cost == 0.4
    assert str(found.places[0]) == "Feed.tick (/p/feed.py:7)" and "run_in_executor(None, Feed.tick)" in found.action
    assert (
        "Feed.tick" in found.evidence[0]
        and "may have waited for their turn, up to 80.0ms" in found.evidence[1]
        and "waiter 80.0ms" in found.evidence[1]
    )


Tasks = dict[str, tuple[int, int, list[tuple[int, int]]]]


def many(every_ms: int, begin_ms: int, length_ms: int, count: int) -> Tasks:
    """So many requests, one after the other."""
    begins = [at * every_ms + begin_ms for at in range(count)]
    return {f"request{at}": (begin * MS, (begin + length_ms) * MS, []) for at, begin in enumerate(begins)}


BLOCKED: dict[str, tuple[Tasks, dict[str, tuple[int, int]], int | None]] = {
    "a task inside of a callback costs no more than that": (
        {"eager": (10 * MS, 100 * MS, []), "other": (0, 200 * MS, [(0, 199 * MS)])},
        {"made": (0, 100 * MS)},
        100,
    ),
    "often, each for less time than one that counts; the first ran alone": (many(40, 0, 15, 50), {}, 49 * 15),
    "too seldom": (many(200, 0, 15, 50), {}, None),
    "work before there is another task": (
        {"main": (0, 900 * MS, [(500 * MS, 900 * MS)]), "handle": (510 * MS, 515 * MS, [])},
        {},
        None,
    ),
    "a task that is alone": ({"main": (0, 900 * MS, [(500 * MS, 600 * MS)])}, {}, None),
    "many short stretches and a long one": (
        {"main": (0, 1_000 * MS, [(1 * MS, 930 * MS)]), **many(40, 10, 25, 20)},
        {},
        20 * 25 + 70,
    ),
}


@pytest.mark.parametrize(("tasks", "callbacks", "ms"), BLOCKED.values(), ids=list(BLOCKED))
def test_how_long_a_loop_is_blocked(tasks: Tasks, callbacks: dict[str, tuple[int, int]], ms: int | None) -> None:
    """Only while somebody else could have run; not at all if it does so too seldom."""
    recorded = cast(RankSummary, Recorded(tasks, callbacks))
    (loop,) = loops_of(recorded)
    found = blocked(recorded, loop)
    assert (found and found.cost_ns) == (ms and ms * MS)
    if len(tasks) > 2 and found:
        assert "ran for 10.0ms or longer" in found.evidence[0], "the short ones have most of the time"


def test_time_between_windows_does_not_count() -> None:
    """A service that is asked for a window now and then is blocked for as large a share of the time as in each of them."""
    tasks: Tasks = {
        f"request{at}": ((begin + 25) * MS, (begin + 85) * MS, []) for at, begin in enumerate((0, 100, 10_000, 10_100))
    }
    recorded = cast(RankSummary, Recorded(tasks, windows=((0, 200 * MS), (10_000 * MS, 10_200 * MS))))
    (loop,) = loops_of(recorded)
    found = blocked(recorded, loop)
    assert found is not None and found.cost == pytest.approx(180 / 360), "nobody waited for the first"


def test_a_part_of_a_coroutine_goes_to_a_thread() -> None:
    """`asyncio.to_thread` takes no coroutine, and the function that is named may be one."""
    recorded = Recorded({"main": (0, 300 * MS, [(0, 300 * MS)]), "worker": (0, 200 * MS, [])})
    recorded.samples = [Sample(at * MS, "worker (/p/a.py:3);price (/p/a.py:9)", "R", "") for at in range(20)]
    (loop,) = loops_of(cast(RankSummary, recorded))
    found = blocked(cast(RankSummary, recorded), loop)
    assert found is not None and "to_thread(...) for what takes long in price" in found.action


@pytest.mark.parametrize(("collected_ms", "is_cause"), [(160, True), (120, False), (20, False)])
def test_a_loop_that_collects_garbage(collected_ms: int, is_cause: bool) -> None:
    """The function that runs then has only made the objects after which Python collects, unless it blocks the loop without that, too."""
    recorded = Recorded({"main": (0, 300 * MS, [(0, 300 * MS)]), "worker": (0, 200 * MS, [])})
    recorded.samples = [Sample(at * MS, "worker (/p/a.py:3);price (/p/a.py:9)", "R", "") for at in range(20)]
    recorded.collections = [Collection(10 * MS, collected_ms * MS, 2)]
    found = blocked(*(cast(RankSummary, recorded), *loops_of(cast(RankSummary, recorded))))
    assert found is not None and ("gc.freeze()" in found.action, not found.places) == (is_cause, is_cause)
    assert ("of that is garbage collection" in found.evidence[1]) is (collected_ms >= 100)


@pytest.mark.parametrize(
    ("state", "other", "is_found"), [("S", "", True), ("R", "", False), ("S", "Thread-1: f (/p/a.py:3)", False)]
)
def test_tasks_that_wait_without_an_await(state: str, other: str, is_found: bool) -> None:
    """However short: nothing else runs meanwhile. Not those that compute, or wait for the interpreter's lock."""
    recorded = Recorded(many(10, 0, 4, 100) | {"main": (0, 1_000 * MS, [(0, 1_000 * MS)])})
    idle = [
        Sample((10 * at + 7) * MS, "<module> (/p/a.py:1);run (/lib/python3.11/asyncio/runners.py:190)", "S", "")
        for at in range(50)
    ]
    recorded.samples = [Sample((10 * at + 2) * MS, "emit (/p/a.py:9)", state, other) for at in range(50)] + idle
    found = blocked(*(cast(RankSummary, recorded), *loops_of(cast(RankSummary, recorded))))
    assert (found is not None) is is_found
    assert found is None or "asyncio, for what emit waits for" in found.action and "in 50 of 100" in found.evidence[0]


@pytest.mark.parametrize(("longer_ms", "is_found"), [(8, True), (0, False)])
def test_tasks_that_take_longer_and_longer(longer_ms: int, is_found: bool) -> None:
    """More and more are open, as behind a lock; not where each takes as long as those before."""
    runs = {
        f"request{at}": (
            at * 10 * MS,
            (at * (10 + longer_ms) + 30) * MS,
            [(at * 10 * MS, (at * (10 + longer_ms) + 29) * MS)],
        )
        for at in range(100)
    }
    recorded = Recorded(runs)
    recorded.tasks = [msgspec.structs.replace(task, name="request") for task in recorded.tasks]
    recorded.task_waits = {
        "request: renew (/p/a.py:9)": [(0, 1.0), (1, 2.0)],
        "request: Tokens.get (/p/a.py:7)": [(0, 7.0), (1, 20.0)],
        "main: main (/p/a.py:20)": [(0, 90.0)],
    }
    found = check_tasks_pile_up(Job([cast(RankSummary, recorded)]))
    assert [one.id for one in found] == ["tasks-pile-up"] * is_found
    assert not found or found[0].title.startswith("Tasks pile up: 4") and "named request" in found[0].title
    assert not found or found[0].evidence[-1] == "90% of those that wait do so in Tokens.get (/p/a.py:7)"
    assert not found or found[0].places[0].line == 7


def test_tasks_that_begin_together_do_not_pile_up() -> None:
    """A semaphore lets ten at a time run, as it should."""
    recorded = Recorded({f"fetch{at}": (at, (at // 10 + 1) * 50 * MS, []) for at in range(300)})
    recorded.tasks = [msgspec.structs.replace(task, name="fetch") for task in recorded.tasks]
    assert check_tasks_pile_up(Job([cast(RankSummary, recorded)])) == []


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=9), min_size=1, max_size=4))
def test_the_times_of_a_task_add_up(lengths: list[list[int]]) -> None:
    """To what it took from its begin to its end, whatever the others do."""
    tasks: dict[str, tuple[int, int, list[tuple[int, int]]]] = {}
    for number, parts in enumerate(lengths):
        edges = np.cumsum([0, *parts]).tolist()
        tasks[f"task{number}"] = (
            0,
            edges[-1] * MS,
            [(edges[at] * MS, edges[at + 1] * MS) for at in range(0, len(parts), 2)],
        )
    found = times(**tasks)
    assert {name: sum(parts) for name, parts in found.items()} == {name: end for name, (_, end, _) in tasks.items()}
    assert all(min(parts) >= 0 for parts in found.values())
