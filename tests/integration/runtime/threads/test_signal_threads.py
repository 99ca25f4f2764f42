"""SIGTERM for profilers that other threads than the main one have started, which Python lets set no handlers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.terminated_programs import DEAF, HOLDER, WORK, delivered, ends

ELSEWHERE = (
    """
def run(call):
    thread = threading.Thread(target=call)
    thread.start(), thread.join()
def work(profiler=profiler):
"""
    + WORK.replace("\n", "\n    ").rstrip()
    + "\n"
)


@pytest.mark.parametrize(
    "where",
    [
        "print(0, flush=True); os.read(os.pipe()[0], 1)",
        "print(0, flush=True); time.sleep(60)",
        """
def last():
    until(lambda: not threading.main_thread().is_alive())
    print(0, flush=True), time.sleep(60)
threading.Thread(target=last).start()
""",
    ],
    ids=["reads", "sleeps", "has ended"],
)
def test_any_call_of_the_main_thread(where: str, tmp_path: Path) -> None:
    """Everything is delivered, and the process dies of the signal."""
    ends(ELSEWHERE + HOLDER + "run(work)\n" + where, tmp_path, number=signal.SIGTERM)


def test_the_main_thread_is_in_native_code(tmp_path: Path) -> None:
    """It never comes back."""
    ends(ELSEWHERE + "run(work)\n" + DEAF + "deaf(ctypes.CDLL)", tmp_path)


@pytest.mark.parametrize("order", ["{0}; run(work)", "run(work); {0}"], ids=["before", "after"])
def test_the_programs_own_handling_goes_first(order: str, tmp_path: Path) -> None:
    """It ignores the signal, or handles it, before a profiler starts or later: that stays so."""
    sets = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    script = f"""
from stepscope.runtime.threads import signals
def stays():
    its = holder()
    term()
    for look in (signals.look, lambda: run(signals.look)):
        look()
        assert holder() == its
{order.format(sets)}
stays()
signals_seen = []
signal.signal(signal.SIGTERM, lambda *_: signals_seen.append(1))
stays()
assert signals_seen
profiler.close()
"""
    ends(ELSEWHERE + HOLDER + script, tmp_path, code=0)


def test_the_signal_handler_is_restored_with_the_last_profiler(tmp_path: Path) -> None:
    """Wherever each is opened and closed, and at once on several threads."""
    ends(
        ELSEWHERE
        + HOLDER
        + """
def some(number):
    for turn in range(5):
        with sc.trace(output_dir=f"{number}-{turn}"):
            assert holder() != DEFAULT
threads = [threading.Thread(target=some, args=(number,)) for number in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert holder() == DEFAULT and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
first = sc.trace(output_dir="first")
run(first.start)
ours = holder()
with sc.trace(output_dir="main"):
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL and holder() == ours
assert holder() == ours
run(first.close)
assert holder() == DEFAULT
work()
term()
time.sleep(60)
""",
        tmp_path,
    )


def test_a_profiler_of_the_main_thread_as_well(tmp_path: Path) -> None:
    """It comes later and goes first: both are delivered."""
    (tmp_path / "second").mkdir()
    script = """
run(profiler.start)
with sc.trace(output_dir="first"):
    pass
work(sc.trace(output_dir="second/run"))
print("ready", flush=True)
time.sleep(60)
"""
    ends(ELSEWHERE + script, tmp_path, number=signal.SIGTERM)
    assert delivered(tmp_path / "second")


def test_children_have_it_as_without_a_profiler(tmp_path: Path) -> None:
    """Those that are forked, here and by other threads, and programs that they become."""
    ends(
        ELSEWHERE
        + HOLDER
        + """
import subprocess
run(work)
def forks():
    child = os.fork()
    if child == 0:
        os._exit(9 if holder() == DEFAULT and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert subprocess.run(["sh", "-c", "kill $$"]).returncode == -signal.SIGTERM
    done.append(1)
done = []
run(forks)
forks()
assert len(done) == 2
profiler.close()
""",
        tmp_path,
        code=0,
    )
