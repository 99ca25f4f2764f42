"""Handlers of SIGTERM that a program sets while a profiler is open, and puts back or calls on, as frameworks do."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.terminated_programs import DEAF, HOLDER, WORK, delivered, ends, run

RESTORED = {
    "saved and restored": "signal.signal(signal.SIGTERM, signal.signal(signal.SIGTERM, lambda *_: None))",
    "set to what it is": "signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))",
    "set to the default, and restored": "signal.signal(signal.SIGTERM, signal.signal(signal.SIGTERM, signal.SIG_DFL))",
    "set to the default": "signal.signal(signal.SIGTERM, signal.SIG_DFL)",
    "an event loop's": """
async def handled():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
asyncio.run(handled())
""",
}


@pytest.mark.parametrize("how", RESTORED)
def test_a_handler_that_was_put_back_is_heard_in_native_code(how: str, tmp_path: Path) -> None:
    """Also where what was put back is that the signal has no handler."""
    script = HOLDER + WORK + "ours = holder()\n" + RESTORED[how] + "\nuntil(lambda: holder() == ours)\n" + DEAF
    ends(script + "deaf(ctypes.CDLL)", tmp_path)


BUSY = """
from stepscope.runtime.threads import locks
ours = locks.reentrant()
def busy():
    with ours:
        term()
        for _ in range(1000):
            pass
        print("held", flush=True)
    time.sleep(60)
"""
"""Is terminated while it has a lock that closing may need; then it sleeps."""


def test_a_handler_that_was_put_back_just_now_finds_a_lock_locked(tmp_path: Path) -> None:
    """It is called again when that is free."""
    ends(BUSY + WORK + RESTORED["saved and restored"] + "\nbusy()", tmp_path, printed="held\n")


@pytest.mark.parametrize(("call", "text"), [("term(), time.sleep(60)", "mine\n"), ("busy()", "mine\nheld\n")])
def test_a_handler_that_calls_the_one_before_it(call: str, text: str, tmp_path: Path) -> None:
    """It is called once, also where ours has to be put off; then everything is delivered."""
    script = """
def chained(number, frame):
    print("mine", flush=True)
    before(number, frame)
before = signal.signal(signal.SIGTERM, chained)
"""
    ends(BUSY + WORK + script + call, tmp_path, printed=text)


@pytest.mark.parametrize("where", ["profiler.start()", "run(profiler.start)"], ids=["main", "thread"])
def test_a_handler_that_faulthandler_calls_on(where: str, tmp_path: Path) -> None:
    """Its own is native, and stays: it writes where the thread is, and calls the one before it."""
    script = """
import faulthandler
def run(call):
    thread = threading.Thread(target=call)
    thread.start(), thread.join()
"""
    # Of this thread only: CPython's reading of the frames of threads that run meanwhile may crash the process.
    register = "faulthandler.register(signal.SIGTERM, all_threads=False, chain=True, file=sys.stdout)\n"
    work = WORK.replace("profiler.start()", where) + register
    output = run(script + HOLDER + work + DEAF + "deaf(ctypes.CDLL)", tmp_path, code=-signal.SIGTERM)
    assert 1 <= output.count("most recent call first") <= 10
    assert delivered(tmp_path)


def test_a_signal_that_comes_while_the_interpreter_exits(tmp_path: Path) -> None:
    """The process dies of it, with everything delivered, though the exit has begun to close."""
    script = """
class Slow(sc.exporters.MemoryExporter):
    async def aclose(self):
        term()
        await asyncio.sleep(0.3)
def work():
    profiler.start()
    with sc.span("work"):
        pass
profiler = sc.trace(output_dir="run", exporters=[Slow()])
thread = threading.Thread(target=work)
thread.start(), thread.join()
"""
    ends(script, tmp_path)
