"""A traced program that another process ends: threads and tasks with spans, steps, windows and busy exporters.

    python -m tests.stress.torture.victim DIRECTORY SEED ENDING

It notes in DIRECTORY/diary what it has done. ENDING is the name of a function below, or `wait` to go on for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import stepscope
from stepscope.exporters.base import Exporter
from tests.stress.torture.diary import LANES, Diary, Lane

THREADS = 3
TASKS = 3
MAIN = LANES - 1
"""Lane of the main thread."""


POLICIES: tuple[Literal["drop_newest", "drop_oldest", "block"], ...] = ("drop_newest", "drop_oldest", "block")


def profiler(directory: Path, seed: int, ending: str, **settings: Any) -> stepscope.Profiler:
    """A profiler whose settings the seed chooses. Trials that follow one another have the policies in turn.

    Args:
        settings: of `stepscope.trace`, instead of those that the seed chooses, or in addition.
    """
    chance = random.Random(seed)
    small = chance.random() < 0.4
    slots = chance.choice([256, 1024]) if small else 65_536
    exporters: list[Exporter] = [
        stepscope.ChromeTraceExporter(
            directory / "run" / chance.choice(["trace.json", "trace.json.gz"]), max_bytes=chance.choice([None, 1 << 20])
        ),
        stepscope.tensorboard_trace_handler(directory / "run" / "tb", "victim", chance.random() < 0.5),
    ]
    planned = stepscope.schedule(wait=0, warmup=0, active=chance.choice([2, 20])) if chance.random() < 0.5 else None
    return stepscope.trace(
        output_dir=directory / "run",
        schedule=settings.pop("schedule", planned),
        exporters=[*exporters, *settings.pop("exporters", ())],
        **settings,
        options=stepscope.Options(
            session_dir=str(directory / "session"),
            ring_slots=slots,
            memory_bytes=1 << 30,
            ring_bytes=chance.choice([16, 64]) * slots * 64,
            drain_interval=chance.choice([0.001, 0.05, 0.25]),
            overflow=POLICIES[(seed + len(ending)) % len(POLICIES)],
            block_seconds=0.02,
        ),
    )


def work(lane: Lane, pause: float) -> None:
    """The work of a thread; without a pause, as fast as it can, with a breath now and then."""
    while not lane.full:
        with lane.span():
            for number in range(20 if pause else 2000):
                with lane.span(text="ü" * (number % 20)) if number % 8 == 0 else lane.span():
                    pass
            with lane.span(key=[1, 2]):
                time.sleep(pause or 0.005)


async def task(lane: Lane) -> None:
    """The work of a task."""
    while not lane.full:
        with lane.span():
            await asyncio.sleep(0)
            with lane.span(share=0.5):
                await asyncio.sleep(0.0002)


async def tasks(lanes: list[Lane]) -> None:
    """All tasks."""
    await asyncio.gather(*(task(lane) for lane in lanes))


def steps(
    step: Callable[[], object], diary: Diary, ending: Callable[[], None] | None, seconds: float, note: Path
) -> None:
    """The work of the main thread, until the end comes."""
    until = time.monotonic() + seconds
    lane = diary.writer(MAIN)
    while not lane.full:
        with lane.span(), lane.span(text="innermost"):
            time.sleep(0.0001)
            if ending is not None and time.monotonic() > until:
                note.touch()
                diary.about_to_end()
                ending()
        diary.step(step)


def segfault() -> None:
    """Reads memory that is not there."""
    ctypes.string_at(8)


def abort() -> None:
    """Aborts as a failed assertion of native code does."""
    os.abort()


def abort_in_a_foreign_thread() -> None:
    """A thread that Python did not make aborts, as the watchdog of a communication library does."""
    native = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    native.pthread_create(ctypes.byref(thread), None, native.abort, None)
    time.sleep(60)


def leave_at_once() -> None:
    """Ends without any clean-up."""
    os._exit(7)


HELD: list[bytearray] = []


def _use_up(limit: int) -> None:
    """Sets a limit of 1 GiB, and asks for memory, 1 MiB each time, until there is none. It stays in use."""
    resource.setrlimit(limit, (1 << 30, 1 << 30))
    with contextlib.suppress(MemoryError):
        while True:
            HELD.append(bytearray(1 << 20))


def killed_without_address_space() -> None:
    """SIGKILL at a moment in which there is no memory left."""
    _use_up(resource.RLIMIT_AS)
    os.kill(os.getpid(), signal.SIGKILL)


def killed_without_data() -> None:
    """The same by the limit on data, which does not count what is mapped from files."""
    _use_up(resource.RLIMIT_DATA)
    os.kill(os.getpid(), signal.SIGKILL)


def run_out_of_address_space() -> None:
    """No memory is left: the exception ends the program, and there is still none while Python ends."""
    _use_up(resource.RLIMIT_AS)
    raise MemoryError


def eat_memory() -> None:
    """Takes memory and writes into it until the kernel ends the program."""
    while True:
        HELD.append(bytearray(os.urandom(1 << 16) * 16))


def overflow_the_stack() -> None:
    """Recurses in native code until the stack is used up."""
    # Of Python's own recursion, newer versions of it count what goes through C as well. glibc does not count parentheses.
    ctypes.CDLL(None).regcomp(ctypes.create_string_buffer(4096), b"(" * 10_000_000, 1)


def raise_an_exception() -> None:
    """An exception in the loop that nobody catches."""
    raise RuntimeError("the loop failed")


def raise_in_a_thread() -> None:
    """An exception that ends a thread of the program, which then ends as well."""

    def fail() -> None:
        raise RuntimeError("the thread failed")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    sys.exit(1)


def terminate() -> None:
    """SIGTERM, as schedulers send it."""
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def exit_normally() -> None:
    """The program's own end."""
    sys.exit(3)


def main(directory: Path, seed: int, ending: str) -> None:
    """Runs until the end comes."""
    end: Callable[[], None] | None = None if ending == "wait" else globals()[ending]
    diary = Diary(directory / "diary")
    traced = profiler(directory, seed, ending)
    traced.start()
    begin(diary)
    (directory / "ready").touch()
    steps(traced.step, diary, end, random.Random(seed).uniform(0.05, 0.4), directory / "ending")


def begin(diary: Diary, threads: int = THREADS, coroutines: int = TASKS) -> None:
    """Starts the threads and tasks; they are daemons, and go on until the process ends."""
    for number in range(threads):
        pause = 0.0 if number == 0 else 0.002
        threading.Thread(target=work, args=(diary.writer(number), pause), name=f"worker {number}", daemon=True).start()
    lanes = [diary.writer(THREADS + number) for number in range(coroutines)]
    threading.Thread(target=lambda: asyncio.run(tasks(lanes)), name="loop", daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
