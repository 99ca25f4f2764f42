"""Faults that lose events on purpose: rings, inbox and queues that overflow, sources that lose. Every loss has a count."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

import stepscope as sc
from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.recording.recorder import recorder
from tests.stress.torture.fault import Fault, Outcome
from tests.support.basics import ROOT

Overflow = Literal["drop_newest", "drop_oldest", "block"]
POLICIES: tuple[Overflow, ...] = ("drop_newest", "drop_oldest", "block")

CLOSE_TIMEOUT = 3.0
BLOCK_SECONDS = 0.05


class Pressure(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that are too small, too fast or too slow in one trial."""

    overflow: Overflow = "drop_newest"
    ring_slots: int = 4096
    ring_bytes: int = 1 << 24
    inbox_bytes: int = 1 << 26
    queue_bytes: int = 1 << 26
    threads: int = 2
    bursts: int = 20
    """Of each thread, with one step between two."""
    events: int = 500
    """In a burst."""
    device: float = 0.0
    """Kernels per second of a simulated device; each is four events."""
    device_loses: float = 0.0
    export_seconds: float = 0.0
    """Seconds of each export of the output that is looked at."""
    fails: bool = False
    """Whether every third of its exports raises."""
    seed: int = 0
    directory: str = ""


class _Output(sc.exporters.MemoryExporter):
    """The output that is looked at: slow, and unreliable."""

    def __init__(self, pressure: Pressure) -> None:
        super().__init__(name="looked at", delay=pressure.export_seconds)
        self._fails = pressure.fails
        self._calls = 0

    async def export(self, batch: EventBatch) -> None:
        self._calls += 1
        if self._fails and self._calls % 3 == 0:
            raise OSError("every third")
        await super().export(batch)


def _record(events: int, chance: random.Random) -> int:
    """Records spans, operators and frames; returns the longest time of one call in ns."""
    longest = 0
    for _ in range(events):
        category = chance.choice(("user_annotation", "cpu_op", "python_function"))
        begin = time.monotonic_ns()
        with sc.span("work", category=category):
            pass
        longest = max(longest, time.monotonic_ns() - begin)
    return longest


def _train(profiler: sc.Profiler, pressure: Pressure) -> tuple[int, int]:
    """Records and steps; returns events made, marks included, and the longest time that the main thread was blocked."""
    chance = random.Random(pressure.seed)
    others = [
        threading.Thread(target=_record, args=(pressure.events * pressure.bursts, random.Random(number)))
        for number in range(pressure.threads - 1)
    ]
    for other in others:
        other.start()
    longest = 0
    for _ in range(pressure.bursts):
        longest = max(longest, _record(pressure.events, chance))
        begin = time.monotonic_ns()
        profiler.step()
        longest = max(longest, time.monotonic_ns() - begin)
    for other in others:
        other.join()
    # One more mark is where the window begins.
    return pressure.events * pressure.bursts * pressure.threads + pressure.bursts + 1, longest


def _journaled(path: Path) -> tuple[int, Ledger | None]:
    """Events in the journal, and the ledger of the run at its end."""
    events, ledger = 0, None
    with JournalReader(path) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                events += len(item)
            elif isinstance(item, Ledger):
                ledger = item
    return events, ledger


