"""Workers of exporters: a fault or slowness costs one output only, and every event is accounted for, also where exporters report
later what became of events, or keep what they cannot send."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import anyio
import pytest

from stepscope.exporters.memory import MemoryExporter, Method
from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.exporter import (
    DeliveryResult,
    SupportsDeferredAck,
    SupportsEarlyClose,
    SupportsUnsentFiles,
    UnsentFiles,
)
from stepscope.runtime.export.exporter_accounts import MAX_WINDOWS, counted, remedy
from stepscope.runtime.export.exporter_worker import WINDOWS_WAITING, ExporterWorker
from tests.support.basics import poll
from tests.support.exporter_workers import batch, closed, ledger_of, run_facts, running


async def test_no_window_waits_for_one_that_cannot_be_opened(tmp_path: Path) -> None:
    """The events of its windows are dropped, those of later ones as well, and accounts of old windows are joined."""
    worker = ExporterWorker(MemoryExporter(fail={"open": OSError("disk on fire")}), run_facts(tmp_path), 1 << 20)
    for index in range(3):
        worker.offer(batch(index))
        worker.close_window(closed(index))
    assert worker.windows_waiting == 3
    worker.finish()
    await worker.run()
    for index in range(3, MAX_WINDOWS + 4):
        worker.offer(batch(index))
        worker.close_window(closed(index))
    assert worker.windows_waiting == 0 and worker.ledger(0) is None
    assert worker.statistics().ledger.dropped == {"error": 10 * (MAX_WINDOWS + 4)}


@pytest.mark.parametrize("method", ["open", "export", "close_window", "aclose"])
async def test_an_exception_of_a_method_is_stored(method: Method, tmp_path: Path) -> None:
    """No exception leaves the worker; each is stored with a note of where, and nothing is unaccounted for. An exporter without an
    output is not asked to write or to close one."""
    exporter = MemoryExporter(fail={method: OSError("disk on fire")})
    async with running(exporter, tmp_path) as worker:
        worker.offer(batch())
        worker.close_window(closed())
    stats = worker.statistics()
    assert stats.errors == 1
    assert "disk on fire" in stats.first_error
    assert method in worker.raised.errors[0].__notes__[0]
    assert exporter.calls == (["open"] if method == "open" else ["open", "export", "close_window", "aclose"])
    lost = method in ("open", "export")
    assert stats.ledger.exported == (0 if lost else 10)
    assert stats.ledger.dropped == ({"error": 10} if lost else {})


async def test_a_cap_of_the_exporter_is_counted(tmp_path: Path) -> None:
    """Events that the exporter itself refused are no exported events."""
    exporter = MemoryExporter(max_bytes=700)
    async with running(exporter, tmp_path) as worker:
        worker.offer(batch())
        worker.offer(batch())
    assert ledger_of(worker).dropped == {"cap": 10}
    assert ledger_of(worker).exported == 10


async def test_a_cancellation_that_the_exporter_made_up_is_its_error(tmp_path: Path) -> None:
    """Raising the loop's own CancelledError does not end the worker's task."""
    fault = anyio.get_cancelled_exc_class()()

    class Cancelling(MemoryExporter):
        async def export(self, batch: EventBatch) -> None:
            if not self.batches:
                self.batches.append(batch)
                raise fault
            await super().export(batch)

    exporter = Cancelling()
    async with running(exporter, tmp_path) as worker:
        worker.offer(batch())
        worker.offer(batch())
    assert worker.statistics().errors == 1
    assert ledger_of(worker).exported == 10


async def test_an_exporter_that_blocks_its_thread_costs_only_its_own_output(tmp_path: Path) -> None:
    """On threads of their own, the other gets everything; the abandoned one is counted once, whatever it does later."""
    bad, good = MemoryExporter(block_in="export"), MemoryExporter()
    workers = [ExporterWorker(exporter, run_facts(tmp_path), 1 << 20) for exporter in (bad, good)]
    for worker in workers:
        worker.start()
        worker.offer(batch())
        worker.offer(batch())
        worker.finish()
    with anyio.fail_after(30):
        await workers[1].wait()
    workers[0].cancel()
    for worker in workers:
        worker.abandon()
    assert ledger_of(workers[1]).exported == 20 and workers[1].raised.errors == []
    assert ledger_of(workers[0]).dropped == {"closed": 20}
    assert "deadline" in str(workers[0].raised.errors[0])
    bad.release()
    with anyio.fail_after(30):
        await workers[0].wait()
    assert ledger_of(workers[0]).dropped == {"closed": 20} and ledger_of(workers[0]).exported == 0


async def test_a_cancelled_exporter_may_still_close_its_output(tmp_path: Path) -> None:
    """A hanging export is cancelled at the deadline, and `aclose` is called after it; its time counts while it lasts."""
    exporter = MemoryExporter(hang_in="export")
    worker = ExporterWorker(exporter, run_facts(tmp_path), 1 << 20)
    worker.start()
    worker.offer(batch())
    await poll(lambda: "export" in exporter.calls)
    before = worker.statistics().busy_ns
    await poll(lambda: worker.statistics().busy_ns > before)
    worker.cancel()
    with anyio.fail_after(30):
        await worker.wait()
    worker.abandon()
    assert exporter.calls == ["open", "export", "aclose"]
    assert ledger_of(worker).dropped == {"closed": 10}


async def test_without_a_loop_an_exporter_has_failed(tmp_path: Path) -> None:
    """No descriptor is left for its loop: everything offered is counted, and the error says why."""
    exporter = MemoryExporter()
    worker = ExporterWorker(exporter, run_facts(tmp_path), 1 << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        worker.offer(batch())
        worker.start()
        with anyio.fail_after(30):
            await worker.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    worker.offer(batch())
    worker.close_window(closed())
    await worker.drained()
    await worker.window_closed(0)
    worker.abandon()
    assert exporter.calls == []
    assert ledger_of(worker).dropped == {"error": 20}
    assert "open files" in str(worker.raised.errors[0])


class EndsEarly(MemoryExporter):
    """Hangs in `export` until it gets the end, and raises then if it should."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.thread = 0
        self.end: anyio.Event | None = None

    async def export(self, batch: EventBatch) -> None:
        self.end = self.end or anyio.Event()
        await self.end.wait()
        await super().export(batch)

    def closing(self) -> None:
        self.thread = threading.get_ident()
        self.end = self.end or anyio.Event()
        self.end.set()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, RuntimeError("not now")])
