"""The flight recorder: killed while it keeps and saves, storms of triggers, exporters that die during a save."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np

import stepscope as sc
from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.runtime import _core
from stepscope.runtime.errors import StepscopeError
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import Kind
from stepscope.runtime.flight.recorder import FlightStatistics
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.recording.recorder import recorder
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.session.note import WINDOWS
from tests.stress.torture.fault import Fault, Outcome
from tests.support.basics import ROOT
from tests.support.launch import launched

STEPS = 5
"""Steps of the flight recorder."""
_MOST_STEPS = 1 << 16

# A diary in a file that outlives the process: how many events were recorded, and with which one each step began. A step
# is entered before it begins, and an event when its recording has returned.
VICTIM = f"""
STEPS, MOST_STEPS = {STEPS}, {_MOST_STEPS}
import mmap, os, random, signal, sys, threading, time
import numpy as np
import stepscope as sc
run, session, diary, seed, saves = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
with open(diary, "r+b") as file:
    book = np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
chance = random.Random(seed)
profiler = sc.trace(output_dir=run, options=sc.Options(session_dir=session, drain_interval=0.02, ring_slots=4096),
    keep_last=sc.FlightRecorder(steps=STEPS, triggers=(), cooldown=0, after=2, keep_newest=3, keep_slowest=1))
profiler.start()
print("ready", flush=True)
number = 0
for step in range(MOST_STEPS - 8):
    for _ in range(chance.randrange(1, 400)):
        sc.instant("event", number=number)
        number += 1
        book[1] = number
    if saves and chance.random() < 0.05:
        profiler.save("save %d" % (step % 7))
    if chance.random() < 0.3:
        time.sleep(0.001)
    book[3 + step] = number
    book[2] = step + 1
    profiler.step()
