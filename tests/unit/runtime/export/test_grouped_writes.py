"""Small writes of items that wait are put together, and the accounts say exactly what was written."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.specimens import run_in, window_of
from stepscope.runtime.errors import OutputError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export import exporter_worker
from stepscope.runtime.export.exporter import Lost
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.windows.window import Window
from tests.support.blocks import scattered
from tests.support.exporter_workers import batch, closed, ledger_of, run_facts, running
from tests.support.journals import batch_with_arguments, described

WINDOWS = 100


class Grouped(MemoryExporter):
    """Notes when it is called, and how many items count as handled then."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.worker: ExporterWorker | None = None
        self.handled: list[int] = []

    def begin_group(self) -> None:
        self.order.append("begin")

    async def end_group(self) -> None:
        assert self.worker is not None
        self.order.append("end")
        self.handled.append(self.worker.handled)

    async def export(self, batch: EventBatch) -> None:
        self.order.append("export")
        await super().export(batch)

    async def close_window(self, window: Window) -> None:
        self.order.append("close")
        await super().close_window(window)


async def export_windows(exporter: Grouped, tmp_path: Path, count: int) -> ExporterWorker:
    """Has an exporter handle so many windows of ten events, which all wait when it begins."""
    exporter.worker = worker = ExporterWorker(exporter, run_facts(tmp_path), 1 << 20)
    for index in range(count):
        worker.offer(batch(index))
        worker.close_window(closed(index))
    worker.finish()
    await worker.run()
    return worker


async def test_items_that_wait_are_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a limited size. Its items are handled, and its windows closed, when it was written; one item alone is no group."""
    monkeypatch.setattr(exporter_worker, "GROUP_ITEMS", 4)
    exporter = Grouped()
    worker = await export_windows(exporter, tmp_path, 3)
    pairs = ["export", "close"]
    assert exporter.order == ["begin", *pairs, *pairs, "end", "begin", *pairs, "end"]
    assert exporter.handled == [0, 4] and worker.handled == 6
    async with running(Grouped(), tmp_path) as alone:
        alone.offer(batch())
    assert isinstance(alone.exporter, Grouped) and alone.exporter.order == ["export"]


async def test_a_group_that_was_not_written_is_lost(tmp_path: Path) -> None:
    """An exporter that hangs in the write: its events count as dropped."""
    exporter = Grouped()
    exporter.worker = worker = ExporterWorker(exporter, run_facts(tmp_path), 1 << 20)
    found: list[object] = []

    async def hang() -> None:
        worker.abandon()
        found.append(ledger_of(worker))

    exporter.end_group = hang  # type: ignore[method-assign]
    worker.offer(batch())
    worker.offer(batch())
    worker.finish()
    await worker.run()
    assert ledger_of(worker).dropped == {"closed": 20} and ledger_of(worker).exported == 0
    assert found


class Counted(Grouped):
    """Counts what it writes, as files do. Of some windows it writes a part only: `refused` by its size limit, `failed` with an error."""

    def __init__(self, *, refused: int = 0, failed: int = 0, refused_at_end: int = 0) -> None:
        super().__init__()
        self.written = self.dropped_cap = 0
        self._refused, self._failed, self._refused_at_end = refused, failed, refused_at_end

    def take_lost(self) -> list[Lost]:
        return []

    async def export(self, batch: EventBatch) -> None:
        odd = batch.window == 1
        self.dropped_cap += self._refused * odd
        self.written += len(batch) - (self._refused + self._failed) * odd
        if odd and self._failed:
            raise OutputError("the disk is full")
        await super().export(batch)

    async def close_window(self, window: Window) -> None:
        self.dropped_cap += self._refused_at_end * (window.index == 1)
        await super().close_window(window)


async def accounts(exporter: Counted, tmp_path: Path) -> list[tuple[int, dict[str, int]]]:
    """Events exported and dropped of three windows of ten events each, which are one group."""
    worker = await export_windows(exporter, tmp_path, 3)
    assert exporter.order.count("begin") == 1
    ledgers = [ledger_of(worker, index) for index in range(3)]
    assert not any(ledger.in_flight for ledger in ledgers)
    return [(ledger.exported, dict(ledger.dropped)) for ledger in ledgers]


@pytest.mark.parametrize(
    ("what", "account"),
    [
        ({"failed": 4}, (6, {"error": 4})),
        ({"refused": 3}, (7, {"cap": 3})),
        ({"refused_at_end": 2}, (8, {"cap": 2})),
    ],
)
async def test_losses_within_a_group(what: dict[str, int], account: tuple[int, Any], tmp_path: Path) -> None:
    """Events of a call that fails, or that a size limit refuses, those of a window's end as well, count in their own window."""
    assert await accounts(Counted(**what), tmp_path) == [(10, {}), account, (10, {})]


