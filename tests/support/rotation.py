"""The limit of the disk with what real exporters send, at a thousand events a second: small frames, packed, in small windows.

Nobody is refused, what is dear stays, and every event that was sent is in a file or counts as given up.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from stepscope.collector.app import Collector
from stepscope.collector.files.disk_use import disk_use
from stepscope.collector.runs.recording import Recording
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.collector.exporter import CollectorExporter
from stepscope.exporters.collector.settings import LinkSettings
from stepscope.exporters.specimens import batch_of, spans
from stepscope.runtime.events.record import Block, EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.windows.window import Step
from tests.support.basics import poll
from tests.support.collectors import Process, free_port
from tests.support.viewers.scene import START, make_run, make_window

MIB = 1 << 20
SECOND = 10**9
FRAMES = 10
"""Of a window: exporters get what was recorded ten times a second."""
QUICK = LinkSettings(first_delay=0.01, longest_delay=0.05, spool_bytes=0)


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
    """A rank that sends seconds of steps as fast as they are taken.

    Args:
        url: of the collector.
        directory: of the run.
        rank: which.
        began: seconds since the first start of all.
        tasks: whether each frame comes with a track that is new, as of asyncio's tasks.
    """

    def __init__(self, url: str, directory: Path, rank: int, *, began: int = 0, tasks: bool = False) -> None:
        self._like, self._tasks = some_spans(), tasks
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
            batch = recorded(some_spans() if self._tasks else self._like, window, part)
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
        self._confirmed += sum(one.exported for one in self.exporter.settle())
        return self._confirmed

    def journal(self, directory: Path) -> Path:
        """Its file at the collector."""
        return directory / "streams" / self.exporter.stream / "journal"


def held(path: Path) -> tuple[Counter[int], int]:
    """Events of each window that are in a journal, which must be whole, and how many were given up."""
    found = Counter[int]()
    with JournalReader(path) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                found[item.window] += len(item)
        assert not reader.damage, reader.damage
        return found, reader.discarded


async def settled(collector: Collector) -> None:
    """Nobody writes any more: what has to be given up for what was written is."""
    for _ in range(2):
        await collector.store.room.look()


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


async def test_nobody_is_refused_and_what_is_dear_stays(tmp_path: Path) -> None:
    """Several times the limit arrives, in frames of less than a block."""
    limit = 2 * MIB
    collector = Collector(settings(tmp_path / "c", limit))
    most, slow, last = 0, 20, 139
    async with collector.serving() as url:
        ranks = [Training(url, tmp_path, rank, tasks=True) for rank in range(3)]
        for rank in ranks:
            await rank.exporter.open(rank.run)
        for window in range(last + 1):
            for rank in ranks:
                await rank.window(window, 3.0 if window == slow and rank is ranks[1] else 1.0)
            most = max(most, disk_use(tmp_path / "c").total)
        for rank in ranks:
            found = rank.exporter.statistics()
            assert found is not None and found.connections == 1 and not found.last_error
            await rank.exporter.aclose()
        await poll(lambda: all(not stream.connection for stream in collector.streams.all.values()))
        await settled(collector)
        view = collector.storage.view()
        assert view is not None and not view.problem
        length = sum(rank.journal(tmp_path / "c").stat().st_size for rank in ranks)
        assert limit // 2 < most <= limit and length > 2 * limit
        gone = 0
        for rank in ranks:
            there, discarded = held(rank.journal(tmp_path / "c"))
            gone += discarded
            assert there.total() + discarded == rank.sent.total(), "nothing is lost without a count"
            for window in (slow, last - 1, last):
                assert there[window] == rank.sent[window]
            assert 0 not in there and there <= rank.sent
        await poll(lambda: collector.streams.totals()[0].discarded == gone)


async def test_a_long_run_of_tiny_windows_goes_on(tmp_path: Path) -> None:
    """What is left of a window, its steps and accounts, goes as well in the end, and stays counted."""
    limit = MIB
    collector = Collector(settings(tmp_path / "c", limit))
    windows, at_least, at_most = 0, 300, 3000
    async with collector.serving() as url:
        rank = Training(url, tmp_path, 0)
        await rank.exporter.open(rank.run)
        journal = rank.journal(tmp_path / "c")
        # How soon they go depends on how often it is looked, and so on the machine.
        while windows < at_least or len(Recording.of(journal, "0").windows) == windows < at_most:
            for _ in range(at_least):
                await rank.window(windows)
                windows += 1
                assert disk_use(tmp_path / "c").total <= limit
        found = rank.exporter.statistics()
        assert found is not None and found.connections == 1
        recording = Recording.of(journal, "0")
        assert len(recording.windows) < windows, "or this test is of no use"
        lost = recording.ledger.sources["recorder"].dropped
        assert lost == {"overflow": 2 * windows}, "the accounts of windows that are gone count"
        await rank.exporter.aclose()
        there, discarded = held(journal)
        assert there.total() + discarded == rank.sent.total() and there[windows - 1] == rank.sent[windows - 1]
    again = Collector(settings(tmp_path / "c", limit))
    async with again.serving():
        await poll(lambda: again.streams.all and not again.streams.unread)
        (stream,) = again.streams.all.values()
        assert stream.windows.count == windows and stream.events == rank.sent.total()
        # The first look of the next one may find that there is something to give up.
        await poll(lambda: stream.windows.discarded == held(journal)[1] >= discarded)
        assert stream.windows.dropped["recorder/overflow"] == 2 * windows


async def test_runs_that_are_over_make_room(tmp_path: Path) -> None:
    """The oldest first, and whole; the newest stay. What was deleted counts, also after a start of the collector."""
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
        await settled(collector)
        last = names[-1]
        there = [name for name in names if (directory / "streams" / name / "journal").exists()]
        assert there == names[-len(there) :] and 2 <= len(there) < runs // 2
        assert sorted(path.name for path in (directory / "streams").iterdir()) == sorted(there)
        assert held(directory / "streams" / last / "journal") == (newest, 0)
        await poll(lambda: set(collector.streams.all) == set(there))

        def left() -> int:
            return sum(held(directory / "streams" / name / "journal")[0].total() for name in there)

        # A look that has given something up tells of it afterwards.
        await poll(lambda: collector.streams.totals()[0].discarded == sent - left())
        assert collector.streams.totals()[0].events == sent
    view = (again := Collector(settings(directory, limit))).storage
    async with again.serving():
        await poll(view.view)
        shown = view.view()
        gone = runs - len(list((directory / "streams").iterdir()))
        assert shown is not None and shown.deleted_streams == gone >= runs - len(there)
        assert shown.deleted_events == gone * 3 * FRAMES * len(some_spans())


async def test_there_is_a_place_for_a_new_run(tmp_path: Path) -> None:
    """As soon as it comes, though there is room on the disk: the oldest that is over goes, also one with windows that are dear,
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


async def test_a_collector_that_is_killed_while_it_gives_up(tmp_path: Path) -> None:
    """The exporter goes on with the next one; all that it sent is there, or counts as given up."""
    directory, port = tmp_path / "c", free_port()
    arguments = ("--disk", str(MIB), "--keep-newest", "2", "--keep-slowest", "0")
    rank = Training(f"ws://127.0.0.1:{port}", tmp_path, 0)
    process = Process(directory, port, *arguments).wait()
    try:
        await rank.exporter.open(rank.run)
        for window in range(130):
            await rank.window(window)
            if window in (60, 110):
                process.kill()
                there, gone = held(rank.journal(directory))
                assert there.total() + gone == rank.sent.total()
                process = Process(directory, port, *arguments).wait()
        await rank.exporter.aclose()
    finally:
        process.kill()
    there, gone = held(rank.journal(directory))
    assert there.total() + gone == rank.sent.total() and gone > there.total()
    assert there[129] == rank.sent[129] and disk_use(directory).total <= MIB
