"""A victim that follows a plan, drawn from its number.

    python -m tests.stress.torture.planned_victim DIRECTORY NUMBER PORT

It notes in DIRECTORY/diary what it has done, in DIRECTORY/workers which processes it has forked, and in DIRECTORY/report what it
knows of itself if it closes in order. PORT is that of a server for exporters that connect.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

import stepscope as sc
from stepscope.exporters.base import Exporter
from tests.stress.torture.diary import Diary, Lane
from tests.stress.torture.faulty_exporter_loop import neighbour
from tests.stress.torture.faulty_parts import Unruly, delayed
from tests.stress.torture.plan import Plan, Worker, draw
from tests.stress.torture.strain import our_threads
from tests.stress.torture.victim import MAIN, begin, steps


class ProgramReport(msgspec.Struct, frozen=True):
    """The program's report after closing in order."""

    problems: tuple[str, ...]
    """Accounts that do not balance, and threads that still run."""
    whole: tuple[str, ...]
    """Outputs that have every event that they were offered."""
    closing_ns: int
    """The time that closing took."""


def output(file: str, run: Path) -> Exporter:
    """The exporter that writes such a file."""
    if file.endswith(".pftrace"):
        return sc.PerfettoExporter(run / file)
    return sc.exporters.ParquetExporter(run / file) if file.endswith(".parquet") else sc.ChromeTraceExporter(run / file)


def profiler(plan: Plan, place: Path, port: int) -> sc.Profiler:
    """The profiler of the plan."""
    run = place / "run"
    exporters = [delayed(output(each.file, run), each.lag) for each in plan.outputs]
    for number, bad in enumerate(plan.bad):
        exporters.append(neighbour(bad.how, bad.method, place, port))
        exporters[-1].name = f"bad {number}"
    keep: dict[str, Any] = {}
    if plan.keep_last:
        keep["keep_last"] = sc.FlightRecorder(steps=plan.keep_last, cooldown=0, after=2, keep_newest=3, keep_slowest=1)
    else:
        exporters.append(delayed(sc.exporters.JournalExporter(), plan.journal))
    wait, warmup, active = plan.schedule or (0, 0, 1)
    return sc.trace(
        output_dir=run,
        schedule=None if plan.schedule is None else sc.schedule(wait=wait, warmup=warmup, active=active),
        backends=[Unruly(each, number) for number, each in enumerate(plan.backends)],
        exporters=exporters,
        options=sc.Options(
            memory_bytes=1 << 32, journal=bool(plan.keep_last), ring_slots=plan.slots, ring_bytes=max(plan.rings * plan.slots * 64, 1 << 12),
            overflow=plan.overflow, block_seconds=0.02, queue_bytes=plan.queue_bytes, inbox_bytes=plan.inbox_bytes,
            drain_interval=plan.drain_interval, linger=plan.linger, close_timeout=plan.close_timeout,
        ),
        **keep,
    )  # fmt: skip


class Stepping:
    """The work of a step: it may fork, and save."""

    def __init__(self, plan: Plan, traced: sc.Profiler, diary: Diary, place: Path) -> None:
        self._plan, self._traced, self._diary, self._place = plan, traced, diary, place
        self._chance = random.Random(plan.number)
        self._step = 0

    def __call__(self) -> None:
        self._step += 1
        for number, worker in enumerate(self._plan.workers):
            if worker.step == self._step:
                self._fork(worker, self._diary.writer(MAIN - 1 - number))
        if self._chance.random() < self._plan.save:
            self._traced.save("chance")
        self._traced.step()

    def _fork(self, worker: Worker, lane: Lane) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                record(worker, lane, parent)
            finally:
                os._exit(0)
        with (self._place / "workers").open("a") as file:
            file.write(f"{pid}\n")


def record(worker: Worker, lane: Lane, parent: int) -> None:
    """The work of a forked process, until its end or that of its parent."""
    sc.join()
    until = time.monotonic() + worker.seconds
    while os.getppid() == parent and not lane.full:
        with lane.span(), lane.span(text="innermost"):
            time.sleep(0.0005)
        if worker.ending != "stays" and time.monotonic() > until:
            if worker.ending == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            return


def report_of(plan: Plan, traced: sc.Profiler, closing_ns: int) -> ProgramReport:
    """The facts that are known after closing."""
    statistics = traced.statistics()
    pipeline = statistics.pipeline
    assert pipeline is not None
    problems = list(traced.audit())
    if not statistics.timed_out:
        problems += [f"{each.name} has events in flight" for each in pipeline.exporters if each.ledger.in_flight]
    left = [name for name in our_threads() if not name.startswith(("stepscope bad", "stepscope unruly"))]
    if any(bad.how == "thread" for bad in plan.bad):
        left = [name for name in left if name != "stepscope worker"]  # where it never comes back
    whole = [each.name for each in pipeline.exporters if each.ledger.exported == each.ledger.offered]
    return ProgramReport((*problems, *(f"thread {name!r} still runs" for name in left)), tuple(whole), closing_ns)


def main(place: Path, number: int, port: int) -> None:
    """Runs until the end comes."""
    plan = draw(number)
    diary = Diary(place / "diary")
    traced = profiler(plan, place, port)
    traced.start()
    begin(diary, plan.threads, plan.tasks)

    def end() -> None:
        match plan.ending.own:
            case "close" | "exit":
                sys.exit(0)
            case "raise":
                raise RuntimeError("the loop failed")
            case "":
                return

    (place / "ready").touch()
    ending = end if plan.ending.own else None
    try:
        steps(Stepping(plan, traced, diary, place), diary, ending, plan.ending.seconds, place / "ending")
    finally:
        if plan.ending.own == "close":
            began = time.monotonic_ns()
            traced.close()
            (place / "report").write_bytes(msgspec.json.encode(report_of(plan, traced, time.monotonic_ns() - began)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
