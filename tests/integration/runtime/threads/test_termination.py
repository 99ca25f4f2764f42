"""SIGTERM and SIGINT: what was recorded is delivered first, and then the process ends as it would have."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.launch import launched
from tests.support.terminated_programs import BOUND, START, WORK, delivered, ends, run


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_delivers_and_kills(asked: signal.Signals, tmp_path: Path) -> None:
    """The parent sees a process that died of the signal, and the files are complete; nothing of Python's exit runs."""
    ends(
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the process that started the tests may ignore it\n"
        + WORK
        + "import atexit; atexit.register(print, 'atexit'); print('ready', flush=True)\nfor _ in range(600): time.sleep(0.1)",
        tmp_path,
        printed="ready\n",
        code=-asked,
        number=asked,
    )


def test_sighup_that_is_ignored(tmp_path: Path) -> None:
    """A program that `nohup` started goes on when its terminal is closed."""
    ends(
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        + WORK
        + "print('ready', flush=True)\nos.kill(os.getpid(), signal.SIGHUP)\ntime.sleep(0.1)\nprofiler.close(); print('done')",
        tmp_path,
        printed="ready\ndone\n",
        code=0,
    )


def test_a_second_sigterm_does_not_cut_the_flush_short(tmp_path: Path) -> None:
    """A scheduler that asks again while an exporter is slow gets the same end, and the file is whole."""
    script = (
        """
class Slow(sc.exporters.MemoryExporter):
    async def aclose(self):
        os.write(1, b"closing\\n")  # the signal may come while `print` holds its lock
        await asyncio.sleep(1)
profiler = sc.trace(output_dir="run", exporters=[Slow()])
"""
        + WORK
        + "print('ready', flush=True)\nfor _ in range(600): time.sleep(0.1)"
    )
    with launched([sys.executable, "-c", START + script], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.stdout.readline() == b"closing\n"
        for _ in range(3):
            process.terminate()
            time.sleep(0.05)
        assert process.wait(60) == -signal.SIGTERM
    assert delivered(tmp_path)


def test_a_hanging_exporter_delays_the_end_by_the_deadline_only(tmp_path: Path) -> None:
    """The grace of schedulers is short."""
    script = (
        """
profiler = sc.trace(output_dir="run", exporters=[sc.exporters.MemoryExporter(hang_in="export")],
                    options=sc.Options(close_timeout=0.5))
"""
        + WORK
        + "print('ready', flush=True)\nfor _ in range(600): time.sleep(0.1)"
    )
    began = time.monotonic()
    ends(script, tmp_path, number=signal.SIGTERM)
    assert time.monotonic() - began < 30


LEAVING = """
def changing(after):
    if not after.records:
        term()
        time.sleep(0)  # the handler of the signal runs here, or waits
def profiler():
    return sc.trace(output_dir="run", backends=[Bound()])
async def main():
    async with profiler():
        with sc.span("work"):
            pass
def sync():
    with profiler():
        with sc.span("work"):
            pass
"""


@pytest.mark.parametrize("leave", ["asyncio.run(main())", "sync()"])
def test_sigterm_while_the_profiler_is_left(leave: str, tmp_path: Path) -> None:
    """It comes while a backend stops, as `with` or `async with` ends: everything is delivered before the process dies."""
    ends(BOUND + LEAVING + leave, tmp_path)


WAITING = (
    WORK
    + """
async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(0, flush=True)
    await stop.wait()
    sys.exit(5)
"""
)


@pytest.mark.parametrize(
    "script",
    [
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        + WORK
        + "print(0, flush=True)\nfor _ in range(600): time.sleep(0.1)",
        WORK
        + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nprint(0, flush=True)\nfor _ in range(600): time.sleep(0.1)",
        WAITING + "asyncio.run(main())",
        WAITING
        + """
import uvloop
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
""",
        WORK + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nterm()\nprint(0, flush=True)\nsys.exit(5)",
    ],
)
def test_handlers_of_the_program_are_left_alone(script: str, tmp_path: Path) -> None:
    """Set before or after, by signal or by asyncio: they decide, and the trace is closed at the exit that they cause."""
    ends(script, tmp_path, code=5, number=signal.SIGTERM if "term()" not in script else None)


def test_a_handler_that_is_set_while_it_is_looked_whose_it_is(tmp_path: Path) -> None:
    """A thread of ours has seen its own handler, and takes the signal when the program has one: it is the program's."""
    run(
        """
from stepscope.runtime import _core
came = []
with profiler:
    ours = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: came.append(1))
    _core.watch_signal(signal.SIGTERM, ours, 0.5)
    signal.raise_signal(signal.SIGTERM)
    time.sleep(3)
    assert came == [1]
""",
        tmp_path,
        code=0,
    )


def test_the_disposition_is_restored(tmp_path: Path) -> None:
    """Without an open profiler SIGTERM is as it was; a handler that the program restored late does what it should."""
    run(
        """
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
with profiler:
    ours = signal.getsignal(signal.SIGTERM)
    assert callable(ours)
    with sc.trace(output_dir="other"):
        pass
    assert signal.getsignal(signal.SIGTERM) is ours
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
async def main():
    async with sc.trace(output_dir="third"):
        assert signal.getsignal(signal.SIGTERM) is ours
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
asyncio.run(main())
with sc.trace(output_dir="fourth", options=sc.Options(handle_sigterm=False)):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
signal.signal(signal.SIGTERM, ours)
term()
""",
        tmp_path,
        code=-signal.SIGTERM,
    )


def test_a_forked_child_dies_at_once(tmp_path: Path) -> None:
    """A process that terminates a worker does not wait for the parent's trace, and the parent's trace goes on."""
    ends(
        WORK
        + """
child = os.fork()
if child == 0:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    time.sleep(60)
    os._exit(1)
time.sleep(0.1)
term(child)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
""",
        tmp_path,
        code=0,
    )


def test_an_interrupt_waits_for_closing(tmp_path: Path) -> None:
    """Ctrl-C while the profiler closes: everything is written, and then KeyboardInterrupt is raised."""
    script = (
        """
class Slow(sc.exporters.MemoryExporter):
    async def aclose(self):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.3)
profiler = sc.trace(output_dir="run", exporters=[Slow()])
"""
        + WORK
        + """
try:
    profiler.close()
except KeyboardInterrupt:
    sys.exit(5)
"""
    )
    ends(script, tmp_path, code=5)


STUCK = """
class Stuck:
    name, thread_bound = "stuck", False
    def open(self, sink):
        print("opening", flush=True)
        time.sleep(600)
    def transition(self, before, after, at): pass
    async def aclose(self): pass
    def report(self): return sc.backends.BackendReport()
"""


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_hangs_is_ended_by_a_signal(asked: signal.Signals, tmp_path: Path) -> None:
    """A backend does not return from `open`: the process can still be ended."""
    script = (
        STUCK
        + """
try:
    sc.trace(output_dir="run", backends=[Stuck()], options=sc.Options(close_timeout=0.5)).start()
except KeyboardInterrupt:
    sys.exit(5)
"""
    )
    run(script, tmp_path, code=5 if asked == signal.SIGINT else -asked, number=asked)


def test_a_start_that_hangs_says_which_backend(tmp_path: Path) -> None:
    """So does a second call, another profiler starts meanwhile, and both can be closed."""
    run(
        STUCK
        + """
profiler.start()
options = sc.Options(start_timeout=1, close_timeout=0.5)
stuck = sc.trace(output_dir="first", backends=[Stuck()], options=options)
for _ in range(2):
    try:
        stuck.start()
    except sc.errors.BackendError as error:
        assert "backend 'stuck' has not returned" in str(error), error
    else:
        raise AssertionError("it started")
assert stuck.statistics().state == "new"
with sc.trace(output_dir="second", options=options):
    pass
stuck.close()
assert not stuck.statistics().timed_out
""",
        tmp_path,
        code=0,
    )
