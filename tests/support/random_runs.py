"""Runs drawn at random, whose accounts are compared with what truly happened.

Run as a program it executes the plans of its standard input, as JSON, and prints the faults: rings belong to a
process, and so do their size and policy.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec
from hypothesis import strategies as st

import stepscope as sc
from stepscope.backends.simulated.scripted import Lose, ScriptedBackend, Span, make_block
from stepscope.exporters.memory import Method
from stepscope.runtime import _core
from stepscope.runtime.accounting.ledger import SourceLedger
from stepscope.runtime.events.record import Kind
from stepscope.runtime.recording.recorder import recorder
from stepscope.runtime.sources.sink import Sink
from tests.support.window_audit import audit_window

Exporter = Literal["fine", "slow", "raises", "cannot open", "hangs", "cannot close"]
Overflow = Literal["drop_newest", "drop_oldest", "block"]


class ProfilerPlan(msgspec.Struct, frozen=True):
    """One profiler of a plan."""

    schedule: tuple[int, int, int, int] | None
    exporters: tuple[Exporter, ...]
    device: bool
    late: bool
    inbox_bytes: int
    queue_bytes: int
    overflow: Overflow
    pauses: frozenset[int]


class RunPlan(msgspec.Struct, frozen=True):
    """The number of events of each thread in each step; the first thread is that of the training loop."""

    profiler_plans: tuple[ProfilerPlan, ...]
    steps: tuple[tuple[int, ...], ...]
    long_span_steps: tuple[int, int] | None
    """The steps in which a span begins and ends."""


class Process(msgspec.Struct, frozen=True):
    """Runs that share their rings."""

    overflow: Overflow
    ring_slots: int
    ring_bytes: int
    run_plans: tuple[RunPlan, ...]


EXPORTERS: tuple[Exporter, ...] = ("fine", "slow", "raises", "cannot open", "hangs", "cannot close")
POLICIES: tuple[Overflow, ...] = ("drop_newest", "drop_oldest", "block")

profiler_plans = st.builds(
    ProfilerPlan,
    schedule=st.none() | st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 3), st.integers(0, 2)),
    exporters=st.lists(st.sampled_from(EXPORTERS), max_size=2, unique=True).map(tuple),
    device=st.booleans(),
    late=st.booleans(),
    inbox_bytes=st.sampled_from([2_000, 100_000, 1 << 26]),
    queue_bytes=st.sampled_from([3_000, 200_000, 1 << 26]),
    overflow=st.sampled_from(POLICIES),
    pauses=st.frozensets(st.integers(0, 7), max_size=2),
)
bursts = st.sampled_from([0, 1, 7, 60, 400])
run_plans = st.builds(
    RunPlan,
    profiler_plans=st.lists(profiler_plans, min_size=1, max_size=3).map(tuple),
    steps=st.lists(
        st.tuples(bursts, bursts, bursts) | st.tuples(bursts, st.just(0), st.just(0)), min_size=1, max_size=8
    ).map(tuple),
    long_span_steps=st.none() | st.tuples(st.integers(0, 4), st.integers(0, 8)),
)
processes = st.builds(
    Process,
    overflow=st.sampled_from(POLICIES),
    ring_slots=st.sampled_from([64, 256, 1024]),
    ring_bytes=st.sampled_from([4096, 1 << 16, 1 << 20]),
    run_plans=st.lists(run_plans, min_size=3, max_size=3).map(tuple),
)


class _Crew:
    """Threads that record a burst each on demand, and are waited for: so it is known what was recorded."""

    def __init__(self, size: int) -> None:
        self._orders = [0] * size
        self._gate = threading.Barrier(size + 1)
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(size)]
        for thread in self._threads:
            thread.start()

    def _work(self, number: int) -> None:
        while True:
            self._gate.wait()
            if self._orders[number] < 0:
                return
            record(self._orders[number])
            self._gate.wait()

    def burst(self, orders: tuple[int, ...]) -> None:
        self._orders[:] = orders
        self._gate.wait()
        self._gate.wait()

    def end(self) -> None:
        self._orders[:] = [-1] * len(self._orders)
        self._gate.wait()
        for thread in self._threads:
            thread.join()


def record(count: int) -> None:
    """Records that many events: spans, with and without arguments, and operators."""
    for number in range(count):
        if number % 3 == 0:
            with sc.span("span", text="x" * (number % 80)):
                pass
        else:
            with sc.span("operator", category="cpu_op"):
                pass


def _exporter(kind: Exporter) -> sc.exporters.MemoryExporter:
    methods: dict[Exporter, Method] = {"raises": "export", "cannot open": "open", "cannot close": "close_window"}
    fail: dict[Method, BaseException] = {methods[kind]: OSError("on demand")} if kind in methods else {}
    return sc.exporters.MemoryExporter(
        name=kind,
        fail=fail,
        delay=0.02 if kind == "slow" else 0.0,
        hang_in="export" if kind == "hangs" else None,
    )


class _LateBackend(ScriptedBackend):
    """Delivers 50 ms after the end of each recording, behind its watermark."""

    def __init__(self) -> None:
        super().__init__([Lose(7)], name="late")
        self._began: int | None = None

    def transition(self, before: sc.ProfilerAction, after: sc.ProfilerAction, at: int) -> None:
        """Notes the begin; has the events delivered after the end."""
        super().transition(before, after, at)
        sink, began = self._sink, self._began
        if (
            began is not None
            and sink is not None
            and (not after.records or before is sc.ProfilerAction.RECORD_AND_SAVE)
        ):
            self._began = None
            sink.run_soon(partial(self._deliver_late, sink, began))
        if after.records and self._began is None:
            self._began = at

    async def _deliver_late(self, sink: Sink, began: int) -> None:
        await anyio.sleep(0.05)
        spans = [Span("late", start, 500, category="cpu_op") for start in range(0, 100_000, 2_000)]
        sink.deliver(*make_block(spans, began, self._track))


def execute(plan: RunPlan, overflow: Overflow, ring_slots: int, ring_bytes: int, directory: Path) -> list[str]:
    """Executes a plan.

    Returns:
        Faults in its accounts.
    """
    profilers: list[sc.Profiler] = []
    memories: list[list[sc.exporters.MemoryExporter]] = []
    devices: list[sc.backends.SimulatedDevice | None] = []
    rings_before = None
    made = 0  # events whose recording has returned
    by_step: list[int] = []
    long_span, is_open, is_recorded = sc.span("held"), False, False
    crew = _Crew(len(plan.steps[0]) - 1)
    with contextlib.ExitStack() as stack:
        for number, each in enumerate(plan.profiler_plans):
            device = (
                sc.backends.SimulatedDevice(kernels_per_second=20_000, flush_delay=0.01, drop=0.2)
                if each.device
                else None
            )
            backends: list[Any] = [backend for backend in (device, _LateBackend() if each.late else None) if backend]
            exporters = [_exporter(kind) for kind in each.exporters]
            options = sc.Options(
                memory_bytes=1 << 32, ring_slots=ring_slots, ring_bytes=ring_bytes, overflow=overflow if number == 0 else each.overflow,
                inbox_bytes=each.inbox_bytes, queue_bytes=each.queue_bytes, linger=0.02, close_timeout=1.0,
                block_seconds=0.05, drain_interval=0.05,
            )  # fmt: skip
            schedule = None
            if each.schedule is not None:
                wait, warmup, active, repeat = each.schedule
                schedule = sc.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
            if rings_before is None:
                rings_before = recorder(options).statistics()
            profiler = sc.trace(
                schedule=schedule, backends=backends, exporters=exporters, options=options,
                output_dir=directory / f"run-{number}",
            )  # fmt: skip
            stack.enter_context(profiler)
            made += _core.recording() > 0 and profiler.current_action.records  # the mark with which a window begins
            profilers.append(profiler)
            memories.append(exporters)
            devices.append(device)
        for step, orders in enumerate(plan.steps):
            for profiler, each in zip(profilers, plan.profiler_plans, strict=True):
                if step in each.pauses:
                    profiler.pause()
            recording = bool(_core.recording())
            if plan.long_span_steps and step == plan.long_span_steps[0]:
                long_span.__enter__()
                is_open = True
            # Also one that was entered before its window began, as all of its profilers run.
            is_recorded |= is_open and recording
            record(orders[0])
            crew.burst(orders[1:])
            if plan.long_span_steps and step == plan.long_span_steps[1]:
                long_span.__exit__(None, None, None)
                made += is_recorded
                is_open = False
            made += sum(orders) if recording else 0
            by_step.append(orders[0] if recording else 0)
            for profiler, each in zip(profilers, plan.profiler_plans, strict=True):
                if step in each.pauses:
                    profiler.resume()
            is_recorded |= is_open and bool(_core.recording())
            for profiler in profilers:
                before = profiler.statistics().windows
                profiler.step()
                made += 1 + profiler.statistics().windows - before
        crew.end()
    assert rings_before is not None
    return [
        *_threads_left(),
        *_rings(recorder(sc.Options()).statistics(), rings_before, made),
        *(
            problem
            for number, profiler in enumerate(profilers)
            for problem in _party(number, profiler, devices[number])
        ),
        *(problem for exporters in memories for memory in exporters for problem in _output(memory)),
        *_first(profilers[0], made),
        *(
            problem
            for each, exporters in zip(plan.profiler_plans, memories, strict=True)
            if not each.pauses
            and not plan.long_span_steps
            and overflow != "drop_oldest"
            and not any(map(sum, _others(plan)))
            for memory in exporters
            for problem in _windows(memory, by_step)
        ),
    ]


def _threads_left() -> list[str]:
    """Exporters that hang are cancelled at the deadline; their threads end soon afterwards."""
    for thread in threading.enumerate():
        if thread.name.startswith("stepscope"):
            thread.join(10)
            if thread.is_alive():
                return [f"thread {thread.name} was left running"]
    return []


def _others(plan: RunPlan) -> list[tuple[int, ...]]:
    return [orders[1:] for orders in plan.steps]


def _windows(memory: sc.exporters.MemoryExporter, by_step: list[int]) -> list[str]:
    """Each window knows exactly what the training loop recorded in its steps, stored or lost."""
    problems: list[str] = []
    for window in memory.windows:
        marks = len(memory.events(window.index, Kind.STEP))
        if memory.name != "fine" or window.ledger.outputs["fine"].dropped:
            continue
        known = window.ledger.sources.get("recorder", SourceLedger()).produced - marks
        made = sum(by_step[step.number] for step in window.steps if step.number < len(by_step))
        if known != made:
            problems.append(f"{made} events were made in window {window.index}, its ledger knows {known}")
    return problems


def _rings(now: Any, before: Any, made: int) -> list[str]:
    """The recorder knows of every event that the program made, and of no other."""
    problems: list[str] = []
    if now.produced - before.produced != made:
        problems.append(f"{made} events were made, the rings know of {now.produced - before.produced}")
    if now.waiting:
        problems.append(f"{now.waiting} events wait in the rings for nobody")
    return problems


def _party(number: int, profiler: sc.Profiler, device: sc.backends.SimulatedDevice | None) -> list[str]:
    problems = [f"profiler {number}: {problem}" for problem in profiler.audit()]
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    if device is not None:
        counts, windows = device.statistics(), pipeline.windows
        known = windows.seen.get("simulated", 0) + sum(windows.dropped.get("simulated", {}).values())
        known -= windows.late.get("simulated", 0)
        if counts.produced != known:
            problems.append(f"profiler {number}: the device made {counts.produced} events, known are {known}")
    if "accounts  balanced" not in str(profiler.report()):
        problems.append(f"profiler {number}: the report does not say that accounts are balanced")
    return problems


def _output(memory: sc.exporters.MemoryExporter) -> list[str]:
    """An exporter's events agree with the ledgers of its windows, and each window balances."""
    problems: list[str] = []
    for window in memory.windows:
        problems += audit_window(window)
        own = window.ledger.outputs[memory.name]
        got = len(memory.events(window.index))
        if own.exported != got:
            problems.append(f"{memory.name} got {got} events of window {window.index}, its ledger says {own.exported}")
        spans = memory.events(window.index, Kind.SPAN)
        whole: list[int] = spans["id"][spans["flags"] & 2 == 0].tolist()
        twice = [number for number, count in Counter(whole).items() if count > 1]
        if [number for number in twice if number]:
            problems.append(f"{memory.name} got {len(twice)} spans of window {window.index} more than once")
    return problems


def _first(profiler: sc.Profiler, made: int) -> list[str]:
    """The profiler that was there all the time has seen or lost every event."""
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    account = pipeline.windows
    lost = sum(account.dropped.get("recorder", {}).values()) - account.late.get("recorder", 0)
    seen = account.seen.get("recorder", 0)
    run = SourceLedger(seen + lost, account.accepted.get("recorder", 0))
    return [] if run.produced == made else [f"{made} events were made, the first profiler knows of {run.produced}"]


def main() -> None:
    """Executes the plans of standard input."""
    process = msgspec.json.decode(sys.stdin.buffer.read(), type=Process)
    problems: list[str] = []
    for number, plan in enumerate(process.run_plans):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            found = execute(plan, process.overflow, process.ring_slots, process.ring_bytes, Path(directory))
        problems += [f"plan {number}: {problem}" for problem in found]
        if time.monotonic() - began > 60:
            problems.append(f"plan {number} took a minute")
    sys.stdout.buffer.write(msgspec.json.encode(problems))


if __name__ == "__main__":
    main()
