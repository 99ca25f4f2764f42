"""Processes that join: every span of theirs once, on a process track of its own, however they start and end."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from stepscope.runtime.journal.reader import JournalReader
from tests.support.basics import ROOT, require
from tests.support.killed_programs import names
from tests.support.launch import run_to_end
from tests.support.process_trees import ProcessTree


def check(process_tree: ProcessTree, expected: dict[tuple[str, str], int]) -> None:
    """Journal and Chrome file have exactly these spans."""
    assert process_tree.spans() == Counter(expected)
    assert process_tree.chrome_spans() == Counter(expected)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(process_tree: ProcessTree, method: str) -> None:
    """Workers that call join() appear under multiprocessing's names, those that leave by os._exit included."""
    process_tree.execute(f"""
    def work(name):
        assert sc.join() and sc.join()
        spans(name)
    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        with trace() as profiler:
            spans("own", 10)
            children = [context.Process(target=work, args=(f"work {{n}}",), name=f"child {{n}}") for n in range(3)]
            [child.start() for child in children]
            [child.join() for child in children]
            assert [child.exitcode for child in children] == [0, 0, 0]
        accounts = profiler.statistics().recorder.workers
        assert {{(w.name, w.produced, w.drained, w.dropped, w.waiting) for w in accounts}} == {{
            (f"child {{n}}", 100, 100, 0, 0) for n in range(3)}}
        assert "child 2" in str(profiler.report())
    """)
    check(process_tree, {("process", "own"): 10, **{(f"child {n}", f"work {n}"): 100 for n in range(3)}})


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_join_by_themselves(process_tree: ProcessTree, method: str) -> None:
    """With STEPSCOPE_JOIN=1 nothing has to be called, also where the fork server runs since before the session."""
    process_tree.execute(
        f"""
    def work(name):
        spans(name)
    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        early = context.Process(target=work, args=("not traced",))
        early.start()
        early.join()
        with trace():
            children = [context.Process(target=work, args=("work",), name=f"child {{n}}") for n in range(2)]
            [child.start() for child in children]
            [child.join() for child in children]
    """,
        STEPSCOPE_JOIN="1",
    )
    check(process_tree, {(f"child {n}", "work"): 100 for n in range(2)})


def test_programs_and_grandchildren(process_tree: ProcessTree) -> None:
    """A program that is started, its forked child and that one's child belong to the same session."""
    process_tree.execute(
        """
    def grandchild():
        sc.join("grandchild")
        spans("below", 5)
    def child():
        reap(in_child(grandchild))
        spans("between", 5)
    if __name__ == "__main__":
        if len(sys.argv) > 2:
            sc.join("program")
            spans("program", 5)
            reap(in_child(lambda: (sc.join("child"), child())))
        else:
            with trace():
                subprocess.run([sys.executable, __file__, sys.argv[1], "again"], check=True)
                # Not by its environment, but as a descendant.
                bare = {**os.environ, "STEPSCOPE_SESSION": ""}
                subprocess.run([sys.executable, "-c", "import stepscope as s\\nwith s.span('bare'): pass"],
                               check=True, env=bare)
                assert "STEPSCOPE_SESSION" in os.environ
            assert "STEPSCOPE_SESSION" not in os.environ
    """,
        STEPSCOPE_JOIN="1",
    )
    expected = {("program", "program"): 5, ("child", "between"): 5, ("grandchild", "below"): 5, ("-c", "bare"): 1}
    check(process_tree, expected)


@pytest.mark.parametrize(("method", "persistent"), [("fork", False), ("spawn", True)])
def test_data_loader(process_tree: ProcessTree, method: str, persistent: bool) -> None:
    """The workers of torch's DataLoader appear by their numbers, over several epochs."""
    require("torch")
    process_tree.execute(
        f"""
    import torch
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 24
        def __getitem__(self, item):
            with sc.span("load", item=item):
                return torch.tensor([item])
    if __name__ == "__main__":
        loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=4, persistent_workers={persistent},
                                             multiprocessing_context={method!r})
        with trace() as profiler:
            for epoch in range(2):
                assert sum(int(batch.sum()) for batch in loader) == sum(range(24))
        processes = len(profiler.statistics().recorder.workers)
        assert processes == (4 if {persistent} else 8), processes
    """,
        STEPSCOPE_JOIN="1",
        STEPSCOPE_SIGNALS="loader",
    )
    loads = {key: count for key, count in process_tree.spans().items() if key[1] == "load"}
    assert loads == {(f"DataLoader worker {n}", "load"): 12 for n in range(4)}
    assert {key: count for key, count in process_tree.chrome_spans().items() if key[1] == "load"} == loads
    starts = [count for (_, name), count in process_tree.spans().items() if name == "start workers"]
    assert starts == [1 if persistent else 2]


