"""The program's signals go to the program: the library's threads take none, and the program's code keeps its own mask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stepscope.runtime import _core
from stepscope.runtime.threads import background_call
from tests.support.basics import ROOT, require
from tests.support.nats import NatsServer

SYNCHRONOUS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGSYS,
}
ALL = set(signal.valid_signals()) - SYNCHRONOUS - {signal.SIGKILL, signal.SIGSTOP}


def blocked() -> set[int]:
    """Signals that this thread blocks."""
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])}


def run(program: str, *arguments: str) -> list[str]:
    """The lines that a program under `tests/support/programs` prints."""
    command = [sys.executable, "-m", f"tests.support.programs.{program}", *arguments]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "4"}  # so that numpy starts threads wherever this runs
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


NEEDS = {
    "network": ["aiohttp", "opentelemetry.proto"],
    "network asyncio": ["aiohttp", "opentelemetry.proto"],
    "parquet": ["pyarrow"],
    "torch": ["torch"],
}


@pytest.mark.parametrize(
    "configuration",
    [
        "plain",
        "plain asyncio",
        "files",
        "files asyncio",
        "parquet",
        "network",
        "network asyncio",
        "control",
        "mxnet",
        "torch",
        "async with",
        "async with asyncio",
        "another thread",
    ],
)
def test_no_thread_takes_a_signal(configuration: str, tmp_path: Path) -> None:
    """Each thread that the library or a library of it starts blocks what is asynchronous, from the import to the end, and
    nothing that an instruction of its own raises. A signal that the main thread blocks and waits for reaches it."""
    for module in NEEDS.get(configuration, []):
        require(module)
    output = run("masked_threads", str(tmp_path), configuration)
    assert [line for line in output if line.startswith(STATES) or "did not come" in line] == []
    assert output[-1] == "end"


STATES = ("import:", "recording:", "flushed:", "closed:")


@pytest.mark.parametrize("answers", [True, False])
def test_no_thread_takes_a_signal_with_nats(answers: bool, tmp_path: Path) -> None:
    """Nor the threads of its client, also where nobody answers it."""
    require("nats")
    if not answers:
        assert run("masked_threads", str(tmp_path), "nats", "nats://127.0.0.1:9", "0.5") == ["end"]
        return
    with NatsServer(tmp_path / "server") as server:
        assert run("masked_threads", str(tmp_path), "nats", server.url, "10") == ["end"]


CODE = {
    *(f"backend, {method}" for method in ("open", "run_soon", "to_thread", "transition", "aclose")),
    *(f"callback{kind}" for kind in ("", ", fork", ", async", ", async, later")),
    *(f"exporter, {method}" for method in ("open", "export", "to_thread", "asyncio", "close_window", "aclose")),
    *("trigger, evaluator", "trigger, look"),
}


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_the_programs_code_has_its_own_mask(loop: str, tmp_path: Path) -> None:
    """Callbacks, exporters, backends and triggers block what the main thread blocks then, and so do programs that they start."""
    output = run("programs_mask", str(tmp_path), loop)
    own = "blocks SIGUSR1 SIGWINCH; sh ends with -15"
    assert [line for line in output if line.partition(": ")[2] != own] == []
    assert {line.partition(":")[0] for line in output} >= CODE


def test_the_mask_of_a_thread() -> None:
    """From its first instruction on, and of those that it starts; the thread that starts it keeps its own."""
    before, seen = blocked(), dict[str, set[int]]()

    def work() -> None:
        seen["own"] = blocked()
        inner = threading.Thread(target=lambda: seen.update(inner=blocked()))
        inner.start()
        inner.join()
        _core.with_programs_mask(lambda: seen.update(programs=blocked(), counts={_core.runs_programs_code()}))
        seen["after"] = blocked()

    for start_on in (_here, _on_a_thread):
        thread = threading.Thread(target=work)
        start_on(partial(background_call.start, thread))
        thread.join()
        assert blocked() == before
        assert seen["own"] == seen["inner"] == seen["after"] == ALL
        assert seen["programs"] == before and seen["counts"] == {True}
    assert not _core.runs_programs_code()


def test_the_current_mask_of_the_main_thread_counts() -> None:
    """Not when the thread was started, nor while it is inside of a handler that blocks everything, as libuv's of SIGCHLD."""
    go, seen = threading.Semaphore(0), list[set[int]]()
    done = threading.Semaphore(0)

    def work() -> None:
        for _ in range(4):
            go.acquire()
            _core.with_programs_mask(lambda: seen.append(blocked()))
            done.release()

    thread = threading.Thread(target=work)
    background_call.start(thread)
    before = blocked()
    for more in (set[int](), {signal.SIGUSR1}, {signal.SIGUSR1, signal.SIGRTMIN + 7}, signal.valid_signals()):
        signal.pthread_sigmask(signal.SIG_BLOCK, more)
        go.release()
        done.acquire()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    thread.join()
    assert seen == [before, before | {signal.SIGUSR1}, before | {signal.SIGUSR1, signal.SIGRTMIN + 7}, before]


def _here(call: Callable[[], object]) -> None:
    call()


def _on_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_call_that_raises() -> None:
    """The masks are as before."""
    before = blocked()
    for around in (_core.without_signals, _core.with_programs_mask):
        with pytest.raises(ZeroDivisionError):
            around(divmod, 1, 0)
        assert blocked() == before
        assert around(int, "ff", base=16) == 255


def test_a_thread_of_the_program_keeps_its_mask() -> None:
    """Its own signals stay blocked: its mask is none of ours."""
    seen: list[set[int]] = []

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGALRM})
        _core.with_programs_mask(lambda: seen.append(blocked()))
        seen.append(blocked())

    _on_a_thread(work)
    assert seen == [{signal.SIGALRM}] * 2


TERMINATED = """
import os, signal, sys, time
import stepscope as sc
with sc.trace(output_dir=sys.argv[1]):
    for _ in range(100):
        child = os.fork()
        if child == 0:
            time.sleep(5)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM
"""


def test_a_child_that_is_terminated_at_once(tmp_path: Path) -> None:
    """A signal that comes before the child has let go of its parent's handlers ends it, too."""
    command = [sys.executable, "-c", TERMINATED, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).returncode == 0
