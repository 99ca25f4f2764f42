"""An outlet: one exporter's faults and slowness cost its own output only, and every event is accounted for."""

from __future__ import annotations

import asyncio
import resource
import threading
from pathlib import Path

import anyio
import pytest

from stepscope.exporters.memory import MemoryExporter, Method
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.exporter import SupportsEarlyClose
from stepscope.runtime.export.exporter_accounts import MAX_WINDOWS
from stepscope.runtime.export.exporter_worker import WINDOWS_WAITING, ExporterWorker
from stepscope.runtime.export.run import Run
from tests.support.basics import poll
from tests.support.exporter_workers import batch, closed, ledger_of, run_facts, running
from tests.support.raised import length


async def test_no_window_waits_for_one_that_cannot_be_opened(tmp_path: Path) -> None:
    """The events of its windows are dropped, those of later ones as well, and accounts of old windows are joined."""
    outlet = ExporterWorker(MemoryExporter(fail={"open": OSError("disk on fire")}), run_facts(tmp_path), 1 << 20)
    for index in range(3):
        outlet.offer(batch(index))
        outlet.close_window(closed(index))
    assert outlet.windows_waiting == 3
    outlet.finish()
    await outlet.run()
    for index in range(3, MAX_WINDOWS + 4):
        outlet.offer(batch(index))
        outlet.close_window(closed(index))
    assert outlet.windows_waiting == 0 and outlet.ledger(0) is None
    assert outlet.statistics().ledger.dropped == {"error": 10 * (MAX_WINDOWS + 4)}


@pytest.mark.parametrize("method", ["open", "export", "close_window", "aclose"])
async def test_what_a_method_raises_is_kept(method: Method, tmp_path: Path) -> None:
    """No exception leaves the outlet; each is stored with a note of where, and nothing is unaccounted for. An exporter without an
    output is not asked to write or to close one."""
    exporter = MemoryExporter(fail={method: OSError("disk on fire")})
    async with running(exporter, tmp_path) as outlet:
        outlet.offer(batch())
        outlet.close_window(closed())
    stats = outlet.statistics()
    assert stats.errors == 1
    assert "disk on fire" in stats.first_error
    assert method in outlet.raised.errors[0].__notes__[0]
    assert exporter.calls == (["open"] if method == "open" else ["open", "export", "close_window", "aclose"])
    lost = method in ("open", "export")
    assert stats.ledger.exported == (0 if lost else 10)
    assert stats.ledger.dropped == ({"error": 10} if lost else {})


class Reset(MemoryExporter):
    """Reads what a server says to each batch, on a connection that was lost."""

    async def open(self, run: Run) -> None:
        self._reader = asyncio.StreamReader()
        self._reader.set_exception(ConnectionResetError("by the server"))

    async def export(self, batch: EventBatch) -> None:
        await self._reader.readexactly(1)


async def test_a_lost_connection_is_kept_once(tmp_path: Path) -> None:
    """asyncio raises the same object each time: it is counted, and holds no further batch."""
    async with running(Reset(), tmp_path) as outlet:
        for _ in range(40):
            outlet.offer(batch())
    (error,) = outlet.raised.errors
    stats = outlet.statistics()
    assert (stats.errors, stats.first_error) == (40, "ConnectionResetError: by the server")
    assert stats.ledger.dropped == {"error": 400} and length(error) < 10


async def test_the_time_of_a_call_counts_while_it_lasts(tmp_path: Path) -> None:
    """An exporter that hangs never returns: without that it would be the quickest."""
    exporter = MemoryExporter(hang_in="export")
    async with running(exporter, tmp_path) as outlet:
        outlet.offer(batch())
        await poll(lambda: "export" in exporter.calls)
        before = outlet.statistics().busy_ns
        await poll(lambda: outlet.statistics().busy_ns > before)
        exporter.release()


