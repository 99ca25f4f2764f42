"""Several profilers at once: started, stepped, paused and stopped from several threads, some of them bad, some governed."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import stepscope as sc
from stepscope.backends.simulated.scripted import Deliver, Moment, Raise, ScriptedBackend, Span
from stepscope.runtime.errors import ClosedError, ProfilerStateError
from stepscope.runtime.events.record import Kind
from tests.stress.torture.fault import Fault, Outcome

TICKS = 400

KINDS: tuple[type[BaseException], ...] = (
    OSError,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    asyncio.CancelledError,
    ClosedError,
    MemoryError,
    RecursionError,
)
"""Exceptions of parts."""


class Timer:
    """The longest time that a call took, on the threads that train."""

    def __init__(self) -> None:
        self.longest = 0

    def __call__(self, call: Callable[[], object]) -> None:
        """Makes a call; one that does not fit the profiler's state is none of its faults."""
        began = time.monotonic_ns()
        with suppress(ProfilerStateError):
            call()
        self.longest = max(self.longest, time.monotonic_ns() - began)


def _left_out(profiler: sc.Profiler) -> int:
    pipeline = profiler.statistics().pipeline
    return pipeline.overhead.left_out if pipeline is not None else 0


def _dropped_by(exporter: sc.exporters.MemoryExporter, profiler: sc.Profiler) -> dict[str, int]:
    pipeline = profiler.statistics().pipeline
    outputs = {} if pipeline is None else {output.name: output.ledger for output in pipeline.exporters}
    return outputs[exporter.name].dropped if exporter.name in outputs else {}


def _detail(profiler: sc.Profiler) -> str:
    pipeline = profiler.statistics().pipeline
    return pipeline.overhead.detail if pipeline is not None else ""


def _account(
    profiler: sc.Profiler,
    memory: sc.exporters.MemoryExporter,
    name: str,
    produced: int,
    timer: Timer,
    problems: list[str],
) -> Outcome:
    """Closes one that recorded all the time, and compares what came out with what was made."""
    began = time.monotonic_ns()
    profiler.close()
    shutdown = time.monotonic_ns() - began
    found = memory.names(kind=Kind.INSTANT).count(name)
    dropped = sum(window.ledger.dropped() for window in memory.windows) + _left_out(profiler)
    for reason, events in _dropped_by(memory, profiler).items():
        problems.append(f"{events:,} events dropped, reason {reason!r}, by an exporter that is well")
        dropped += min(events, max(produced - found - dropped, 0))  # steps are among them
    for window in memory.windows:
        problems += [
            f"{source} is not balanced" for source, ledger in window.ledger.sources.items() if not ledger.balanced()
        ]
    return Outcome(
        produced=produced,
        exported=found,
        dropped=dropped,
        blocked_ns=timer.longest,
        shutdown_ns=shutdown,
        problems=tuple(problems),
    )


def _storm(directory: Path, seed: int) -> Outcome:
    """Four threads call four profilers at random, under one that records everything."""
    memory, timer, problems = sc.exporters.MemoryExporter(), Timer(), list[str]()
    others = [
        sc.trace(
            schedule=sc.schedule(wait=1, warmup=1, active=2) if number % 2 else None,
            backends=[ScriptedBackend([Deliver([Span("device", 0, 1000)])], thread_bound=number > 1)],
            output_dir=directory / str(number),
            options=sc.Options(journal=False, close_timeout=1.0),
        )
        for number in range(4)
    ]
    whole = sc.trace(exporters=[memory], output_dir=directory / "whole")
    whole.start()

    def work(number: int) -> None:
        choose = random.Random(seed * 31 + number)
        for _ in range(TICKS):
            sc.instant("tick")
            profiler = choose.choice(others)
            name = choose.choices(("step", "pause", "resume", "start", "stop"), (20, 2, 2, 1, 1))[0]
            call: Callable[[], object] = getattr(profiler, name)
            if name in ("start", "stop"):
                with suppress(ProfilerStateError):
                    call()
            else:
                timer(call)
            if number == 0:
                timer(whole.step)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for profiler in others:
        profiler.close()
        with suppress(ExceptionGroup):
            profiler.raise_errors()  # a bound backend whose thread has ended is refused, and says so
    return _account(whole, memory, "tick", 4 * TICKS, timer, problems)


def _bad_neighbours(directory: Path, seed: int) -> Outcome:
    """Those whose backend, in the loop or bound to the thread, schedule, exporter or callback raises, around a good one:
    an error, or what ends programs, tasks and generators, each of another kind."""
    memory, timer, problems = sc.exporters.MemoryExporter(), Timer(), list[str]()
    kinds = itertools.cycle(KINDS[seed % len(KINDS) :] + KINDS[: seed % len(KINDS)])

    def failing() -> Callable[[object], None]:
        kind = next(kinds)

        def fail(_: object) -> None:
            raise kind("on purpose")

        return fail

    def backend(moment: Moment, bound: bool) -> sc.Profiler:
        part = ScriptedBackend([Raise(next(kinds)("on purpose"), moment)], thread_bound=bound)
        return sc.trace(backends=[part], schedule=every, output_dir=directory / f"{moment} {bound}")

    every = sc.schedule(wait=0, warmup=0, active=2)
    moments: tuple[Moment, ...] = ("open", "start", "stop", "aclose")
    bad = [
        *(backend(moment, bound) for moment in moments for bound in (False, True)),
        sc.trace(schedule=failing(), output_dir=directory / "schedule"),
        sc.trace(
            exporters=[sc.exporters.MemoryExporter(fail={"export": next(kinds)("on purpose")})],
            output_dir=directory / "exporter",
        ),
        sc.trace(on_trace_ready=failing(), schedule=every, output_dir=directory / "callback"),
    ]
    good = sc.trace(exporters=[memory], output_dir=directory / "good")
    profilers = [*bad, good]
    random.Random(seed).shuffle(profilers)
    for profiler in profilers:
        profiler.start()
    ticks = 0
    for number in range(TICKS):
        if number == TICKS // 2:
            bad[seed % len(bad)].close()
        if good.statistics().state == "running":
            sc.instant("tick")
            ticks += 1
        for profiler in profilers:
            timer(profiler.step)
    for profiler in bad:
        profiler.close()
        try:
            profiler.raise_errors()
        except ExceptionGroup:
            continue
        problems.append("an error was not stored")
    return _account(good, memory, "tick", ticks, timer, problems)