@pytest.mark.parametrize("when", ["at once", "inside"])
async def test_an_exporter_that_ends_early_is_not_cancelled(error: Exception | None, when: str, tmp_path: Path) -> None:
    """Its own thread gets the end, while its `export` awaits or before; an exception then is stored, and costs no event."""
    exporter = EndsEarly(error)
    assert isinstance(exporter, SupportsEarlyClose) and not isinstance(MemoryExporter(), SupportsEarlyClose)
    worker = ExporterWorker(exporter, run_facts(tmp_path), 1 << 20)
    worker.start()
    worker.offer(batch())
    if when == "inside":
        await poll(lambda: exporter.end)
    worker.finish()
    with anyio.fail_after(30):
        await worker.wait()
    assert exporter.thread not in (0, threading.get_ident())
    assert ledger_of(worker).exported == 10
    assert [str(each) for each in worker.raised.errors] == ([str(error)] if error else [])


async def test_windows_for_an_exporter_that_closes_none_are_bounded(tmp_path: Path) -> None:
    """Windows are left out whole, and counted."""
    exporter = MemoryExporter(hang_in="close_window")
    surplus = MAX_WINDOWS + 10
    async with running(exporter, tmp_path) as worker:
        for index in range(WINDOWS_WAITING + surplus):
            worker.offer(batch(index, 3))
            worker.offer(batch(index, 2))
            worker.close_window(closed(index))
        worker.discard_window(WINDOWS_WAITING + surplus - 1)
        assert worker.windows_waiting == WINDOWS_WAITING
        with anyio.fail_after(30):
            await worker.window_closed(WINDOWS_WAITING + surplus - 1)
        stats = worker.statistics()
        assert stats.windows_left_out == surplus
        assert stats.ledger.dropped == {"queue": 5 * surplus}
        exporter.release()
        await worker.drained()
        worker.offer(batch(WINDOWS_WAITING + surplus))
        worker.close_window(closed(WINDOWS_WAITING + surplus))
    assert [window.index for window in exporter.windows] == [*range(WINDOWS_WAITING), WINDOWS_WAITING + surplus]
    assert worker.statistics().ledger.exported == 5 * WINDOWS_WAITING + 10