def press(pressure: Pressure) -> Outcome:
    """One run under this pressure, in this process: rings are as the first run of a process has them."""
    device = None
    if pressure.device:
        device = sc.backends.SimulatedDevice(
            kernels_per_second=pressure.device, flush_delay=0.01, drop=pressure.device_loses, seed=pressure.seed
        )
    output = _Output(pressure)
    options = sc.Options(
        memory_bytes=1 << 30, overflow=pressure.overflow, ring_slots=pressure.ring_slots, ring_bytes=pressure.ring_bytes,
        inbox_bytes=pressure.inbox_bytes, queue_bytes=pressure.queue_bytes, block_seconds=BLOCK_SECONDS,
        close_timeout=CLOSE_TIMEOUT,
    )  # fmt: skip
    profiler = sc.trace(
        backends=[device] if device else [], exporters=[output], output_dir=pressure.directory, options=options
    )
    with profiler:
        made, blocked = _train(profiler, pressure)
        begin = time.monotonic_ns()
        profiler.close()
        shutdown = time.monotonic_ns() - begin
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    windows = pipeline.windows
    problems = list(profiler.audit())
    if shutdown > (CLOSE_TIMEOUT + 0.5) * 1e9:
        problems.append(f"closing took {shutdown / 1e9:.2f} s of {CLOSE_TIMEOUT:g} s")
    rings = recorder(options).statistics()
    if rings.produced != made:
        problems.append(f"{made} events were recorded, the rings know of {rings.produced}")
    made += device.statistics().produced if device else 0
    # Steps and gaps, which the runtime makes, are events of the outputs, too.
    made += windows.entered - sum(count for source, count in windows.accepted.items() if source != "steps")
    sources = sum(sum(reasons.values()) for reasons in windows.dropped.values())
    before = sources + sum(windows.outside.values()) + windows.withheld
    journaled, ledger = _journaled(profiler.output.path / "journal")
    accounts = {each.name: each.ledger for each in pipeline.exporters}
    if journaled + sum(accounts["journal"].dropped.values()) + before != made:
        problems.append(f"{made} events were made, {journaled} are in the journal, {before} were dropped before it")
    # Under `drop_oldest` one ring is all that a thread has, also while the loop waits for the slow exporter.
    roomy = not pressure.device and pressure.ring_bytes >= 1 << 24 and pressure.overflow != "drop_oldest"
    if roomy and sources:
        problems.append(f"{sources} events were lost to every output, for one that is slow")
    if ledger is None or sum(sum(source.dropped.values()) for source in ledger.sources.values()) != sources:
        problems.append("the journal does not end with the accounts of the run")
    return Outcome(
        produced=made,
        exported=len(output),
        dropped=before + sum(accounts[output.name].dropped.values()),
        blocked_ns=blocked,
        shutdown_ns=shutdown,
        problems=tuple(problems),
    )


def main() -> None:
    """Reads a pressure from standard input and writes the outcome to standard output."""
    pressure = msgspec.json.decode(sys.stdin.buffer.read(), type=Pressure)
    sys.stdout.buffer.write(msgspec.json.encode(press(pressure)))


PROGRAM = f"import sys; sys.path.append({str(ROOT)!r}); from tests.stress.torture.faults.ledger import main; main()"


def _trial(pressure: Pressure) -> Any:
    def run(directory: Path, seed: int) -> Outcome:
        """Records faster than something takes, and compares the accounts with what was made and what is written."""
        trial = msgspec.structs.replace(pressure, seed=seed, directory=str(directory))
        command = [sys.executable, "-P", "-c", PROGRAM]
        done = subprocess.run(command, input=msgspec.json.encode(trial), capture_output=True, timeout=120, check=False)
        if done.returncode:
            return Outcome(problems=(f"ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}",))
        outcome = msgspec.json.decode(done.stdout, type=Outcome)
        if not outcome.dropped and pressure.overflow != "block":
            return msgspec.structs.replace(outcome, problems=(*outcome.problems, "nothing was dropped: no fault"))
        return outcome

    return run


def _fault(name: str, pressure: Pressure, trials: int = 3, short: int = 1) -> Fault:
    return Fault(family="ledger", alone=True, name=name, trial=_trial(pressure), trials=trials, short=short)


FAULTS: tuple[Fault, ...] = (
    *(
        _fault(f"rings overflow, {policy}", Pressure(overflow=policy, ring_slots=256, ring_bytes=1 << 16, threads=4))
        for policy in POLICIES
    ),
    *(
        _fault(
            f"an exporter's queue overflows, {policy}",
            Pressure(overflow=policy, queue_bytes=100_000, export_seconds=0.05, bursts=60, threads=1),
            trials=3,
        )
        for policy in POLICIES
        if policy != "block"
    ),
    _fault("the inbox overflows", Pressure(inbox_bytes=50_000, device=300_000)),
    _fault("a source loses half", Pressure(device=100_000, device_loses=0.5, ring_bytes=1 << 26)),
    *(
        _fault(
            f"all at once, {policy}",
            Pressure(
                overflow=policy, ring_slots=256, ring_bytes=1 << 16, inbox_bytes=100_000, queue_bytes=100_000,
                device=100_000, device_loses=0.2, export_seconds=0.02, fails=True, threads=4,
            ),
        )
        for policy in POLICIES
    ),
)  # fmt: skip
