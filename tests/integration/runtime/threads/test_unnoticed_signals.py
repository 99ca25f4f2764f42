"""SIGTERM and SIGINT where Python by itself would not hear them, or would hear them too early."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.runtime.recovery.recover import recover
from tests.support.basics import missing
from tests.support.killed_programs import names
from tests.support.terminated_programs import BOUND, DEAF, HOLDER, START, WORK, delivered, ends, run


def test_sigterm_that_does_not_wake_the_main_thread(tmp_path: Path) -> None:
    """As when it comes right before a system call that sleeps: the main thread is woken, and stops its backends."""
    ends(
        BOUND
        + """
def changing(after):
    if not after.records:
        print(threading.current_thread() is threading.main_thread(), flush=True)
profiler = sc.trace(output_dir="run", backends=[Bound()])
"""
        + WORK
        + """
def other():
    time.sleep(0.2)
    signal.raise_signal(signal.SIGTERM)
threading.Thread(target=other, daemon=True).start()
time.sleep(600)
""",
        tmp_path,
        printed="True\n",
    )


def test_sigterm_while_native_code_lets_nobody_run_python(tmp_path: Path) -> None:
    """The process dies after the deadline; what it recorded is left for recovery."""
    script = "profiler = sc.trace(output_dir='run', options=sc.Options(close_timeout=0.2))\n"
    begun = (
        "profiler.start()\nprofiler.flush(60)\n"  # or the journal may still be empty, and recovery writes another one
    )
    work = "with sc.span('work'):\n    pass\n"
    run(script + begun + work + DEAF + "deaf(ctypes.PyDLL)", tmp_path, code=-signal.SIGTERM)
    assert (tmp_path / "run" / "session").exists()
    recover(tmp_path / "run")
    assert names(tmp_path / "run" / "journal")["work"] == 1


@pytest.mark.parametrize("ending", ["term(); time.sleep(600)", DEAF + "deaf(ctypes.CDLL)"])
@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGHUP"])
def test_delivered_events_take_no_memory_any_more(ending: str, signal_name: str, tmp_path: Path) -> None:
    """The rings go with the process, whichever thread closes: nothing of the interpreter's exit is called."""
    number = signal.Signals[signal_name]
    ending = ending.replace("signal.SIGTERM", f"signal.{signal_name}").replace("kill $", f"kill -{number} $")
    default = f"signal.signal({number}, signal.SIG_DFL)\n"  # under nohup it would be ignored
    rings = "profiler = sc.trace(output_dir='run', options=sc.Options(session_dir='rings'))\n"
    term = f"def term(): os.kill(os.getpid(), signal.{signal_name})\n"
    (tmp_path / "rings").mkdir(mode=0o700)
    ends(default + rings + WORK + "assert os.listdir('rings')\n" + term + ending, tmp_path, code=-number)
    assert not list((tmp_path / "rings").iterdir())


def test_the_first_process_of_a_container_traces_on(tmp_path: Path) -> None:
    """The system spares it, unless it handles the signal: it closes, goes on, and may trace again."""
    again = """
term(); time.sleep(0.1)
until(lambda: not Path("run/session").exists())
with sc.trace(output_dir="again") as profiler:
    with sc.span("later"):
        pass
print("went on", flush=True)
os._exit(0)
"""
    script = START + HOLDER + "from pathlib import Path\n" + WORK + again
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if "Operation not permitted" in done.stderr:
        missing("a namespace of processes", "It takes root, or user namespaces.")
    assert "went on" in done.stdout, done.stderr
    assert names(tmp_path / "again" / "journal")["later"] == 1


def test_sigterm_that_the_main_thread_has_blocked(tmp_path: Path) -> None:
    """Another thread takes it; the process does not go on with its profilers closed."""
    ends(
        WORK
        + """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
def other():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    time.sleep(60)
threading.Thread(target=other, daemon=True).start()
print("ready", flush=True)
for _ in range(600):
    time.sleep(0.1)
""",
        tmp_path,
        number=signal.SIGTERM,
    )


FORKS = """
def changing(after):
    if after.records and os.getpid() == parent:
        fork()
parent = os.getpid()
"""


def test_a_fork_while_the_main_thread_is_inside_of_a_change(tmp_path: Path) -> None:
    """Another thread forks: the child hears Ctrl-C and SIGTERM at once."""
    ends(
        BOUND
        + FORKS
        + """
codes = []
def child(number):
    pid = os.fork()
    if pid == 0:
        try:
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            os.kill(os.getpid(), number)
            time.sleep(60)
        except KeyboardInterrupt:
            os._exit(9)
        os._exit(1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
def fork():
    for number in (signal.SIGINT, signal.SIGTERM):
        thread = threading.Thread(target=child, args=(number,))
        thread.start(), thread.join()
profiler = sc.trace(output_dir="run", backends=[Bound()])
"""
        + WORK
        + "profiler.close(); assert codes == [9, -signal.SIGTERM], codes",
        tmp_path,
        code=0,
    )


def test_a_child_that_was_forked_inside_of_a_change(tmp_path: Path) -> None:
    """It returns from the change of its parent, and a trace of its own is delivered at SIGTERM."""
    (tmp_path / "child").mkdir()
    ends(
        BOUND
        + FORKS
        + """
pid = None
def fork():
    global pid
    pid = os.fork()
profiler = sc.trace(output_dir="run", backends=[Bound()])
"""
        + WORK
        + """
if pid == 0:
    profiler = sc.trace(output_dir="child/run")
    profiler.start()
    with sc.span("work"):
        pass
    term()
    time.sleep(60)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
profiler.close()
""",
        tmp_path,
        code=0,
    )
    assert delivered(tmp_path / "child")
