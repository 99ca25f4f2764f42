"""Forks at bad moments: nobody waits for a lock for ever, and nothing is lost or written twice."""

from __future__ import annotations

from tests.support.families import Family


def test_forks_from_another_thread_beside_threads_that_record(family: Family) -> None:
    """Children that join and children that do not, while eight threads record and name things."""
    family.of("""
    made = []
    def storm(number):
        count = 0
        while not done.is_set():
            with sc.span(f"name {number} {count % 50}"):
                count += 1
            if count % 20 == 0:
                time.sleep(0.001)
        made.append(count)
    def work(number):
        threads = [threading.Thread(target=spans, args=("child", 20)) for _ in range(3)]
        if number % 2:
            assert sc.join(f"child {number}")
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    def fork_all():
        for number in range(20):
            reap(in_child(lambda: work(number)))
        done.set()
    if __name__ == "__main__":
        done = threading.Event()
        with trace(options=sc.Options(memory_bytes=1 << 33, queue_bytes=1 << 30)) as profiler:
            threads = [threading.Thread(target=storm, args=(number,)) for number in range(8)]
            forking = threading.Thread(target=fork_all)
            [thread.start() for thread in [*threads, forking]]
            [thread.join() for thread in [*threads, forking]]
        about = profiler.statistics().recorder
        assert all(not output.ledger.dropped for output in profiler.statistics().pipeline.exporters)
        assert about.produced == about.drained + about.dropped
        print([sum(made) - about.dropped, sum(w.drained for w in about.workers)])
    """)
    ((own, theirs),) = family.said
    found = family.spans()
    assert theirs == 10 * 60 == sum(count for (process, _), count in found.items() if process != "process")
    assert own == sum(count for (process, _), count in found.items() if process == "process")


def test_many_children_at_once(family: Family) -> None:
    """Forty children that all join, record and are gone before they were seen."""
    family.of(
        """
    if __name__ == "__main__":
        with trace() as profiler:
            reap(*[in_child(lambda: spans(f"child {n}", 10)) for n in range(40)])
        left = profiler._life.opened.recorder.directory
        assert len(profiler.statistics().recorder.workers) == 40
    """,
        STEPSCOPE_JOIN="1",
    )
    assert sum(family.spans().values()) == 400
    assert len(family.spans()) == 40


def test_a_child_between_two_profilers(family: Family) -> None:
    """A worker outlives the profiler that it joined under, and records for the next one."""
    family.of("""
    def work(pipe):
        sc.join("worker")
        while name := pipe.recv():
            spans(name, 10)
            pipe.send(name)
    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        with sc.trace(output_dir=sys.argv[1] + "-first") as first:
            child = context.Process(target=work, args=(there,))
            child.start()
            here.send("first"), here.recv()
        here.send("between"), here.recv()
        with trace() as second:
            here.send("second"), here.recv()
            here.send("")
            child.join()
        assert "first" in first.summary() and "between" not in first.summary()
    """)
    assert family.spans() == {("worker", "second"): 10}