"""


def _killed(how: int, saves: bool) -> Callable[[Path, int], Outcome]:
    def trial(directory: Path, seed: int) -> Outcome:
        run, session, diary = (directory / name for name in ("run", "session", "diary"))
        session.mkdir()
        diary.write_bytes(bytes(8 * _MOST_STEPS))
        command = [sys.executable, "-c", VICTIM, *map(str, (run, session, diary, seed, int(saves)))]
        with launched(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(random.Random(seed).uniform(0.05, 0.6))
            process.send_signal(how)
            process.communicate()
        if process.returncode != -how:
            return Outcome(problems=(f"the victim ended by itself with {process.returncode}",))
        book = np.frombuffer(diary.read_bytes(), np.int64)
        recorded, oldest = int(book[1]), int(book[2]) - STEPS
        # Step n begins with event book[2 + n]. One that was being begun counts as begun.
        first = int(book[2 + oldest]) if oldest > 0 else 0
        began = clock.now()
        try:
            recovered = recover(run)
        except (StepscopeError, OSError) as error:
            return Outcome(problems=(f"recovery failed: {error}",))
        took = clock.now() - began
        found, dropped = _numbers(recovered.journal)
        problems = [] if len(found) == len(set(found)) else ["an event was recovered twice"]
        problems += _damaged(run / WINDOWS)
        expected = set(range(first, recorded))
        return Outcome(
            produced=len(expected),
            exported=len(expected & set(found)),
            dropped=dropped,
            shutdown_ns=took,
            problems=tuple(problems),
        )

    doing = "keeps its last steps and saves windows of them" if saves else "keeps its last steps"
    trial.__doc__ = (
        f"A process that {doing} is killed at a random moment; the last steps are recovered, each event once."
    )
    return trial


def _terminated(directory: Path, seed: int) -> Outcome:
    """A process that keeps its last steps gets SIGTERM at a random moment: they are saved before it dies."""
    run, session, diary = (directory / name for name in ("run", "session", "diary"))
    session.mkdir()
    diary.write_bytes(bytes(8 * _MOST_STEPS))
    victim = VICTIM.replace("triggers=()", "triggers=(sc.triggers.Terminated(),)")
    command = [sys.executable, "-c", victim, *map(str, (run, session, diary, seed, 0))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.05, 0.6))
        began = clock.now()
        process.send_signal(signal.SIGTERM)
        process.communicate()
        took = clock.now() - began
    if process.returncode != -signal.SIGTERM:
        return Outcome(problems=(f"the victim ended with {process.returncode}",))
    book = np.frombuffer(diary.read_bytes(), np.int64)
    oldest = int(book[2]) - STEPS + 1
    expected = set(range(int(book[2 + oldest]) if oldest > 0 else 0, int(book[1])))
    found: list[int] = []
    dropped = 0
    for path in (run / WINDOWS).glob("*-terminated_by_sigterm.journal"):
        found, dropped = _numbers(path)
    problems = [] if len(found) == len(set(found)) else ["an event was saved twice"]
    return Outcome(
        produced=len(expected),
        exported=len(expected & set(found)),
        dropped=min(dropped, len(expected - set(found))),
        shutdown_ns=took,
        problems=(*problems, *_damaged(run / WINDOWS)),
    )


def _numbers(journal: Path) -> tuple[list[int], int]:
    """Numbers of the events in a journal, and how many its gaps name."""
    numbers: list[int] = []
    dropped = 0
    with JournalReader(journal) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                instants = item.events[item.events["kind"] == int(Kind.INSTANT)]
                numbers += instants["args_len"].tolist() if _inline(instants) else _decoded(item)
                dropped += int(item.events["id"][item.events["kind"] == int(Kind.GAP)].sum())
    return numbers, dropped


def _inline(instants: Any) -> bool:
    return bool(len(instants)) and bool((instants["flags"] & 1).all())


def _decoded(batch: EventBatch) -> list[int]:
    rows = batch.events[batch.events["kind"] == int(Kind.INSTANT)]
    found = [_core.decode_arguments(batch.args, int(row["args_at"]), int(row["args_len"])) for row in rows]
    return [int(arguments["number"]) for arguments in found if "number" in arguments]


def _damaged(windows: Path) -> list[str]:
    """Faults of the files of saved windows: each must be readable, and whole if it has its name."""
    problems: list[str] = []
    for path in sorted(windows.glob("*")) if windows.is_dir() else ():
        try:
            with JournalReader(path) as reader:
                closed = sum(isinstance(item, Window) for item in reader)
                whole = not reader.damage and closed == 1 and reader.end is not None
        except (StepscopeError, OSError) as error:
            problems.append(f"{path.name}: {error}")
            continue
        if not whole and "unfinished" not in path.name:
            problems.append(f"{path.name} bears its name and is not whole")
    return problems


class _Bad:
    """An exporter that fails in the middle of a save."""

    def __init__(self, name: str, fail: Callable[[], Any]) -> None:
        self.name = name
        self._fail = fail
        self._batches = 0

    async def open(self, run: Run) -> None:
        pass

    async def export(self, batch: EventBatch) -> None:
        self._batches += 1
        if self._batches > 1:
            outcome = self._fail()
            if outcome is not None:
                await outcome

    async def close_window(self, window: Window) -> None:
        pass

    async def aclose(self) -> None:
        pass


def _raise() -> None:
    raise BrokenPipeError("the other end is gone")


def _hang() -> Any:
    return anyio.sleep(3600)


class _Recording:
    """A profiler in this process that is made to suffer, and its accounts."""

    def __init__(self, directory: Path, *exporters: Any, options: sc.Options | None = None, **settings: Any) -> None:
        self.memory = sc.exporters.MemoryExporter()
        self.blocked = self.shutdown = 0
        self.directory = directory / "run"
        settings = {"steps": STEPS, "cooldown": 0.0, "keep_newest": 3, "keep_slowest": 1, **settings}
        self.profiler = sc.trace(
            keep_last=sc.FlightRecorder(**settings),
            exporters=[self.memory, *exporters],
            output_dir=self.directory,
            options=options or sc.Options(drain_interval=0.02),
        )

    def call(self, function: Callable[[], object]) -> None:
        """Calls one of ours on this, the training, thread."""
        began = clock.now()
        function()
        self.blocked = max(self.blocked, clock.now() - began)

    def close(self) -> None:
        """Closes the profiler."""
        began = clock.now()
        self.profiler.close()
        self.shutdown = clock.now() - began

    def outcome(self, *problems: str) -> Outcome:
        """All that was seen went to the exporter, or was let go and counted."""
        pipeline = self.profiler.statistics().pipeline
        assert pipeline is not None and pipeline.flight is not None
        known = pipeline.windows
        found = [*problems, *self.profiler.audit()]
        dropped = sum(sum(part.values()) for part in (known.outside, known.late, known.superseded))
        accepted = sum(count for source, count in known.accepted.items() if source != "steps")
        found += _damaged(self.directory / WINDOWS)
        found += _unbounded(self.directory / WINDOWS, pipeline.flight)
        return Outcome(
            produced=sum(count for source, count in known.seen.items() if source != "steps"),
            exported=accepted,
            dropped=dropped,
            blocked_ns=self.blocked,
            shutdown_ns=self.shutdown,
            problems=tuple(found),
        )


def _unbounded(windows: Path, flight: FlightStatistics) -> list[str]:
    files = len(list(windows.glob("*"))) if windows.is_dir() else 0
    return [f"{files} files of windows, of 4 that may be kept"] if files > 4 else []


def _storm(directory: Path, seed: int) -> Outcome:
    """Threads and a signal handler call save(), counters turn bad, steps are slow, all at once."""
    recording = _Recording(directory, triggers=(sc.triggers.NotFinite(), sc.triggers.SlowStep(warmup=2, least=0.0)))
    chance = random.Random(seed)
    stop = threading.Event()
    profiler = recording.profiler

    def call(number: int) -> None:
        while not stop.is_set():
            profiler.save(f"{number}")
            sc.counter("loss", float("nan"))
            sc.counter("loss", 1.0)
            time.sleep(0.0001)

    def handler(number: int, frame: object) -> None:
        recording.call(lambda: profiler.save("signal"))

    before = signal.getsignal(signal.SIGUSR2)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR2, handler)
    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    try:
        profiler.start()
        for thread in threads:
            thread.start()
        for _ in range(chance.randrange(50, 150)):
            with sc.span("work"):
                time.sleep(chance.random() * 0.002)
            if chance.random() < 0.2 and threading.current_thread() is threading.main_thread():
                os.kill(os.getpid(), signal.SIGUSR2)
            recording.call(profiler.step)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, before)
    recording.close()
    return recording.outcome()


def _dead_exporters(directory: Path, seed: int) -> Outcome:
    """Two exporters die in the middle of a save; the journals and the healthy one get everything."""
    bad = [_Bad("raising", _raise), _Bad("hanging", _hang)]
    recording = _Recording(directory, *bad, triggers=(), options=sc.Options(drain_interval=0.02, close_timeout=1.0))
    recording.profiler.start()
    for number in range(60):
        for _ in range(100):
            sc.instant("event")
        if number % 10 == 9:
            recording.call(lambda: recording.profiler.save("dead"))
        recording.call(recording.profiler.step)
    recording.close()
    problems = [] if recording.shutdown < 2.0e9 else [f"closing took {recording.shutdown / 1e9:.1f} s of 1"]
    if not list((recording.directory / WINDOWS).glob("*.journal")):
        problems.append("nothing was saved after two exporters had died")
    return recording.outcome(*problems)


class _Discarding(sc.exporters.MemoryExporter):
    """Fails where windows that it has closed are to be deleted."""

    def __init__(self, fail: Callable[[], Any]) -> None:
        super().__init__(name="discarding")
        self._failing = fail
        self.asked = 0

    async def discard_window(self, window: int) -> None:
        self.asked += 1
        outcome = self._failing()
        if outcome is not None:
            await outcome


def _cancelled() -> None:
    raise asyncio.CancelledError("made up")


def _discards(fail: Callable[[], Any], directory: Path, seed: int) -> Outcome:
    """An exporter fails in `discard_window`, for every window that was saved and is let go; its events are written."""
    bad = _Discarding(fail)
    recording = _Recording(directory, bad, triggers=(), options=sc.Options(drain_interval=0.02, close_timeout=1.0))
    recording.profiler.start()
    for number in range(60):
        sc.instant("event")
        if number % 6 == 5:
            recording.call(lambda: recording.profiler.save("discarded"))
            recording.profiler.flush()
        recording.call(recording.profiler.step)
    recording.close()
    pipeline = recording.profiler.statistics().pipeline
    assert pipeline is not None
    statistics = next(output for output in pipeline.exporters if output.name == bad.name)
    hangs = fail is _hang
    problems = [] if recording.shutdown < 1.5e9 else [f"closing took {recording.shutdown / 1e9:.1f} s of 1"]
    if not bad.asked or (statistics.errors != bad.asked and not hangs) or not statistics.first_error:
        problems.append(f"asked {bad.asked} times, {statistics.errors} errors are known: {statistics.first_error!r}")
    if len(bad) != statistics.ledger.exported or (statistics.ledger.dropped and not hangs):
        problems.append(f"it has {len(bad)} events, its account is {statistics.ledger}")
    if len(recording.memory) != statistics.ledger.offered:
        problems.append(f"the other exporter has {len(recording.memory)} of {statistics.ledger.offered} events")
    return recording.outcome(*problems)


def _harmed_files(directory: Path, seed: int) -> Outcome:
    """The files of stored steps are removed, cut or overwritten under the recorder's hands."""
    recording = _Recording(directory, triggers=())
    profiler = recording.profiler
    chance = random.Random(seed)
    profiler.start()
    session = recorder(sc.Options()).directory
    for number in range(200):
        for _ in range(50):
            sc.instant("event")
        if number % 20 == 19:
            profiler.flush()
            for path in sorted(session.glob("kept-*")):
                how = chance.randrange(3)
                if how == 0:
                    path.unlink(missing_ok=True)
                elif how == 1:
                    os.truncate(path, path.stat().st_size // 2)
                else:
                    path.write_bytes(os.urandom(100))
            recording.call(lambda: profiler.save("harmed"))
        recording.call(profiler.step)
    recording.close()
    return recording.outcome()


FAULTS: tuple[Fault, ...] = (
    Fault(family="flight", name="SIGKILL while steps are kept", trial=_killed(signal.SIGKILL, False), trials=15),
    Fault(family="flight", name="SIGABRT while windows are saved", trial=_killed(signal.SIGABRT, True), trials=8),
    Fault(family="flight", name="SIGTERM while steps are kept", trial=_terminated, trials=8),
    Fault(family="flight", name="storm of triggers", trial=_storm, trials=6),
    Fault(family="flight", name="exporters die during a save", trial=_dead_exporters, trials=4),
    *(
        Fault(family="flight", name=f"an exporter {what} in discard_window", trial=partial(_discards, fail), trials=2)
        for what, fail in (("raises", _raise), ("raises CancelledError", _cancelled), ("hangs", _hang))
    ),
    Fault(family="flight", name="stored steps are damaged", trial=_harmed_files, trials=4),
)
