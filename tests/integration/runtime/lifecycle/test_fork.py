"""After a fork the child records nothing until it opens a recorder of its own, and the parent notices nothing."""

from __future__ import annotations

import sys

import pytest

from tests.support.process_trees import FORKING
from tests.support.recording import run_program

# Python 3.12 warns of every fork of a process with threads; forks are tested here.
FLAGS = ("-W", "ignore::DeprecationWarning") if sys.version_info >= (3, 12) else ()

OWN_RECORDER = """
def own_recorder():
    mine = recorders.recorder(Options(ring_slots=1024))
    mine.want(WANTED_BY, True)
    return mine
"""


def run(program: str) -> list[object]:
    """Runs a program that has `in_child(work)`, `reap(pid)` and `own_recorder()`."""
    return run_program(FORKING + OWN_RECORDER + program.replace("\n    ", "\n"), flags=FLAGS)


@pytest.mark.checklist("F18")
def test_a_child_is_inert() -> None:
    """It records nothing, writes nothing to its parent's files, and the parent's accounts go on as if alone."""
    (result,) = run("""
    instant("before")
    def work():
        assert not _core.recording()
        for _ in range(100):
            with span("child", text="new name %d" % _):
                instant("child")
        assert recorders._recorder is None
        assert _core.ring_statistics()["produced"] == 0 and not any(_core.counts().values())
        assert _core.drain(1024, 1 << 62) == (b"", b"", False) and _core.open_spans() == b""
    files = {path.name: path.read_bytes() for path in recorder.directory.iterdir()}
    reap(in_child(work))
    assert files == {path.name: path.read_bytes() for path in recorder.directory.iterdir()}
    instant("after")
    log.drain()
    now = recorder.statistics()
    print_json([[row.name for row in log.rows], now.produced, now.dropped, now.waiting])
    """)
    assert result == [["before", "after"], 2, 0, 0]


def test_spans_across_a_fork_are_the_parents() -> None:
    """The child leaves them without a trace; in the parent they end as if there had been no fork."""
    (result,) = run("""
    again = span("again")
    with span("outer"), again:
        def work():
            again.__exit__()
            mine = own_recorder()
            again.__exit__()
            with span("child's"):
                again.__enter__()
                again.__exit__()
            log = Log(mine)
            log.drain()
            assert [row.name for row in log.rows] == ["again", "child's"], log.rows
            assert log.rows[1].parent == 0 and log.rows[0].parent == log.rows[1].id
            check_self_times(log.spans)
        reap(in_child(work))
        with span("inner"):
            pass
    log.drain()
    check_self_times(log.spans)
    print_json([[row.name for row in log.spans], any(row.flags for row in log.spans)])
    """)
    assert result == [["inner", "again", "outer"], False]


def test_a_child_of_a_task() -> None:
    """The task's stack belongs to the parent, whatever becomes of the task's context in the child."""
    (result,) = run("""
    import asyncio, gc
    from stepscope.runtime.events import tracks
    async def child():
        with span("child's task"):
            await asyncio.sleep(0)
    def work():
        mine = own_recorder()
        with span("in the old context"):
            pass
        asyncio._set_running_loop(None)
        for _ in range(100):
            asyncio.run(child())
        gc.collect()
        log = Log(mine)
        log.drain()
        assert not any(row.flags for row in log.spans)
        assert [row.parent for row in log.spans] == [0] * 101
        assert {tracks.get(row.track).pid for row in log.spans} == {os.getpid()}
    async def main():
        with span("task"):
            await asyncio.sleep(0)
            with span("around"):
                reap(in_child(work))
            await asyncio.sleep(0)
            assert [row["name"] for row in recorder.open_spans()] == [_core.intern("task")]
    asyncio.run(main())
    log.drain()
    check_self_times(log.of(Kind.SPAN))
    print_json([[row.name for row in log.spans], any(row.flags for row in log.spans)])
    """)
    assert result == [["around", "task"], False]


@pytest.mark.checklist("F18")
def test_forks_while_threads_record() -> None:
    """The child may record at once, with threads of its own; nobody waits for a lock, and the parent loses nothing."""
    (result,) = run("""
    done = threading.Event()
    made = []
    def storm(number):
        count = 0
        while not done.is_set():
            with span(f"name {number} {count % 20_000}", number=count):
                count += 1
        made.append(count)
    def work():
        mine = own_recorder()
        ours = [threading.Thread(target=lambda: [instant(f"mine {n}") for n in range(100)]) for _ in range(3)]
        for thread in ours:
            thread.start()
        for thread in ours:
            thread.join()
        log = Log(mine)
        log.drain()
        assert len(log.rows) == 300 and mine.statistics().produced == 300
        mine.close()
    threads = [threading.Thread(target=storm, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    seen = 0
    for _ in range(12):
        reap(in_child(work))
        seen += sum(len(events) for events, _ in recorder.drain()[1])
    done.set()
    for thread in threads:
        thread.join()
    seen += sum(len(events) for events, _ in recorder.drain()[1])
    print_json([sum(made) == seen, recorder.statistics().dropped])
    """)
    assert result == [True, 0]


def test_children_of_children() -> None:
    """Each generation has a session of its own, or none."""
    (result,) = run("""
    def grandchild():
        mine = own_recorder()
        instant("grandchild")
        assert mine.statistics().produced == 1
    def child():
        reap(in_child(grandchild))
        mine = own_recorder()
        instant("child")
        reap(in_child(lambda: instant("inert")))
        reap(in_child(grandchild))
        assert mine.statistics().produced == 1
    instant("parent")
    reap(in_child(child))
    print_json(recorder.statistics().produced)
    """)
    assert result == 1
