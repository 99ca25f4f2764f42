"""Processes that join: forked at bad moments, killed, spawned, and left without their owner."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from stepscope.runtime.recovery.recover import recover
from tests.stress.torture.fault import Fault, Outcome
from tests.support.basics import missing
from tests.support.launch import launched
from tests.support.process_trees import START, ProcessTree, pair

TIMED = """
longest = 0
def timed(call, *arguments):
    global longest
    began = time.perf_counter_ns()
    result = call(*arguments)
    longest = max(longest, time.perf_counter_ns() - began)
    return result
def report(profiler, produced):
    began = time.perf_counter_ns()
    profiler.close()
    shutdown = time.perf_counter_ns() - began
    recorder, pipeline = profiler.statistics().recorder, profiler.statistics().pipeline
    dropped = recorder.dropped + sum(worker.dropped for worker in recorder.workers)
    dropped += max(sum(output.ledger.dropped.values()) for output in pipeline.exporters)
    print([produced, dropped, longest, shutdown])
"""

STORM = """
FORKS = 40
done = threading.Event()
made = []
def storm(number):
    count = 0
    while not done.is_set():
        with sc.span(f"name {number} {count % 100}"):
            count += 1
        if count % 20 == 0:
            time.sleep(0.001)
    made.append(count)
def work(number):
    threads = [threading.Thread(target=spans, args=("child", 20)) for _ in range(3)]
    if number % 2:
        assert sc.join()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
def fork_all():
    for number in range(FORKS):
        reap(in_child(lambda: work(number)))
    done.set()
