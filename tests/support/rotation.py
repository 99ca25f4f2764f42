"""The limit of the disk with what real exporters send, at a thousand events a second: small frames, packed, in small windows.

Nobody is refused, what is protected stays, and every event that was sent is in a file or counts as evicted.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from stepscope.collector.app import Collector
from stepscope.collector.files.disk import disk_use
from stepscope.collector.retention.storage import Deleted
from stepscope.collector.runs.evicted import read_evicted
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.specimens import batch_of, spans
from stepscope.exporters.stream.exporter import CollectorExporter
from stepscope.exporters.stream.transport import LinkSettings
from stepscope.runtime.events.record import Block, EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.windows.window import Step
from tests.support.basics import at_once, poll
from tests.support.collectors import Process, free_port
from tests.support.viewers.scene import START, make_run, make_window

MIB = 1 << 20
SECOND = 10**9
FRAMES = 10
"""Of a window: exporters get what was recorded ten times a second."""
QUICK = LinkSettings(first_delay=0.01, longest_delay=0.05)


def recorded(like: Block, window: int, part: int) -> EventBatch:
    """A tenth of a second of a rank: spans whose times repeat as little as real ones."""
    count = len(like)
    noise = np.random.default_rng(window * FRAMES + part)
    events = like.copy()
    events["ts"] = (
        START + window * SECOND + part * SECOND // FRAMES + np.sort(noise.integers(0, SECOND // FRAMES, count))
    )
    events["dur"] = noise.integers(1000, 1_000_000, count)
    return batch_of(events, window=window)


def some_spans() -> Block:
    """Some hundred spans, on a track of their own."""
    return spans(["forward", "backward", "optimizer", "load"] * 70, start_ns=START)


class Training:
    """A rank that sends seconds of steps as fast as they are accepted.

    Args:
        url: of the collector.
        directory: of the run.
        rank: which.
        began: seconds since the first start of all.
    """

    def __init__(self, url: str, directory: Path, rank: int, *, began: int = 0) -> None:
        self._like = some_spans()
        self.exporter = CollectorExporter(url, settings=QUICK)
        self.run = make_run(directory, rank)
        anchor = msgspec.structs.replace(self.run.anchor, wall_ns=self.run.anchor.wall_ns + began * SECOND)
        self.run = msgspec.structs.replace(self.run, anchor=anchor)
        self.sent = Counter[int]()
        """Events by window."""
        self._confirmed = 0

    async def window(self, window: int, slow: float = 1.0) -> None:
        """One window of ten steps that take so many times a tenth of a second; returns when it is confirmed."""
        for part in range(FRAMES):
            batch = recorded(self._like, window, part)
            self.sent[window] += len(batch)
            await self.exporter.export(batch)
        start = START + window * SECOND
        length = int(slow * SECOND) // FRAMES
        steps = tuple(
            Step(window * FRAMES + at, start + at * length, start + (at + 1) * length) for at in range(FRAMES)
        )
        made = make_window(window)
        await self.exporter.close_window(
            msgspec.structs.replace(made, start_ns=start, end_ns=steps[-1].end_ns, steps=steps)
        )
        await poll(lambda: self.confirmed() == self.sent.total())

    def confirmed(self) -> int:
        """Events that the collector has written."""
        self._confirmed += sum(one.exported for one in self.exporter.delivery_results())
        return self._confirmed

    def journal(self, directory: Path) -> Path:
        """Its file at the collector."""
        return directory / "streams" / self.exporter.stream / "journal"


def stored_events(directory: Path) -> int:
    """Events in the streams of a collector, and those that it evicted or deleted."""
    total = Deleted(directory).count.events
    for place in (directory / "streams").iterdir():
        path = place / "journal"
        total += sum(one.events for one in read_evicted(path))
        if segment_paths(path):
            total += in_file(path).total()
    return total


def in_file(path: Path) -> Counter[int]:
    """Events of each window that are in a stream."""
    found = Counter[int]()
    with JournalReader(path) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                found[item.window] += len(item)
        assert not reader.damage, reader.damage
        return found


async def idle(collector: Collector) -> None:
    """Nobody writes any more: what has to be evicted for what was written is."""
    for _ in range(2):
        await collector.store.quota.wait_measured()


def settings(directory: Path, limit: int, max_kept_streams: int = 100) -> CollectorSettings:
    """Those of a collector whose disk is soon full."""
    return CollectorSettings(
        directory=directory,
        port=0,
        disk_bytes=limit,
        keep_newest=2,
        keep_slowest=1,
        max_kept_streams=max_kept_streams,
    )


async def test_runs_that_are_over_make_room(tmp_path: Path) -> None:
    """The oldest first, and whole; the newest stay. Deleted events count, also after a start of the collector."""
    limit, runs = MIB, 60
    directory = tmp_path / "c"
    collector = Collector(settings(directory, limit, max_kept_streams=runs // 2))
    sent, newest = 0, Counter[int]()
    names: list[str] = []
    async with collector.serving() as url:
        for number in range(runs):
            run = Training(url, tmp_path, 0, began=number * 1000)
            await run.exporter.open(run.run)
            for window in range(3):
                await run.window(window)
            await run.exporter.aclose()
            found = run.exporter.statistics()
            assert found is not None and not found.refused
            sent += run.sent.total()
            names.append(run.exporter.stream)
            assert disk_use(directory).total <= limit
            newest = run.sent
        await idle(collector)
        last = names[-1]
        there = [name for name in names if (directory / "streams" / name / "journal").exists()]
        assert there == names[-len(there) :] and 2 <= len(there) < runs // 2
        assert sorted(path.name for path in (directory / "streams").iterdir()) == sorted(there)
        assert in_file(directory / "streams" / last / "journal") == newest
        await poll(lambda: set(collector.streams.all) == set(there))

        def remaining_events() -> int:
            return sum(in_file(directory / "streams" / name / "journal").total() for name in there)

        # A measurement that has evicted something reports it afterwards.
        await poll(lambda: at_once(collector.streams.totals())[0].discarded == sent - remaining_events())
        assert at_once(collector.streams.totals())[0].events == sent
    view = (again := Collector(settings(directory, limit))).storage
    async with again.serving():
        await poll(view.view)
        shown = view.view()
        deleted = runs - len(list((directory / "streams").iterdir()))
        assert shown is not None and shown.deleted_streams == deleted >= runs - len(there)
        assert shown.deleted_events == deleted * 3 * FRAMES * len(some_spans())


async def test_there_is_a_place_for_a_new_run(tmp_path: Path) -> None:
    """As soon as it comes, though there is room on the disk: the oldest that is over goes, also one with protected windows,
    but none that is connected."""
    collector = Collector(settings(tmp_path / "c", 1 << 30, max_kept_streams=3))
    runs = [Training("ws://127.0.0.1:1", tmp_path, 0, began=number * 1000) for number in range(6)]
    async with collector.serving() as url:
        for number, run in enumerate(runs):
            run.exporter = CollectorExporter(url, settings=QUICK)
            await run.exporter.open(run.run)
            await run.window(0)
            found = run.exporter.statistics()
            assert found is not None and not found.refused, number
            if number:
                await run.exporter.aclose()
                await poll(lambda: not collector.store.connected(run.exporter.stream))  # noqa: B023
        there = [run.exporter.stream for run in runs if run.journal(tmp_path / "c").exists()]
        assert there == [runs[number].exporter.stream for number in (0, 4, 5)]
        view = collector.storage.view()
        assert view is not None and view.deleted_streams == 3 and view.deleted_events == 3 * runs[0].sent.total()
        await runs[0].exporter.aclose()


async def test_a_collector_that_is_killed_while_it_evicts(tmp_path: Path) -> None:
    """The exporter goes on with the next one; all that was sent is there, or counts as evicted."""
    directory, port = tmp_path / "c", free_port()
    arguments = ("--disk", str(MIB), "--keep-newest", "2", "--keep-slowest", "0")
    process = Process(directory, port, *arguments).wait()
    sent, newest, journal = 0, Counter[int](), directory
    try:
        for number in range(40):
            run = Training(f"ws://127.0.0.1:{port}", tmp_path, 0, began=number * 1000)
            await run.exporter.open(run.run)
            for window in range(3):
                await run.window(window)
                if window == 1 and number in (10, 25, 35):
                    process.kill()
                    process = Process(directory, port, *arguments).wait()
            await run.exporter.aclose()
            sent, newest, journal = sent + run.sent.total(), run.sent, run.journal(directory)
    finally:
        process.kill()
    assert stored_events(directory) == sent and in_file(journal) == newest
    assert Deleted(directory).count.streams > 10 and disk_use(directory).total <= MIB