def test_a_killed_worker_leaves_its_open_spans(process_tree: ProcessTree) -> None:
    """Also a span that began after the process had been seen to run for the last time."""
    process_tree.execute("""
    if __name__ == "__main__":
        with trace() as profiler:
            here, there = os.pipe()
            def work():
                sc.join("worker")
                spans("done", 10)
                os.read(here, 1)
                with sc.span("outer"), sc.span("inner"):
                    os.kill(os.getpid(), signal.SIGKILL)
            child = in_child(work)
            while not any(worker.drained == 10 for worker in profiler.statistics().recorder.workers):
                time.sleep(0.01)
            os.write(there, b"1")
            assert os.waitpid(child, 0)[1] == signal.SIGKILL
            deadline = time.monotonic() + 60
            while all(worker.state != "ended" for worker in profiler.statistics().recorder.workers):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert not profiler.audit(), profiler.audit()
    """)
    assert process_tree.spans() == {("worker", "done"): 10}
    assert process_tree.spans(still_open=True) == {("worker", "outer"): 1, ("worker", "inner"): 1}


def test_a_worker_records_while_its_parent_does(process_tree: ProcessTree) -> None:
    """Schedule, pause and end of the parent hold for the worker, and a span that is open at a window's end is cut."""
    process_tree.execute("""
    def send(pipe, word):
        pipe.send(word)
        pipe.recv()
    def work(pipe):
        sc.join("worker")
        while word := pipe.recv():
            with sc.span("around"):
                spans(word, 10)
                pipe.send(word)
                pipe.recv()
            pipe.send(word)
        pipe.send("")
    if __name__ == "__main__":
        context = multiprocessing.get_context("fork")
        with trace(schedule=sc.schedule(wait=1, warmup=0, active=1, repeat=1)) as profiler:
            here, there = context.Pipe()
            child = context.Process(target=work, args=(there,))
            child.start()
            send(here, "waiting")
            send(here, "")
            profiler.step()
            send(here, "recorded")
            profiler.step()
            profiler.flush()
            send(here, "")
            send(here, "over")
            send(here, "")
            here.send("")
            child.join()
    """)
    assert process_tree.spans() == {("worker", "recorded"): 10}
    assert process_tree.spans(still_open=True) == {("worker", "around"): 1}


def test_accounts_of_a_worker_that_records_too_much(process_tree: ProcessTree) -> None:
    """Events that do not fit its rings are counted: produced = drained + dropped."""
    process_tree.execute("""
    if __name__ == "__main__":
        options = sc.Options(worker_ring_bytes=1 << 16, ring_slots=256)
        with trace(options=options) as profiler:
            reap(in_child(lambda: (sc.join("worker"), spans("many", 200_000))))
            profiler.flush()
        (worker,) = profiler.statistics().recorder.workers
        assert worker.produced == 200_000 == worker.drained + worker.dropped, worker
        print([worker.drained, worker.dropped])
        dropped = profiler.statistics().pipeline.windows.dropped["recorder"]["overflow"]
        assert dropped == worker.dropped
    """)
    ((drained, dropped),) = process_tree.printed
    assert dropped > 0
    assert process_tree.spans() == {("worker", "many"): drained}


def test_files_of_ended_workers_are_removed_without_a_window(process_tree: ProcessTree) -> None:
    """Files of processes that joined and ended are removed, however long no window comes."""
    process_tree.execute("""
    def work(number):
        assert sc.join()
    if __name__ == "__main__":
        from pathlib import Path
        from stepscope.runtime.loop import drain_loop
        from stepscope.runtime.recording import joined_processes
        drain_loop.IDLE_S, joined_processes.ENDED_PROCESS_FILES_NS = 0.05, 0
        with sc.trace(output_dir=sys.argv[1], schedule=sc.schedule(wait=1_000_000, warmup=0, active=1)) as profiler:
            profiler.step()
            session = Path(os.environ["STEPSCOPE_SESSION"])
            context = multiprocessing.get_context("fork")
            children = [context.Process(target=work, args=(number,)) for number in range(3)]
            [child.start() for child in children]
            [child.join() for child in children]
            until = time.monotonic() + 20
            while list(session.glob("[0-9]*-[0-9]*")):
                assert time.monotonic() < until
                time.sleep(0.01)
    """)


