"""Overflow: what a full ring does under each policy, and that waiting for room ends."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from tests.support.native import require_compiler
from tests.support.recording import run_program as run_bare

TINY = "ring_slots=64, ring_bytes=4096"

NAMES = """
def burst(name, category, count):
    for _ in range(count):
        with span(name, category=category):
            pass
def recorded():
    log.drain()
    names = [row.name for row in log.spans]
    return {name: names.count(name) for name in dict.fromkeys(names)}
def lost():
    assert {row.name for row in log.of(Kind.GAP)} <= {"dropped"}
    return sum(row.id for row in log.of(Kind.GAP))
"""


def run_program(program: str, options: str) -> list[Any]:
    """Runs a program that has the functions of NAMES."""
    return run_bare(NAMES + textwrap.dedent(program), options=options)


def test_bursts_go_on_to_further_rings() -> None:
    """While `ring_bytes` allows, for all threads together; after that events are dropped."""
    ((counts, missing, rings),) = run_program(
        """
        burst("op", "cpu_op", 600)
        other = threading.Thread(target=burst, args=("mine", "user_annotation", 2000))
        other.start(); other.join()
        print_json([recorded(), lost(), recorder.statistics().rings])
        """,
        options="ring_slots=64, ring_bytes=16 * 4096",
    )
    assert rings == 16
    assert counts["op"] == 600 and counts["mine"] == 6 * 64
    assert missing == 2600 - 600 - 6 * 64


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest", "block"])
def test_step_marks_have_room_when_nothing_else_has(policy: str) -> None:
    """Under no policy does a flood of events cost a step its mark."""
    ((counts, steps, missing),) = run_program(
        """
        counter = _core.StepCounter()
        counter.next_change, counter.live = 1 << 60, True
        for _ in range(60):
            burst("mine", "user_annotation", 10)
            counter.step()
        print_json([recorded(), [row.step for row in log.of(Kind.STEP)], lost()])
        """,
        options=f"{TINY}, overflow={policy!r}, block_seconds=0.001",
    )
    assert sorted(steps) == list(range(1, 61))
    assert counts["mine"] + missing == 600 and counts["mine"] <= 64


WRITERS = """
from tests.support.native import Native
native, done = Native(), threading.Event()
def consume():
    while not done.is_set():
        log.drain()
        time.sleep(PAUSE_S)
def texts(letter):
    for number in range(3000):
        with span("text", text=letter * (50 + number % 100)):
            pass
consumer = threading.Thread(target=consume)
threads = [threading.Thread(target=texts, args=(letter,)) for letter in "ab"]
threads.append(threading.Thread(target=native.run, args=(3, 20_000)))
consumer.start()
for thread in threads: thread.start()
for thread in threads: thread.join()
done.set(); consumer.join()
texts = [set(row.arguments["text"]) for row in log.spans if row.name == "text"]
print_json([recorded(), lost(), len({row.id for row in log.spans}), all(text in ({"a"}, {"b"}) for text in texts)])
"""


@pytest.mark.parametrize(("policy", "pause"), [("block", 0.001), ("drop_oldest", 0)])
def test_nothing_is_lost_uncounted_under_a_drain(policy: str, pause: float) -> None:
    """Threads with and without the GIL wait for the consumer, or lap it while it copies: what arrives is whole and comes once, the
    rest is counted."""
    require_compiler()
    ((counts, missing, ids, whole),) = run_program(
        WRITERS.replace("PAUSE_S", str(pause)),
        options=f"ring_slots=256, ring_bytes=1 << 16, overflow={policy!r}, block_seconds=10",
    )
    assert sum(counts.values()) + missing == 66_000
    assert ids == sum(counts.values()) and whole
    assert bool(missing) is (policy == "drop_oldest")


def test_blocking_ends_where_nobody_drains() -> None:
    """The limit holds for all events of a full ring together; after a drain there is patience again."""
    ((first, again, later, counts, missing),) = run_program(
        """
        def timed(count):
            seconds = []
            def work():
                began = time.monotonic()
                burst("mine", "user_annotation", count)
                seconds.append(time.monotonic() - began)
            worker.put(work); worker.join()
            return seconds[0]
        import queue
        worker = queue.Queue()
        def serve():
            while True:
                work = worker.get()
                work()
                worker.task_done()
        threading.Thread(target=serve, daemon=True).start()
        first, again = timed(1000), timed(1000)
        log.drain()
        print_json([first, again, timed(1000), recorded(), lost()])
        os._exit(0)
        """,
        options=f"{TINY}, overflow='block', block_seconds=0.3",
    )
    assert 0.3 <= first < 5 and again < 0.3 <= later < 5
    assert counts["mine"] + missing == 3000


def test_the_consumer_does_not_wait_for_itself() -> None:
    """Events of the loop's own thread are dropped at once when its ring is full."""
    ((seconds, counts, missing),) = run_program(
        """
        log.drain()
        began = time.monotonic()
        burst("mine", "user_annotation", 500)
        print_json([time.monotonic() - began, recorded(), lost()])
        """,
        options=f"{TINY}, overflow='block', block_seconds=50",
    )
    assert seconds < 40 and counts["mine"] + missing == 500


