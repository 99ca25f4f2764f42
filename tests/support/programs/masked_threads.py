"""A program that looks at the signal mask of each of its threads, in one configuration of stepscope: `<place> <name>`.

It prints the name of each thread of the library that can take an asynchronous signal, or that blocks a synchronous one; then what
became of the signals that it blocks itself and waits for, while the library's threads run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

SYNCHRONOUS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGABRT", "SIGSYS"}
NEVER = {"SIGKILL", "SIGSTOP"}
AWAITED = {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGALRM, signal.SIGINT}

OURS_NOT: set[int] = {os.getpid()}
"""Threads of the program."""


def masks() -> dict[int, tuple[str, set[str]]]:
    """Name and blocked signals of each thread that the system knows."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[int, tuple[str, set[str]]] = {}
    for number in map(int, os.listdir("/proc/self/task")):
        try:
            with open(f"/proc/self/task/{number}/status", encoding="utf-8") as file:
                facts = dict(line.split(":", 1) for line in file)
        except OSError:
            continue  # it has ended
        bits = int(facts["SigBlk"], 16)
        blocked = {one.name for one in signal.Signals if bits >> (one - 1) & 1}
        found[number] = (names.get(number) or facts["Name"].strip(), blocked)
    return found


def check(when: str) -> None:
    """Says which threads are not as they must be; one that starts a program has time for that, as it blocks all then."""
    found = list(wrong(when))
    for _ in range(100):
        if found:
            time.sleep(0.01)
            found = list(wrong(when))
    print(*found, sep="\n", end="\n" if found else "")


def wrong(when: str) -> Iterator[str]:
    """Threads that are not as they must be now."""
    every = {one.name for one in signal.Signals}
    for number, (name, blocked) in masks().items():
        if number in OURS_NOT or name.startswith("iou-"):  # those of io_uring are the system's, and run no program
            continue
        if missing := every - SYNCHRONOUS - NEVER - blocked:
            yield f"{when}: {name} takes {' '.join(sorted(missing))}"
        if (more := blocked & SYNCHRONOUS) and not name.startswith("jemalloc"):  # pyarrow's does so itself
            yield f"{when}: {name} blocks {' '.join(sorted(more))}"


def receive() -> None:
    """Each signal that the main thread blocks reaches it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    for number in sorted(AWAITED):
        for _ in range(3):
            os.kill(os.getpid(), number)
            received = signal.sigtimedwait(AWAITED, 10)
            if received is None or received.si_signo != number:
                print(f"{signal.Signals(number).name} did not come")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)


def main(place: str, configuration: str, *more: str) -> None:
    if "asyncio" in configuration:
        sys.modules["uvloop"] = None  # type: ignore[assignment]
    import stepscope as sc

    check("import")
    number = 0
    windows: list[sc.Window] = []

    def trace(**settings: Any) -> sc.Profiler:
        nonlocal number
        number += 1
        name = f"profiler {number}"
        return sc.trace(name=name, output_dir=f"{place}/{number}", **settings)

    def exercise(*profilers: sc.Profiler, awaited: Callable[[], object] = receive) -> None:
        for profiler in profilers:
            profiler.start()
        for step in range(8):
            with sc.span("work", step=step):
                time.sleep(0.01)
            for profiler in profilers:
                profiler.step()
        check("recording")
        awaited()
        for profiler in profilers:
            profiler.flush(1 if configuration.startswith(("network", "nats")) else 20)
        check("flushed")
        for profiler in profilers:
            profiler.close()
        check("closed")

    def cycles() -> Any:
        return sc.schedule(wait=1, warmup=1, active=2)

    if configuration in ("plain", "plain asyncio"):
        exercise(trace(schedule=cycles(), on_trace_ready=windows.append))
    elif configuration in ("files", "files asyncio"):
        exporters = [
            sc.tensorboard_trace_handler(f"{place}/tensorboard", use_gzip=True),
            sc.ChromeTraceExporter(f"{place}/trace.json"),
            sc.PerfettoExporter(f"{place}/trace.pftrace"),
            sc.exporters.JournalExporter(),
        ]
        console = sc.exporters.ConsoleExporter()
        exercise(
            trace(
                schedule=cycles(), exporters=[*exporters, console], backends=[sc.backends.HostBackend(interval=0.005)]
            ),
            trace(exporters=[sc.exporters.MemoryExporter()], backends=[sc.backends.SimulatedDevice()]),
        )
    elif configuration == "parquet":
        exercise(trace(exporters=[sc.exporters.ParquetExporter(f"{place}/parquet")]))
    elif configuration in ("network", "network asyncio"):
        settings = sc.exporters.LinkSettings(insecure=True)
        exporters = [
            sc.exporters.OtlpExporter("http://127.0.0.1:9"),
            sc.CollectorExporter("ws://127.0.0.1:9", settings=settings),
        ]
        exercise(trace(schedule=cycles(), exporters=exporters, options=sc.Options(close_timeout=0.5)))
    elif configuration == "nats":
        exercise(
            trace(exporters=[sc.exporters.NatsExporter(more[0])], options=sc.Options(close_timeout=float(more[1])))
        )
    elif configuration == "control":
        control = sc.Control(path=f"{place}/control.json", socket=True, signal=True)
        recorder = sc.FlightRecorder(steps=4, triggers=(sc.triggers.SlowStep(), sc.triggers.Stalled()))
        exercise(trace(control=control), trace(keep_last=recorder))
    elif configuration == "mxnet":
        from stepscope.compat.mxnet.memory import MemoryBackend

        exercise(trace(backends=[MemoryBackend()]))
    elif configuration == "torch":
        # torch and numpy start threads when the program imports them, which have its mask then, as without stepscope.
        signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
        import torch

        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        OURS_NOT.update(masks())
        backends = [sc.TorchBackend(mode="kineto")]
        profiler = trace(schedule=cycles(), backends=backends)
        profiler.start()
        for _ in range(5):
            torch.ones(100).sum().item()
            profiler.step()
        check("recording")
        receive()
        profiler.close()
        check("closed")
    elif configuration.startswith("async with"):

        async def serve() -> None:
            async with trace(schedule=cycles()) as profiler:
                for _ in range(4):
                    await asyncio.sleep(0.01)
                    profiler.step()
                check("recording")
                receive()
            check("closed")
            receive()

        asyncio.run(serve())
    elif configuration == "another thread":

        def work() -> None:
            OURS_NOT.add(threading.get_native_id())
            exercise(trace(), awaited=received.wait)  # by the main thread; this one blocks them

        thread, received = threading.Thread(target=work), threading.Event()
        signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
        thread.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)
        while not any(name.startswith("stepscope") for name, _ in masks().values()):
            time.sleep(0.001)
        receive()
        received.set()
        thread.join()
    else:
        raise ValueError(configuration)
    print("end")


if __name__ == "__main__":
    main(*sys.argv[1:])