PROGRAM = """
import os, resource, sys, time
if sys.argv[3] == "asyncio":
    sys.modules["uvloop"] = None
import stepscope as sc
before = sys.argv[2] == "before"
profiler = sc.trace(output_dir=sys.argv[1], options=sc.Options(drain_interval=0.02))
profiler.start()
with sc.span("first"):
    pass
assert profiler.flush(60)  # the journal is open by then: what is missing below is descriptors for processes that join

def record(name):
    for _ in range(100):
        with sc.span(name):
            pass

def worker(number):
    child = os.fork()
    if not child:
        for each in copies:  # a child has descriptors of its own
            os.close(each)
        sc.join()
        record(f"of worker {number}")
        if before:
            os.read(gate[0], 1)
            record(f"later of worker {number}")
        os._exit(0)
    return child

def drained():
    return [worker.drained for worker in profiler.statistics().recorder.workers]

copies, gate = [], os.pipe()
children = [worker(number) for number in range(3)] if before else []
while before and (len(drained()) < 3 or min(drained()) < 100):
    with sc.span("own"):
        time.sleep(0.01)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
reserve = os.open("/dev/null", os.O_RDONLY)
top = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))
try:
    while True:
        copies.append(os.dup(reserve))
except OSError:
    pass
try:
    children = children or [worker(number) for number in range(3)]
    os.write(gate[1], b"123")
    for child in children:
        os.waitpid(child, 0)
    for _ in range(30):
        with sc.span("own"):
            time.sleep(0.01)
finally:
    for each in copies:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
profiler.close()
assert not profiler.audit(), profiler.audit()
assert all(w.waiting == 0 == w.dropped for w in profiler.statistics().recorder.workers), profiler.statistics().recorder.workers
"""


@pytest.mark.parametrize(("joined", "loop"), [("before", "asyncio"), ("before", "uvloop"), ("meanwhile", "uvloop")])
def test_nothing_is_lost(joined: str, loop: str, tmp_path: Path) -> None:
    """Events that cannot be read for want of descriptors are read when there are some again, also of ended processes."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), joined, loop]
    done = run_to_end(command, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = names(tmp_path / "journal")
    for number in range(3):
        assert found[f"of worker {number}"] == 100
        assert found[f"later of worker {number}"] == (100 if joined == "before" else 0)
    assert found["first"] == 1
    assert found["own"] >= 30
    with JournalReader(tmp_path / "journal") as reader:
        assert list(reader) and not reader.damage


SHORTAGES = """
import os, sys, time
import stepscope as sc
from stepscope.runtime.recovery.session_files import SessionFiles

load, short = SessionFiles.load_ids, False

def load_ids(self, ids):
    if short:
        self.unread = True
    else:
        load(self, ids)

SessionFiles.load_ids = load_ids
profiler = sc.trace(output_dir=sys.argv[1], options=sc.Options(drain_interval=0.02))
profiler.start()
goes_on = os.pipe()
child = os.fork()
if not child:
    sc.join()
    for name in ("first", "second"):
        os.read(goes_on[0], 1)
        with sc.span(name):
            pass
    os.read(goes_on[0], 1)
    os._exit(0)
while not profiler.statistics().recorder.workers:
    time.sleep(0.01)
for _ in range(2):
    short = True
    os.write(goes_on[1], b"1")
    time.sleep(0.2)
    short = False
    assert profiler.flush(60)
os.write(goes_on[1], b"1")
os.waitpid(child, 0)
profiler.close()
"""


def test_events_wait_for_their_names(tmp_path: Path) -> None:
    """Also in a second shortage."""
    done = run_to_end([sys.executable, "-c", SHORTAGES, str(tmp_path)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = names(tmp_path / "journal")
    assert found["first"] == found["second"] == 1


def test_a_full_disk(process_tree: ProcessTree, small_disk: Path) -> None:
    """Where there is no memory for rings nothing crashes, and what a ring could not take is counted."""
    process_tree.execute(f"""
    if __name__ == "__main__":
        with trace(options=sc.Options(session_dir={str(small_disk)!r})) as profiler:
            def work():
                sc.join("worker")
                spans("few", 10)
                filler = open({str(small_disk / "filler")!r}, "wb", buffering=0)
                try:
                    while filler.write(bytes(4096)):
                        pass
                except OSError:
                    pass
                spans("many", 20_000)
            reap(in_child(work))
            profiler.flush()
        (worker,) = profiler.statistics().recorder.workers
        assert worker.produced == 20_010 == worker.drained + worker.dropped, worker
        print([worker.drained, worker.dropped, worker.broken])
    """)
    ((drained, dropped, broken),) = process_tree.printed
    assert dropped > 0 == broken
    assert sum(process_tree.spans().values()) == drained >= 10