class Counted(MemoryExporter):
    """Reads no events, but counts them, and takes its time."""

    needs_events = False

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.number = 0

    async def export(self, batch: EventBatch) -> None:
        await self.free.wait()
        self.number += len(batch)
        assert not batch.events["ts"].any()


async def test_an_exporter_that_counts_only_needs_no_room(tmp_path: Path) -> None:
    """Its queue drops nothing, however long it takes: no events are in it."""
    exporter = Counted()
    async with running(exporter, tmp_path, max_bytes=100) as worker:
        for window in range(50):
            worker.offer(batch(window))
        assert not worker.half_full()
        exporter.free.set()
    assert exporter.number == 500
    ledger = worker.statistics().ledger
    assert (ledger.offered, ledger.exported, ledger.dropped) == (500, 500, {})


async def test_the_queue_waits_once_for_an_exporter_that_hangs(tmp_path: Path) -> None:
    """With a queue that drops the oldest, each large batch finds it empty; nobody waits for it again."""
    exporter = MemoryExporter(hang_in="export")
    worker = ExporterWorker(exporter, run_facts(tmp_path), 1000, drop_oldest=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run)
        worker.offer(batch())
        await poll(lambda: "export" in exporter.calls)
        worker.offer(batch())
        assert worker.half_full()
        await worker.wait_below_half()
        for _ in range(3):
            worker.offer(batch(events=100))
            assert not worker.half_full()
        exporter.release()
        worker.finish()


class Later(MemoryExporter):
    """An exporter that reports the delivery of events later."""

    def __init__(self, *results: DeliveryResult, fail: Mapping[Method, BaseException] | None = None) -> None:
        super().__init__(fail=fail)
        self.results = list(results)
        """Results that it reports when a window closes."""

    def delivery_results(self) -> Iterable[DeliveryResult]:
        if "close_window" not in self.calls:
            return []
        results, self.results = self.results, []
        return results


async def test_events_are_in_flight_until_an_exporter_reports_them(tmp_path: Path) -> None:
    """Also those of a window that is closed; then they are exported, or dropped for its reasons, and in the end for want of any."""
    exporter = Later(DeliveryResult(0, 10, {"rate": 5, "filter": 3}))
    assert isinstance(exporter, SupportsDeferredAck) and not isinstance(MemoryExporter(), SupportsDeferredAck)
    async with running(exporter, tmp_path) as worker:
        worker.offer(batch())
        worker.offer(batch())
        await poll(lambda: len(exporter.batches) == 2 and worker.statistics().ledger.in_flight == 20)
        assert worker.statistics().waiting_events == 20
        worker.close_window(closed())
    ledger = ledger_of(worker)
    assert (ledger.exported, ledger.dropped, ledger.in_flight) == (10, {"rate": 5, "filter": 3}, 2)
    assert exporter.windows[0].ledger.outputs["memory"].in_flight == 20
    worker.abandon()
    assert ledger_of(worker).dropped == {"rate": 5, "filter": 3, "closed": 2}
    assert worker.statistics().waiting_events == 0 == ledger_of(worker).in_flight


@pytest.mark.parametrize(
    ("results", "exported", "unsent", "dropped"),
    [
        (
            [DeliveryResult(0, 7, {"rate": 7, "filter": 7}), DeliveryResult(0, 1), DeliveryResult(5, 3)],
            7,
            0,
            {"rate": 3},
        ),
        ([DeliveryResult(0, 7, unsent=9), DeliveryResult(3, 1, unsent=1)], 7, 7, {}),
    ],
)
async def test_an_exporter_cannot_report_more_than_it_has(
    results: list[DeliveryResult], exported: int, unsent: int, dropped: dict[str, int], tmp_path: Path
) -> None:
    """Nor of windows that it never got: accounts stay whole."""
    async with running(Later(*results), tmp_path) as worker:
        worker.offer(batch())
        worker.close_window(closed())
    ledger = worker.statistics().ledger
    assert (ledger.offered, ledger.exported, ledger.unsent, ledger.dropped) == (10, exported, unsent, dropped)


async def test_an_export_that_raises_leaves_the_account_to_the_exporter(tmp_path: Path) -> None:
    """It has the events, and says what became of them."""
    exporter = Later(DeliveryResult(0, 10), fail={"export": OSError("some other events did not arrive")})
    async with running(exporter, tmp_path) as worker:
        worker.offer(batch())
        worker.close_window(closed())
    assert worker.statistics().errors == 1
    assert (ledger_of(worker).exported, ledger_of(worker).dropped) == (10, {})