async def test_a_cap_of_the_exporter_is_counted(tmp_path: Path) -> None:
    """Events that the exporter itself refused are no exported events."""
    exporter = MemoryExporter(max_bytes=700)
    async with running(exporter, tmp_path) as outlet:
        outlet.offer(batch())
        outlet.offer(batch())
    assert ledger_of(outlet).dropped == {"cap": 10}
    assert ledger_of(outlet).exported == 10


async def test_a_cancellation_that_the_exporter_made_up_is_its_error(tmp_path: Path) -> None:
    """Raising the loop's own CancelledError does not end the outlet's task."""
    fault = anyio.get_cancelled_exc_class()()

    class Cancelling(MemoryExporter):
        async def export(self, batch: EventBatch) -> None:
            if not self.batches:
                self.batches.append(batch)
                raise fault
            await super().export(batch)

    exporter = Cancelling()
    async with running(exporter, tmp_path) as outlet:
        outlet.offer(batch())
        outlet.offer(batch())
    assert outlet.statistics().errors == 1
    assert ledger_of(outlet).exported == 10


async def test_one_that_blocks_its_thread_costs_only_its_own_output(tmp_path: Path) -> None:
    """On threads of their own, the other gets everything; the one left behind is counted once, whatever it does later."""
    bad, good = MemoryExporter(block_in="export"), MemoryExporter()
    outlets = [ExporterWorker(exporter, run_facts(tmp_path), 1 << 20) for exporter in (bad, good)]
    for outlet in outlets:
        outlet.start()
        outlet.offer(batch())
        outlet.offer(batch())
        outlet.finish()
    with anyio.fail_after(30):
        await outlets[1].wait()
    outlets[0].cancel()
    for outlet in outlets:
        outlet.abandon()
    assert ledger_of(outlets[1]).exported == 20 and outlets[1].raised.errors == []
    assert ledger_of(outlets[0]).dropped == {"closed": 20}
    assert "deadline" in str(outlets[0].raised.errors[0])
    bad.release()
    with anyio.fail_after(30):
        await outlets[0].wait()
    assert ledger_of(outlets[0]).dropped == {"closed": 20} and ledger_of(outlets[0]).exported == 0


async def test_one_that_is_cancelled_may_still_close_its_output(tmp_path: Path) -> None:
    """A hanging export is cancelled at the deadline, and `aclose` is called after it."""
    exporter = MemoryExporter(hang_in="export")
    outlet = ExporterWorker(exporter, run_facts(tmp_path), 1 << 20)
    outlet.start()
    outlet.offer(batch())
    await poll(lambda: "export" in exporter.calls)
    outlet.cancel()
    with anyio.fail_after(30):
        await outlet.wait()
    outlet.abandon()
    assert exporter.calls == ["open", "export", "aclose"]
    assert ledger_of(outlet).dropped == {"closed": 10}


async def test_without_a_loop_an_exporter_has_failed(tmp_path: Path) -> None:
    """No descriptor is left for its loop: everything offered is counted, and the error says why."""
    exporter = MemoryExporter()
    outlet = ExporterWorker(exporter, run_facts(tmp_path), 1 << 20)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        outlet.offer(batch())
        outlet.start()
        with anyio.fail_after(30):
            await outlet.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    outlet.offer(batch())
    outlet.close_window(closed())
    await outlet.drained()
    await outlet.window_closed(0)
    outlet.abandon()
    assert exporter.calls == []
    assert ledger_of(outlet).dropped == {"error": 20}
    assert "open files" in str(outlet.raised.errors[0])


