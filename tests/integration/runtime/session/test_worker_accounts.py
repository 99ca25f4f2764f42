"""The accounts of processes that join: each profiler has its own, and all that was recorded is in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.recording.recorder_statistics import WorkerAccounts, WorkerStatistics
from stepscope.runtime.session.directory import remove_session
from tests.support.process_trees import ProcessTree


def test_a_second_profiler(process_tree: ProcessTree) -> None:
    """It has the processes that took part in its time, with what they did then; the first one's accounts stay."""
    process_tree.execute("""
    def work(pipe):
        signal.alarm(90)
        sc.join("long")
        while name := pipe.recv():
            spans(name, 10)
            pipe.send(name)
    def accounts(profiler):
        assert not profiler.audit(), profiler.audit()
        return {w.name: [w.produced, w.drained, w.dropped] for w in profiler.statistics().recorder.workers}
    if __name__ == "__main__":
        here, there = multiprocessing.Pipe()
        with trace() as first:
            spans("own", 7)
            reap(in_child(lambda: (sc.join("short"), spans("short", 5))))
            long = in_child(lambda: work(there))
            here.send("a"), here.recv()
            first.flush()
            deadline = time.monotonic() + 60
            while all(w.state != "ended" for w in first.statistics().recorder.workers):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        before = accounts(first), first.statistics().recorder
        assert before[0] == {"short": [5, 5, 0], "long": [10, 10, 0]}, before
        assert before[1].produced == 7 + 1 == before[1].drained  # and a step mark
        here.send("between"), here.recv()
        with sc.trace(output_dir=sys.argv[1] + "-2") as second:
            spans("own", 3)
            here.send("b"), here.recv()
            reap(in_child(lambda: (sc.join("new"), spans("new", 4))))
            here.send(""), reap(long)
        assert accounts(second) == {"new": [4, 4, 0], "long": [10, 10, 0]}, accounts(second)
        assert second.statistics().recorder.produced == 3 + 1
        assert "process   short" not in str(second.report()) and "process   long" in str(second.report())
        assert before == (accounts(first), first.statistics().recorder)
    """)
    assert process_tree.spans() == {("process", "own"): 7, ("short", "short"): 5, ("long", "a"): 10}


def test_names_cut_for_another_profiler(process_tree: ProcessTree) -> None:
    """Is not in the report of this one."""
    process_tree.execute("""
    with trace() as first:
        spans("x" * 2000, 1)
    with sc.trace(output_dir=sys.argv[1] + "-2") as second:
        spans("y", 1)
    assert first.statistics().recorder.cut["names_cut"] == 1 and "names cut" in str(first.report())
    assert second.statistics().recorder.cut["names_cut"] == 0 and "names cut" not in str(second.report())
    """)


def test_threads_that_can_have_no_ring(process_tree: ProcessTree, small_disk: Path) -> None:
    """Their events are dropped and counted, by process, in the window and in the report; those of other threads are recorded."""
    process_tree.execute(f"""
    disk = {str(small_disk)!r}
    def fill(pipe):
        pipe.recv()
        sc.join("full")
        spans("kept", 5)
        filler = open(disk + "/filler", "wb", buffering=0)
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            pass
        threads = [threading.Thread(target=spans, args=("lost", 50)) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        os.unlink(disk + "/filler")
    if __name__ == "__main__":
        with trace(options=sc.Options(session_dir=disk, ring_slots=1024)) as profiler:
            here, there = multiprocessing.Pipe()
            child = in_child(lambda: fill(there))
            here.send(1), reap(child)
            reap(in_child(lambda: (sc.join("other"), spans("other", 3))))
            profiler.flush()
        workers = {{w.name: w for w in profiler.statistics().recorder.workers}}
        full, other = workers["full"], workers["other"]
        assert (full.produced, full.drained, full.dropped, full.without_ring) == (155, 5, 150, 150), full
        assert (other.produced, other.dropped, other.without_ring) == (3, 0, 0), other
        assert profiler.statistics().pipeline.windows.dropped["recorder"] == {{"overflow": 150}}
        assert "150 of them by threads without a ring" in str(profiler.report())
        assert not profiler.audit()
    """)
    assert process_tree.spans() == {("full", "kept"): 5, ("other", "other"): 3}