async def test_windows_that_were_forgotten_are_still_finished(tmp_path: Path) -> None:
    """Their events count in the accounts of the run."""
    exporter = Later()
    async with running(exporter, tmp_path) as worker:
        for window in range(MAX_WINDOWS + 10):
            worker.offer(batch(window))
            worker.close_window(closed(window))
        await poll(lambda: worker.ledger(0) is None)
        exporter.results = [DeliveryResult(window, 8, {"rate": 2}) for window in range(MAX_WINDOWS + 10)]
    ledger = worker.statistics().ledger
    every = MAX_WINDOWS + 10
    assert (ledger.exported, ledger.dropped, ledger.in_flight) == (8 * every, {"rate": 2 * every}, 0)


class Keeper(Later):
    """An exporter that hangs in closing, and puts what it has into files when it is cancelled; or fails in that."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.unsent_files: UnsentFiles | None = None
        self.got = 0

    async def export(self, batch: EventBatch) -> None:
        await super().export(batch)
        self.got += len(batch)

    async def aclose(self) -> None:
        try:
            await super().aclose()
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            if self.error is not None:
                raise self.error from None
            self.results = [DeliveryResult(0, self.got, unsent=self.got - 2)]
            self.unsent_files = UnsentFiles("some/where", "nobody answered", "send some/where")
            raise

    def delivery_results(self) -> Iterable[DeliveryResult]:
        results, self.results = self.results, []
        return results


async def ended_late(exporter: Keeper, path: Path) -> ExporterWorker:
    """A worker whose exporter got 20 events and was cancelled in closing."""
    assert isinstance(exporter, SupportsUnsentFiles) and not isinstance(Later(), SupportsUnsentFiles)
    worker = ExporterWorker(exporter, run_facts(path), 1 << 20)
    worker.start()
    worker.offer(batch())
    worker.offer(batch())
    worker.finish()
    await poll(lambda: "aclose" in exporter.calls)
    worker.cancel()
    with anyio.fail_after(30):
        await worker.wait()
    worker.abandon()
    return worker


async def test_an_exporter_that_stores_unsent_events_ends_without_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it was cancelled: it is no error, and stored events count as exported and are reported."""
    stats = (await ended_late(Keeper(), tmp_path)).statistics()
    assert (stats.errors, stats.first_error, stats.waiting_events) == (0, "", 0)
    ledger = stats.ledger
    assert (ledger.offered, ledger.exported, ledger.unsent, ledger.dropped, ledger.in_flight) == (20, 20, 18, {}, 0)
    text = "2 of 20 events confirmed, 18 kept in some/where (nobody answered)"
    assert counted(ledger, stats.unsent_files) == text
    (record,) = caplog.records
    assert record.getMessage() == f"output memory: {text}{remedy(stats.unsent_files)}"
    assert remedy(stats.unsent_files).endswith("with: send some/where") and remedy(None) == ""


async def test_an_exporter_that_cannot_store_unsent_events_has_one_error(tmp_path: Path) -> None:
    """There is one error then: not that of the deadline as well."""
    worker = await ended_late(Keeper(OSError("the disk is full")), tmp_path)
    assert [str(error) for error in worker.raised.errors] == ["the disk is full"]
    assert worker.statistics().ledger.dropped == {"closed": 20}


@pytest.mark.parametrize(
    ("ledger", "unsent", "text"),
    [
        (OutputLedger(80, 80), None, "80 of 80 events"),
        (
            OutputLedger(80, 70, {"queue": 9, "cap": 0}, 1),
            None,
            "70 of 80 events, 9 dropped (queue), 1 not written yet",
        ),
        (OutputLedger(80, in_flight=80), None, "80 events not written yet"),
        (OutputLedger(8, 7, {"cap": 1}, 0, 7), None, "0 of 8 events confirmed, 7 kept, 1 dropped (cap)"),
        (
            OutputLedger(1234, 1234),
            UnsentFiles("d", "w", "c"),
            "1,234 of 1,234 events confirmed, the end of the stream kept in d (w)",
        ),
    ],
)
def test_the_outcome_of_events_in_words(ledger: OutputLedger, unsent: UnsentFiles | None, text: str) -> None:
    """The same ones everywhere."""
    assert counted(ledger, unsent) == text