async def test_a_cancellation_within_a_group(tmp_path: Path) -> None:
    """The events before it are in the file that `aclose` completes; the rest counts as dropped."""
    exporter = Counted()
    exporter.worker = worker = ExporterWorker(exporter, run_facts(tmp_path), 1 << 20)
    original = exporter.export
    hangs = anyio.Event()

    async def export(batch: EventBatch) -> None:
        if batch.window == 1:
            hangs.set()
            await anyio.sleep_forever()
        await original(batch)

    exporter.export = export  # type: ignore[method-assign]
    for index in range(3):
        worker.offer(batch(index))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        await hangs.wait()
        tasks.cancel_scope.cancel()
    worker.abandon()
    found = [(ledger_of(worker, index).exported, ledger_of(worker, index).dropped) for index in range(3)]
    assert found == [(10, {}), (0, {"closed": 10}), (0, {"closed": 10})]


async def test_a_group_has_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No item joins a group that has enough; ends of windows have no size."""
    monkeypatch.setattr(exporter_worker, "BATCH_BYTES", 1)
    exporter = Grouped()
    await export_windows(exporter, tmp_path, 2)
    assert exporter.order == ["export", "begin", "close", "export", "end", "close"]


@pytest.mark.parametrize("make", [JournalExporter, ChromeTraceExporter])
async def test_many_small_windows_need_few_writes(
    make: type[JournalExporter | ChromeTraceExporter], tmp_path: Path
) -> None:
    """Two hundred items that wait: a tenth of the system calls."""
    exporter = make(tmp_path / "trace.json")
    worker = ExporterWorker(exporter, run_facts(tmp_path), 1 << 24)
    for index in range(WINDOWS):
        worker.offer(batch(index))
        worker.close_window(closed(index))
    worker.finish()
    before = written_calls()
    await worker.run()
    assert written_calls() - before < WINDOWS // 5
    assert not worker.raised.errors and worker.statistics().ledger.exported == 10 * WINDOWS
    assert worker.handled == 2 * WINDOWS


def written_calls() -> int:
    """Calls of write(2) and the like by this process so far."""
    (line,) = [line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("syscw:")]
    return int(line.split()[1])


@contextlib.contextmanager
def files_full(at: int) -> Generator[None]:
    """The system lets no file of this process grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@given(
    st.lists(
        st.tuples(st.sampled_from(["batch", "close", "begin", "end", "full", "room"]), st.integers(0, 2)), max_size=40
    )
)
def test_a_journal_in_groups(tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]]) -> None:
    """It has each batch that was written and not lost, in order, whatever the system refuses meanwhile; no frame is missing."""
    directory = tmp_path_factory.mktemp("journal")
    full = False
    writer = JournalWriter(directory / "journal")
    writer.open(run_in(directory))
    wanted: list[EventBatch] = []
    for number, (act, window) in enumerate(acts):
        one = batch_with_arguments(["x", "y"], [{"act": number}, {}], window=window, start_ns=number)
        lost = writer.lost
        try:
            with files_full(writer.path.stat().st_size) if full else contextlib.nullcontext():
                if act == "batch":
                    writer.write_batch(one)
                    wanted.append(one)
                elif act == "close":
                    writer.write_window(window_of(window, one))
                elif act == "begin":
                    writer.begin_group()
                elif act == "end":
                    writer.end_group()
                else:
                    full = act == "full"
        except OutputError:
            del wanted[len(wanted) - (writer.lost - lost) // 2 :]
    writer.close()
    with JournalReader(writer.path) as reader:
        found = [described(item) for item in reader if isinstance(item, EventBatch)]
        assert not reader.damage
        assert reader.end is not None and reader.end.events == 2 * len(wanted) == writer.written - writer.lost
    assert found == [described(one) for one in wanted]


def test_events_of_a_refused_group_count_once(tmp_path: Path) -> None:
    """They are lost, and are not deleted again with the file that would have had them."""
    one = batch(events=100)
    writer = JournalWriter(tmp_path / "journal", max_bytes=1 << 20, segment_bytes=1 << 14, when_full="delete_oldest")
    writer.open(run_in(tmp_path))
    writer.begin_group()
    writer.write_batch(one)
    writer.write_batch(one)
    with files_full(writer.path.stat().st_size), pytest.raises(OutputError):
        writer.end_group()
    while not writer.deleted_oldest:
        writer.write_batch(scattered(batch(events=1000)))
    writer.close()
    with JournalReader(writer.path) as reader:
        found = sum(len(item) for item in reader if isinstance(item, EventBatch))
        assert reader.end is not None and reader.end.events == found
    assert found == writer.written - 200 - writer.deleted_oldest