def test_many_processes_one_after_the_other(process_tree: ProcessTree) -> None:
    """Neither descriptors nor what is known of them grows, and the report stays short; all of them are counted."""
    process_tree.execute("""
    if __name__ == "__main__":
        with trace() as profiler:
            def round(count):
                for number in range(count):
                    reap(in_child(lambda: (sc.join(f"worker {number}"), spans("work", 5))))
                until = time.monotonic() + 60
                while any(w.state != "ended" for w in profiler.statistics().recorder.workers) and time.monotonic() < until:
                    time.sleep(0.01)
                return len(os.listdir("/proc/self/fd"))
            few = round(20)
            assert round(300) <= few + 2
        workers = profiler.statistics().recorder.workers
        assert len(workers) == 257 and sum(w.drained for w in workers) == 5 * 320 == sum(w.produced for w in workers)
        lines = [line for line in str(profiler.report()).splitlines() if line.startswith("  process ")]
        assert len(lines) == 17 and lines[-1].endswith("241 more: 1,520 of 1,520 events"), lines
        assert not profiler.audit()
    """)
    assert sum(process_tree.spans().values()) == 5 * 320


def test_the_session_directory_is_removed(process_tree: ProcessTree) -> None:
    """As by who cleans up /dev/shm: everybody goes on, and what cannot be had of a worker any more is counted."""
    process_tree.execute("""
    import shutil
    def work(pipe):
        sc.join("worker")
        spans("before", 10)
        pipe.send(1), pipe.recv()
        spans("after", 20)
        thread = threading.Thread(target=spans, args=("of a new thread", 7))
        thread.start(), thread.join()
    if __name__ == "__main__":
        with trace() as profiler:
            here, there = multiprocessing.Pipe()
            child = in_child(lambda: work(there))
            here.recv(), profiler.flush()
            shutil.rmtree(os.environ["STEPSCOPE_SESSION"])
            here.send(1), reap(child)
            spans("own", 5)
        (worker,) = profiler.statistics().recorder.workers
        assert (worker.produced, worker.drained) == (37, 10), worker
        assert (worker.dropped, worker.without_ring, worker.broken) == (27, 7, 0), worker
        assert profiler.statistics().pipeline.windows.dropped["recorder"] == {"overflow": 27}
        assert "session directory removed" in str(profiler.report()) and not profiler.audit()
    """)
    assert process_tree.spans() == {("process", "own"): 5, ("worker", "before"): 10}


def test_killed_while_it_joins(process_tree: ProcessTree) -> None:
    """A process counts as ended, however complete its directory is, and the others are followed."""
    process_tree.execute(
        """
    import json, pathlib
    if __name__ == "__main__":
        with trace() as profiler:
            dead = in_child(lambda: None)
            reap(dead)
            for number, files in enumerate((), ("process.json",), ("process.json", "strings", "tracks", "stacks"))):
                part = pathlib.Path(os.environ["STEPSCOPE_SESSION"]) / f"{dead}-{number}"
                part.mkdir(0o700)
                for name in files:
                    (part / name).write_text(json.dumps({"pid": dead, "start_time": number}) if "." in name else "")
            reap(in_child(lambda: (sc.join("whole"), spans("work", 5))))
            until = time.monotonic() + 60  # whether a process runs is looked at from time to time
            while any(w.state != "ended" for w in profiler.statistics().recorder.workers) and time.monotonic() < until:
                time.sleep(0.01)
        found = sorted((w.produced, w.state) for w in profiler.statistics().recorder.workers)
        assert found == [(0, "ended"), (0, "ended"), (5, "ended")], found
    """.replace("enumerate((),", "enumerate(((),")
    )
    assert process_tree.spans() == {("whole", "work"): 5}