class Told(MemoryExporter):
    """Hangs in `export` until it is told of the end, and raises then if it should."""

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
async def test_one_that_gets_the_end_need_not_be_cancelled(error: Exception | None, when: str, tmp_path: Path) -> None:
    """It is told on its own thread, while its `export` awaits or before; what it raises is kept, and costs no event."""
    exporter = Told(error)
    assert isinstance(exporter, SupportsEarlyClose) and not isinstance(MemoryExporter(), SupportsEarlyClose)
    outlet = ExporterWorker(exporter, run_facts(tmp_path), 1 << 20)
    outlet.start()
    outlet.offer(batch())
    if when == "inside":
        await poll(lambda: exporter.end)
    outlet.finish()
    with anyio.fail_after(30):
        await outlet.wait()
    assert exporter.thread not in (0, threading.get_ident())
    assert ledger_of(outlet).exported == 10
    assert [str(kept) for kept in outlet.raised.errors] == ([str(error)] if error else [])


async def test_the_accounts_of_old_windows_are_added_up(tmp_path: Path) -> None:
    """A run may have millions of windows: the sums stay exact, and nobody waits for a window that is long over."""
    async with running(MemoryExporter(), tmp_path) as outlet:
        for index in range(MAX_WINDOWS + 50):
            outlet.offer(batch(index, 3))
            outlet.close_window(closed(index))
        await outlet.drained()
        for index in (0, MAX_WINDOWS + 49):
            await outlet.window_closed(index)
        assert outlet.ledger(0) is None and outlet.ledger(MAX_WINDOWS + 49) is not None
        assert ledger_of(outlet, MAX_WINDOWS + 49).exported == 3
    ledger = outlet.statistics().ledger
    assert ledger.offered == ledger.exported == 3 * (MAX_WINDOWS + 50)


async def test_one_that_closes_no_window_is_not_given_more_and_more(tmp_path: Path) -> None:
    """Windows are left out whole, and counted; when the exporter gets on, the next one says so."""
    exporter = MemoryExporter(hang_in="close_window")
    surplus = MAX_WINDOWS + 10
    async with running(exporter, tmp_path) as outlet:
        for index in range(WINDOWS_WAITING + surplus):
            outlet.offer(batch(index, 3))
            outlet.offer(batch(index, 2))
            outlet.close_window(closed(index))
        outlet.discard_window(WINDOWS_WAITING + surplus - 1)
        assert outlet.windows_waiting == WINDOWS_WAITING
        with anyio.fail_after(30):
            await outlet.window_closed(WINDOWS_WAITING + surplus - 1)
        stats = outlet.statistics()
        assert stats.windows_left_out == surplus
        assert stats.ledger.dropped == {"queue": 5 * surplus}
        exporter.release()
        await outlet.drained()
        outlet.offer(batch(WINDOWS_WAITING + surplus))
        outlet.close_window(closed(WINDOWS_WAITING + surplus))
    assert [window.index for window in exporter.windows] == [*range(WINDOWS_WAITING), WINDOWS_WAITING + surplus]
    assert f"{surplus} windows were not given" in exporter.windows[-1].diagnostics[-1]
    assert outlet.statistics().ledger.exported == 5 * WINDOWS_WAITING + 10


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
    async with running(exporter, tmp_path, max_bytes=100) as outlet:
        for window in range(50):
            outlet.offer(batch(window))
        assert not outlet.half_full()
        exporter.free.set()
    assert exporter.number == 500
    ledger = outlet.statistics().ledger
    assert (ledger.offered, ledger.exported, ledger.dropped) == (500, 500, {})


async def test_one_that_hangs_is_waited_for_once(tmp_path: Path) -> None:
    """With a queue that drops the oldest, each large batch finds it empty; nobody waits for it again."""
    exporter = MemoryExporter(hang_in="export")
    outlet = ExporterWorker(exporter, run_facts(tmp_path), 1000, drop_oldest=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outlet.run)
        outlet.offer(batch())
        await poll(lambda: "export" in exporter.calls)
        outlet.offer(batch())
        assert outlet.half_full()
        await outlet.wait_below_half()
        for _ in range(3):
            outlet.offer(batch(events=100))
            assert not outlet.half_full()
        exporter.release()
        outlet.finish()