def _slow_neighbour(directory: Path, seed: int) -> Outcome:
    """One has an exporter that gets on, but far too slowly: another flushes and closes as if it were alone, and the
    exporter next to the slow one has everything."""
    memory, other_memory, timer, problems = (
        sc.exporters.MemoryExporter(),
        sc.exporters.MemoryExporter(),
        Timer(),
        list[str](),
    )
    slow = sc.exporters.MemoryExporter(name="slow", delay=0.2)
    crowded = sc.trace(
        exporters=[slow, other_memory],
        output_dir=directory / "crowded",
        options=sc.Options(queue_bytes=64 << 10, close_timeout=1.0),
    )
    other = sc.trace(exporters=[memory], output_dir=directory / "other")
    crowded.start()
    other.start()
    if not crowded.flush():  # a queue this small fills while an exporter opens
        problems.append("the exporters did not open")
    each = 4000 + seed % 1000
    for _ in range(5):
        for _ in range(each):
            sc.instant("tick")
        timer(crowded.step)
        began = time.monotonic()
        if not other.flush() or time.monotonic() - began > 1:
            problems.append(f"flush() took {time.monotonic() - began:.1f} s")
    outcome = _account(other, memory, "tick", 5 * each, timer, problems)
    if outcome.shutdown_ns > 1e9:
        problems.append(f"close() took {outcome.shutdown_ns / 1e9:.1f} s")
    second = _account(crowded, other_memory, "tick", 5 * each, timer, problems)
    return Outcome(
        produced=outcome.produced + second.produced,
        exported=outcome.exported + second.exported,
        dropped=outcome.dropped + second.dropped,
        blocked_ns=timer.longest,
        shutdown_ns=second.shutdown_ns,
        problems=tuple(problems),
    )


def _governed(directory: Path, seed: int) -> Outcome:
    """A load that no budget allows: what is left out is counted, and so is every step that is missing."""
    memory, timer, problems = sc.exporters.MemoryExporter(), Timer(), list[str]()
    profiler = sc.trace(
        exporters=[memory],
        output_dir=directory,
        overhead_budget=sc.control.OverheadBudget(fraction=0.001, interval=0.02),
    )
    profiler.start()
    ticks = steps = 0
    end = time.monotonic() + 60
    while _detail(profiler) != "step marks only" and time.monotonic() < end:
        for _ in range(500 + seed % 7):
            sc.instant("tick")
        ticks += 500 + seed % 7
        timer(profiler.step)
        steps += 1
    outcome = _account(profiler, memory, "tick", ticks, timer, problems)
    marks = sum(name.startswith("ProfilerStep#") for name in memory.names(kind=Kind.SPAN))
    if not any("detail lowered" in note for window in memory.windows for note in window.diagnostics):
        problems.append("detail was not lowered")
    return outcome + Outcome(tried=0, produced=steps, exported=marks, problems=tuple(problems))


def _cycles(directory: Path, seed: int) -> Outcome:
    """Profilers made, started, stopped, started again and closed in four threads, until the loop's thread has come and gone often."""
    timer, problems = Timer(), list[str]()
    outcomes: list[Outcome] = []

    def cycle(number: int) -> None:
        for turn in range(25):
            memory = sc.exporters.MemoryExporter()
            profiler = sc.trace(
                exporters=[memory], output_dir=directory / f"{number}-{turn}", options=sc.Options(journal=False)
            )
            profiler.start()
            profiler.stop()
            profiler.start()
            sc.instant(f"{number}/{turn}")
            timer(profiler.step)
            outcomes.append(_account(profiler, memory, f"{number}/{turn}", 1, timer, []))

    threads = [threading.Thread(target=cycle, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    problems += [f"left: {thread.name}" for thread in threading.enumerate() if thread.name.startswith("stepscope")]
    total = sum(outcomes, Outcome(tried=0, problems=tuple(problems)))
    return Outcome(
        produced=total.produced,
        exported=total.exported,
        dropped=total.dropped,
        blocked_ns=total.blocked_ns,
        shutdown_ns=total.shutdown_ns,
        problems=total.problems + (() if len(outcomes) == 100 else (f"{100 - len(outcomes)} cycles failed",)),
    )


FAULTS = (
    Fault(family="profilers", name="random calls of four profilers from four threads", trial=_storm, trials=8),
    Fault(family="profilers", name="neighbours whose parts raise", trial=_bad_neighbours, trials=20, short=2),
    Fault(family="profilers", name="a neighbour with an exporter that is slow", trial=_slow_neighbour, trials=4),
    Fault(family="profilers", name="a load that no overhead budget allows", trial=_governed, trials=3),
    Fault(family="profilers", name="a hundred made and closed in four threads", trial=_cycles, trials=10),
)