if __name__ == "__main__":
    with trace(options=sc.Options(memory_bytes=1 << 33, queue_bytes=1 << 30)) as profiler:
        threads = [threading.Thread(target=storm, args=(number,)) for number in range(8)]
        threads.append(threading.Thread(target=fork_all))
        [thread.start() for thread in threads]
        while not done.is_set():
            timed(profiler.step)
            time.sleep(0.001)
        [thread.join() for thread in threads]
        report(profiler, sum(made) + 3 * 20 * FORKS // 2)
"""

KILLED = """
if __name__ == "__main__":
    with trace() as profiler:
        here, there = os.pipe()
        def work():
            sc.join("worker")
            count = 0
            with sc.span("whole"):
                while True:
                    spans("work", 10)
                    count += 10
                    os.write(there, count.to_bytes(8, "little"))
        pid = os.fork()
        if pid == 0:
            work()
        until = time.monotonic() + float(sys.argv[2])
        while time.monotonic() < until:
            timed(profiler.step)
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(there)
        output = b""
        while more := os.read(here, 1 << 16):
            output += more
        report(profiler, int.from_bytes(output[-8:], "little"))
"""

OWNER_KILLED = """
def work(number):
    sc.join(f"worker {number}")
    count = 0
    while count < 200_000:
        spans("work", 10)
        count += 10
        os.write(1, f"{number} {count}\\n".encode())
if __name__ == "__main__":
    profiler = trace()
    profiler.start()
    for number in range(2):
        if os.fork() == 0:
            work(number)
    while True:
        time.sleep(1)
"""

NO_RING = """
import resource
def work():
    sc.join("worker")
    spans("work", 100)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    threads = [threading.Thread(target=spans, args=("lost", 1000)) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
if __name__ == "__main__":
    with trace() as profiler:
        reap(in_child(work))
        report(profiler, 8100)
"""

REMOVED = """
import shutil
def work():
    sc.join("worker")
    count = 0
    while not os.path.exists(sys.argv[1] + "-stop"):
        spans("work", 10)
        count += 10
        time.sleep(0.001)
    os.write(there, count.to_bytes(8, "little"))
if __name__ == "__main__":
    here, there = os.pipe()
    with trace() as profiler:
        pids = [in_child(work) for _ in range(3)]
        until = time.monotonic() + float(sys.argv[2])
        while time.monotonic() < until or sum(w.drained > 0 for w in profiler.statistics().recorder.workers) < len(pids):
            timed(profiler.step)
            time.sleep(0.001)
        shutil.rmtree(os.environ["STEPSCOPE_SESSION"], ignore_errors=True)
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            timed(profiler.step)
            spans("own", 1)
            time.sleep(0.001)
        open(sys.argv[1] + "-stop", "w").close()
        reap(*pids)
        report(profiler, sum(int.from_bytes(os.read(here, 8), "little") for _ in pids))
"""

SPAWNED = """
def work(name):
    timed(sc.join)
    spans(name, 100)
    os._exit(0)
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    with trace() as profiler:
        children = [context.Process(target=work, args=("work",)) for _ in range(3)]
        [child.start() for child in children]
        [child.join() for child in children]
        report(profiler, 300)
"""

PROGRAMS = """
if __name__ == "__main__":
    if len(sys.argv) > 2:
        timed(sc.join)
        spans("work", 100)
        os.kill(os.getpid(), signal.SIGKILL) if sys.argv[2] == "killed" else sys.exit(0)
    with trace() as profiler:
        ends = ("normally", "killed", "killed")
        programs = [subprocess.Popen([sys.executable, __file__, sys.argv[1], end]) for end in ends]
        assert [program.wait() for program in programs] == [0, -9, -9]
        report(profiler, 300)
"""

LOADER = """
import warnings
warnings.simplefilter("ignore")
import torch
EPOCHS, ITEMS = 1, 16
class Data(torch.utils.data.Dataset):
    epoch = 0
    def __len__(self):
        return ITEMS
    def __getitem__(self, item):
        with sc.span(f"load {{self.epoch}} {{item}}", item=item):
            return torch.tensor([item])
def start(worker):
    timed(sc.join)
def train(number):
    sys.argv[1] = os.path.join(os.path.dirname(sys.argv[1]), str(number), "run")
    data = Data()
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers={workers}, worker_init_fn=start,
                                         multiprocessing_context={method!r})
    loaded = 0
    with trace() as profiler:
        for data.epoch in range(EPOCHS):
            for batch in loader:
                loaded += len(batch)
                timed(profiler.step)
        assert loaded == EPOCHS * ITEMS
        report(profiler, loaded)
if __name__ == "__main__":
    for number in range({runs}):
        pid = os.fork()
        if pid == 0:
            train(number)
            sys.exit()
        assert os.waitpid(pid, 0)[1] == 0
"""


def _closed(
    directory: Path, program: str, tried: int, *only: str, missed: int = 0, once: str = "", timeout: float = 60
) -> Outcome:
    """Runs a program that reports, and counts what is in its journal and its Chrome file, which must agree.

    Args:
        only: names of the spans that count; all if there are none.
        missed: spans beyond those reported that may be there: of a process that was killed before it could say so.
        once: spans whose name begins so count, instead of `only`; each name must occur once.
        timeout: seconds in which the program must end.
    """
    tree = ProcessTree(directory)
    try:
        tree.execute(TIMED + program, timeout=timeout)
        (report,) = tree.printed
        return _counted(tree, report, tried, *only, missed=missed, once=once)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return Outcome(tried=tried, problems=(str(error)[-500:],))


def _counted(tree: ProcessTree, report: list[int], tried: int, *only: str, missed: int = 0, once: str = "") -> Outcome:
    """The same for what a program has reported. Raises `AssertionError` if an id occurs twice."""
    found = tree.spans()
    whole = found + tree.spans(still_open=True)
    problems = [] if whole == tree.chrome_spans() else ["journal and Chrome file do not agree"]
    produced, dropped, blocked, shutdown = report
    counts = [
        count for (_, name), count in found.items() if (name.startswith(once) if once else not only or name in only)
    ]
    exported = sum(counts)
    if once and any(count > 1 for count in counts):
        problems.append(f"{sum(count - 1 for count in counts)} spans were written twice")
    if produced < exported <= produced + missed:
        produced = exported
    return Outcome(
        tried=tried,
        produced=produced,
        exported=exported,
        dropped=dropped,
        blocked_ns=blocked,
        shutdown_ns=shutdown,
        problems=tuple(problems),
    )


def fork_storm(directory: Path, seed: int) -> Outcome:
    """Forty forks from one thread while eight record; half of the children join, and each has three threads."""
    return _closed(directory, STORM, 40)


def worker_killed(directory: Path, seed: int) -> Outcome:
    """A worker that records as fast as it can is killed at a random moment."""
    program = KILLED.replace("float(sys.argv[2])", str(random.Random(seed).uniform(0.05, 0.4)))
    return _closed(directory, program, 1, "work", missed=20)


def without_rings(directory: Path, seed: int) -> Outcome:
    """A worker that may make no file any more starts eight threads, which can have no ring."""
    return _closed(directory, NO_RING, 1)


def session_removed(directory: Path, seed: int) -> Outcome:
    """Somebody removes the session directory while three workers record, which it has seen by then and which do not fill their rings."""
    program = REMOVED.replace("float(sys.argv[2])", str(random.Random(seed).uniform(1.6, 2.0)))
    return _closed(directory, program, 1, "work")


def owner_killed(directory: Path, seed: int) -> Outcome:
    """The process that drains is killed at a random moment; its workers are killed later."""
    program = directory / "program.py"
    program.write_text(START + OWNER_KILLED)
    command = [sys.executable, str(program), str(directory / "run")]
    counts = {0: 0, 1: 0}
    with launched(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        lines = (pair(line) for line in process.stdout)
        wait = time.monotonic() + random.Random(seed).uniform(0.05, 0.3)
        while time.monotonic() < wait or not all(counts.values()):
            number, count = next(lines)
            counts[number] = count
        process.kill()  # and not waited for yet: so long, its number and its group are nobody else's
        for _ in range(200):
            number, count = next(lines)
            counts[number] = count
        os.killpg(process.pid, signal.SIGKILL)
        counts |= dict(lines)
    began = time.perf_counter_ns()
    recovery = recover(directory / "run", remove_session=True)
    took = time.perf_counter_ns() - began
    found = ProcessTree(directory).spans(recovery.journal.name)
    produced = exported = 0
    for number, count in counts.items():
        mine = found[f"worker {number}", "work"]
        exported += mine
        # It may have been killed before it could say what it had recorded.
        produced += mine if count <= mine <= count + 20 else count
    return Outcome(produced=produced, exported=exported, dropped=recovery.dropped, shutdown_ns=took)


def spawned(method: str, directory: Path, seed: int) -> Outcome:
    """Workers of multiprocessing that leave by `os._exit`."""
    return _closed(directory, SPAWNED.format(method=method), 3)


def programs(directory: Path, seed: int) -> Outcome:
    """Programs that are started and join, of which two are killed after their last span."""
    return _closed(directory, PROGRAMS, 3, "work")


def data_loader(method: str, workers: int, runs: int, directory: Path, _: int) -> Outcome:
    """Programs with a DataLoader, one after the other, forked where torch is imported already: each traces an epoch.
    Each item that the workers load is a span of a name of its own."""
    if importlib.util.find_spec("torch") is None:
        missing("torch", "`make test` installs it.")
    begun = ProcessTree(directory)
    outcome = Outcome(tried=0)
    try:
        begun.execute(TIMED + LOADER.format(method=method, workers=workers, runs=runs), timeout=80)
        for number, counts in enumerate(begun.printed):
            outcome += _counted(ProcessTree(directory / str(number)), counts, 1, once="load ")
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return outcome + Outcome(tried=1, problems=(str(error)[-500:],))
    return outcome


FAMILY = "processes"
FAULTS: tuple[Fault, ...] = (
    Fault(family=FAMILY, name="fork while eight threads record", trial=fork_storm, trials=5, least=5),
    Fault(family=FAMILY, name="a worker killed at a random moment", trial=worker_killed, trials=6),
    Fault(family=FAMILY, name="the owner killed while workers record", trial=owner_killed, trials=4),
    Fault(family=FAMILY, name="a worker's threads can have no ring", trial=without_rings, trials=2),
    Fault(family=FAMILY, name="the session directory removed", trial=session_removed, trials=4),
    *(
        Fault(family=FAMILY, name=f"{what} workers leave by os._exit", trial=partial(spawned, method), trials=1)
        for what, method in (("spawned", "spawn"), ("forkserver's", "forkserver"))
    ),
    Fault(family=FAMILY, name="programs join, and are killed", trial=programs, trials=1),
    Fault(
        family=FAMILY,
        name="DataLoader, programs with four forked workers",
        trial=partial(data_loader, "fork", 4, 20),
        trials=12,
        least=10,
    ),
    Fault(
        family=FAMILY,
        name="DataLoader, programs with four spawned workers",
        trial=partial(data_loader, "spawn", 4, 2),
        trials=10,
        short=0,
        least=3,
    ),
)