def test_signals_and_forks_pass_while_a_thread_waits() -> None:
    """A handler runs when the wait is over, a fork in another thread does not hang, and no span is mixed up."""
    ((handled, child, waits, counts, missing),) = run_program(
        """
        import signal
        handled = []
        def on_alarm(*_):
            with span("in the handler"):
                handled.append(1)
        signal.signal(signal.SIGALRM, on_alarm)
        shared = span("shared")
        child, waits = [], []
        def meanwhile():
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGALRM)
            with shared:  # while the main thread waits inside this span's exit
                pid = os.fork()
                if pid == 0:
                    with span("in the child"):
                        os._exit(7)
            child.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        other = threading.Thread(target=meanwhile)
        burst("mine", "user_annotation", 64)
        other.start()
        began = time.monotonic()
        with shared:
            pass
        waits.append(time.monotonic() - began)
        other.join()
        print_json([len(handled), child, waits, recorded(), lost()])
        """,
        options=f"{TINY}, overflow='block', block_seconds=0.5",
    )
    assert handled == 1 and child == [7] and 0.5 <= waits[0] < 10
    assert counts == {"mine": 64} | ({"shared": 1} if "shared" in counts else {}) | (
        {"in the handler": 1} if "in the handler" in counts else {}
    )
    assert sum(counts.values()) + missing == 67


@pytest.mark.parametrize("end", ["pass", "_core.close()", "recorders.close_recorder()"])
def test_the_process_ends_while_a_thread_waits(end: str) -> None:
    """Closing and the interpreter's exit do not wait for a thread that waits for room."""
    (started,) = run_program(
        f"""
        threading.Thread(target=burst, args=("mine", "user_annotation", 10_000), daemon=True).start()
        time.sleep(0.2)
        {end}
        print_json(True)
        """,
        options=f"{TINY}, overflow='block', block_seconds=60",
    )
    assert started


def test_a_thread_without_a_ring_is_accounted_for() -> None:
    """Where no memory is left for a ring, what its thread records is dropped with a count."""
    ((counts, missing, statistics, cut),) = run_program(
        """
        import resource
        burst("main", "user_annotation", 10)
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
        threading.stack_size(1 << 18)
        go = threading.Event()
        def work():
            go.wait()
            burst("refused", "user_annotation", 50)
            instant("refused")
        thread = threading.Thread(target=work)
        thread.start()
        resource.setrlimit(resource.RLIMIT_AS, (pages + (64 << 20), resource.RLIM_INFINITY))
        go.set(); thread.join()
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        counts = recorded()
        now = recorder.statistics()
        print_json([counts, lost(), [now.produced, now.drained, now.dropped, now.waiting], now.cut["rings_failed"]])
        """,
        options="ring_slots=1 << 24, ring_bytes=1 << 32, memory_bytes=1 << 34",
    )
    assert cut > 0 and counts == {"main": 10}
    assert missing == 51 and statistics == [61, 10, 51, 0]
