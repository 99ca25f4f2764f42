"""The figure in docs/architecture.md, walked by public names only: batches of a backend go through bounded queues and the event loop
of a background thread, the schedule chooses, and async exporters get them, each on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import stepscope as sc
from stepscope.backends import BackendReport, Sink
from stepscope.exporters import EventBatch, Kind, Run
from stepscope.runtime.events import clock, record, strings, tracks

STEPS = 8
PER_STEP = 50
RECORDED = [2, 3, 6, 7]
"""Of each four steps, the schedule below waits for one, warms up for one, and records two."""


class Sensor:
    """A backend with a batch of instants for each step, recorded or not."""

    name = "sensor"
    thread_bound = False

    def __init__(self) -> None:
        self.thread = ""
        self.actions: list[sc.ProfilerAction] = []
        self._sink: Sink | None = None

    def open(self, sink: Sink) -> None:
        """Runs on the backend's thread."""
        self.thread = threading.current_thread().name
        self._sink = sink

    def transition(self, before: sc.ProfilerAction, after: sc.ProfilerAction, at: int) -> None:
        """Notes the action, and that everything before was delivered."""
        assert self._sink is not None
        self.actions.append(after)
        self._sink.watermark(at)

    def deliver(self) -> None:
        """Delivers a batch of now, from the program's thread."""
        assert self._sink is not None
        block = record.empty_block(PER_STEP)
        block["ts"], block["kind"], block["track"] = clock.now(), int(Kind.INSTANT), tracks.process()
        block["name"], block["category"] = strings.intern("reading"), strings.category("sensor")
        self._sink.deliver(block)

    async def aclose(self) -> None:
        """Everything was delivered."""
        assert self._sink is not None
        self._sink.watermark(clock.now())

    def report(self) -> BackendReport:
        """How it records."""
        return BackendReport(mode="test")


class Lines:
    """An exporter that counts events by source and step, and where its coroutines run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: Counter[tuple[str, int]] = Counter()
        self.windows: list[sc.Window] = []
        self.places: set[tuple[str, int]] = set()

    async def open(self, run: Run) -> None:
        """The run begins."""

    async def export(self, batch: EventBatch) -> None:
        """Counts what is no step."""
        self.places.add((threading.current_thread().name, id(asyncio.get_running_loop())))
        spans = batch.events[batch.events["kind"] == int(Kind.SPAN)] if batch.source == "recorder" else batch.events
        self.counts.update((batch.source, int(step)) for step in spans["step"])

    async def close_window(self, window: sc.Window) -> None:
        """A window is whole."""
        self.windows.append(window)

    async def aclose(self) -> None:
        """The run ends."""


async def test_a_batch_of_a_backend_goes_one_way(tmp_path: Path) -> None:
    """Both exporters get what the backend and the program made in recorded steps, once, by their own loops, and nothing else."""
    sensor, exporters = Sensor(), [Lines("one"), Lines("other")]
    schedule = sc.schedule(wait=1, warmup=1, active=2, repeat=2)
    options = sc.Options(signals=(), inbox_bytes=1 << 20, queue_bytes=1 << 20)
    async with sc.trace(
        output_dir=tmp_path, schedule=schedule, backends=[sensor], exporters=exporters, options=options
    ) as profiler:
        for _ in range(STEPS):
            with sc.span("work"):
                sensor.deliver()
            profiler.step()
    profiler.raise_errors()
    assert sensor.thread == "stepscope sensor"
    assert sc.ProfilerAction.WARMUP in sensor.actions and sc.ProfilerAction.RECORD_AND_SAVE in sensor.actions
    for exporter in exporters:
        mine = {step: exporter.counts["sensor", step] for step in range(STEPS)}
        assert mine == {step: PER_STEP if step in RECORDED else 0 for step in range(STEPS)}
        assert {step: exporter.counts["recorder", step] for step in RECORDED} == dict.fromkeys(RECORDED, 1)
        assert [len(window.steps) for window in exporter.windows] == [2, 2]
        assert all(window.complete for window in exporter.windows)
    places = [place for exporter in exporters for place in exporter.places]
    assert {thread for thread, _ in places} == {"stepscope one", "stepscope other"}
    assert len({loop for _, loop in places} | {id(asyncio.get_running_loop())}) == 3
    ledger = exporters[0].windows[-1].ledger.sources["sensor"]
    assert (ledger.accepted, ledger.dropped) == (2 * PER_STEP, {})