def test_workers_of_a_killed_owner(process_tree: ProcessTree) -> None:
    """They record into the session until it is removed, and nothing from then on; no file of it comes back."""
    process_tree.execute(
        """
    from stepscope.runtime import _core
    def work():
        sc.join("worker")
        while _core.recording():
            spans("work", 10)
            time.sleep(0.001)
        deadline = time.monotonic() + 30  # the directory goes last
        while os.path.exists(os.environ["STEPSCOPE_SESSION"]) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.write(1, json.dumps(os.path.exists(os.environ["STEPSCOPE_SESSION"])).encode())
    if __name__ == "__main__":
        import json, pathlib
        from stepscope.runtime.session.directory import remove_session
        sc.trace(output_dir=sys.argv[1]).start()
        session = pathlib.Path(os.environ["STEPSCOPE_SESSION"])
        if in_child(work) and os.fork():
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        while os.getppid() == int(session.name.split("-")[1]):
            time.sleep(0.01)
        remove_session(session)
        os._exit(0)
    """,
        code=-9,
    )
    assert process_tree.printed == [False]


def test_a_removal_that_is_interrupted(tmp_path: Path) -> None:
    """The files that are left still name the session, so that a later sweep finds it; files of others stay."""
    session = tmp_path / "stepscope-1-x"
    session.mkdir(mode=0o700)
    (session / "1-2").mkdir()
    (session / "1-2" / "foreign").write_text("mine")
    for name in ("strings", "ring-00000"):
        (session / name).write_text("")
    (session / "control").symlink_to(tmp_path / "elsewhere")
    (session / "process.json").write_text(json.dumps({"pid": 1, "start_time": 2}))
    with pytest.raises(OSError, match="not empty"):
        remove_session(session)
    assert (session / "process.json").exists() and (session / "1-2" / "foreign").exists()
    (session / "1-2" / "foreign").unlink()
    remove_session(session)
    assert list(tmp_path.iterdir()) == []


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Actions of processes, by number: `join`, `record`, `drain`, `drop`, `end`; and a profiler's `open`."""
    actions = st.sampled_from(["join", "record", "record", "drain", "drop", "end"])
    history = draw(st.lists(st.tuples(actions, st.integers(0, 5)), max_size=60))
    history.insert(draw(st.integers(0, len(history))), ("open", 0))
    return history


@given(histories())
def test_accounts_of_any_history(history: list[tuple[str, int]]) -> None:
    """From when they are opened on nothing is missing and nothing is there twice, and each of them balances."""
    living: dict[Path, WorkerStatistics] = {}
    opened: list[WorkerAccounts] = [WorkerAccounts({})]
    recorded = drained = waiting_then = 0
    joined = 0
    for action, number in history:
        known = list(living)
        if action == "open":
            opened.append(WorkerAccounts(living))
            recorded = drained = 0
            waiting_then = sum(worker.waiting for worker in living.values())
        elif action == "join":
            joined += 1
            living[Path(f"{joined}")] = WorkerStatistics(pid=joined, name=f"{joined}", state="recording")
        elif known:
            place = known[number % len(known)]
            worker = living[place]
            produced, took, dropped = worker.produced, worker.drained, worker.dropped
            if action == "record":
                produced, recorded = produced + number, recorded + number
            elif action == "drain":
                took, drained = took + worker.waiting, drained + worker.waiting
            elif action == "drop":
                dropped += worker.waiting
            living[place] = WorkerStatistics(
                pid=worker.pid,
                name=worker.name,
                state="recording",
                produced=produced,
                drained=took,
                dropped=dropped,
                waiting=produced - took - dropped,
            )
            if action == "end":
                for accounts in opened:
                    accounts.end(place, living[place])
                del living[place]
    found = opened[-1].statistics(living)
    assert sum(worker.produced for worker in found) == recorded + waiting_then
    assert sum(worker.drained for worker in found) == drained
    for worker in (*found, *opened[0].statistics(living)):
        assert worker.produced == worker.drained + worker.dropped + worker.waiting
        assert min(worker.produced, worker.drained, worker.dropped, worker.waiting) >= 0
    assert len(opened[0].statistics(living)) == joined
