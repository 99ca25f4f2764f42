"""Exporters that tell later what became of events, and those that keep what they cannot send: the accounts of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import anyio
import pytest

from stepscope.exporters.memory import MemoryExporter, Method
from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.exporter import DeliveryResult, SupportsDeferredAck, SupportsUnsentFiles, UnsentFiles
from stepscope.runtime.export.exporter_accounts import MAX_WINDOWS, counted, remedy
from stepscope.runtime.export.exporter_worker import ExporterWorker
from tests.support.basics import poll
from tests.support.exporter_workers import batch, closed, ledger_of, run_facts, running


class Later(MemoryExporter):
    """An exporter that tells later what became of events."""

    def __init__(self, *told: DeliveryResult, fail: Mapping[Method, BaseException] | None = None) -> None:
        super().__init__(fail=fail)
        self.told = list(told)
        """What it tells when a window closes."""

    def delivery_results(self) -> Iterable[DeliveryResult]:
        if "close_window" not in self.calls:
            return []
        told, self.told = self.told, []
        return told


async def test_events_are_in_flight_until_an_exporter_reports_them(tmp_path: Path) -> None:
    """Also those of a window that is closed; then they are exported, or dropped for its reasons."""
    exporter = Later(DeliveryResult(0, 12, {"rate": 5, "filter": 3}))
    assert isinstance(exporter, SupportsDeferredAck) and not isinstance(MemoryExporter(), SupportsDeferredAck)
    async with running(exporter, tmp_path) as outlet:
        outlet.offer(batch())
        outlet.offer(batch())
        await poll(lambda: len(exporter.batches) == 2 and outlet.statistics().ledger.in_flight == 20)
        assert outlet.statistics().waiting_events == 20
        outlet.close_window(closed())
    ledger = ledger_of(outlet)
    assert (ledger.exported, ledger.dropped, ledger.in_flight) == (12, {"rate": 5, "filter": 3}, 0)
    assert exporter.windows[0].ledger.outputs["memory"].in_flight == 20
    assert outlet.statistics().waiting_events == 0


async def test_what_an_exporter_never_reports_is_dropped(tmp_path: Path) -> None:
    """Nothing stays in flight for ever."""
    exporter = Later(DeliveryResult(0, 4))
    async with running(exporter, tmp_path) as outlet:
        outlet.offer(batch())
        outlet.close_window(closed())
    assert ledger_of(outlet).in_flight == 6
    outlet.abandon()
    ledger = ledger_of(outlet)
    assert (ledger.exported, ledger.dropped, ledger.in_flight) == (4, {"closed": 6}, 0)


@pytest.mark.parametrize(
    ("told", "exported", "unsent", "dropped"),
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
    told: list[DeliveryResult], exported: int, unsent: int, dropped: dict[str, int], tmp_path: Path
) -> None:
    """Nor of windows that it was never given: accounts stay whole."""
    async with running(Later(*told), tmp_path) as outlet:
        outlet.offer(batch())
        outlet.close_window(closed())
    ledger = outlet.statistics().ledger
    assert (ledger.offered, ledger.exported, ledger.unsent, ledger.dropped) == (10, exported, unsent, dropped)


async def test_an_export_that_raises_leaves_the_account_to_the_exporter(tmp_path: Path) -> None:
    """It has the events, and says what became of them."""
    exporter = Later(DeliveryResult(0, 10), fail={"export": OSError("some other events did not arrive")})
    async with running(exporter, tmp_path) as outlet:
        outlet.offer(batch())
        outlet.close_window(closed())
    assert outlet.statistics().errors == 1
    assert (ledger_of(outlet).exported, ledger_of(outlet).dropped) == (10, {})


async def test_windows_that_were_forgotten_are_still_finished(tmp_path: Path) -> None:
    """Their events count in the accounts of the run."""
    exporter = Later()
    async with running(exporter, tmp_path) as outlet:
        for window in range(MAX_WINDOWS + 10):
            outlet.offer(batch(window))
            outlet.close_window(closed(window))
        await poll(lambda: outlet.ledger(0) is None)
        exporter.told = [DeliveryResult(window, 8, {"rate": 2}) for window in range(MAX_WINDOWS + 10)]
    ledger = outlet.statistics().ledger
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
            self.told = [DeliveryResult(0, self.got, unsent=self.got - 2)]
            self.unsent_files = UnsentFiles("some/where", "nobody answered", "send some/where")
            raise

    def delivery_results(self) -> Iterable[DeliveryResult]:
        told, self.told = self.told, []
        return told


async def ended_late(exporter: Keeper, path: Path) -> ExporterWorker:
    """An outlet whose exporter was given 20 events and was cancelled in closing."""
    assert isinstance(exporter, SupportsUnsentFiles) and not isinstance(Later(), SupportsUnsentFiles)
    outlet = ExporterWorker(exporter, run_facts(path), 1 << 20)
    outlet.start()
    outlet.offer(batch())
    outlet.offer(batch())
    outlet.finish()
    await poll(lambda: "aclose" in exporter.calls)
    outlet.cancel()
    with anyio.fail_after(30):
        await outlet.wait()
    outlet.abandon()
    return outlet


async def test_one_that_keeps_what_it_cannot_send_has_ended_in_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it was cancelled: it is no error, and what is kept counts as exported and is said."""
    stats = (await ended_late(Keeper(), tmp_path)).statistics()
    assert (stats.errors, stats.first_error, stats.waiting_events) == (0, "", 0)
    ledger = stats.ledger
    assert (ledger.offered, ledger.exported, ledger.unsent, ledger.dropped, ledger.in_flight) == (20, 20, 18, {}, 0)
    said = "2 of 20 events confirmed, 18 kept in some/where (nobody answered)"
    assert counted(ledger, stats.unsent_files) == said
    (record,) = caplog.records
    assert record.getMessage() == f"output memory: {said}{remedy(stats.unsent_files)}"
    assert remedy(stats.unsent_files).endswith("with: send some/where") and remedy(None) == ""


async def test_one_that_cannot_keep_it_says_itself_what_is_wrong(tmp_path: Path) -> None:
    """There is one error then: not that of the deadline as well."""
    outlet = await ended_late(Keeper(OSError("the disk is full")), tmp_path)
    assert [str(error) for error in outlet.raised.errors] == ["the disk is full"]
    assert outlet.statistics().ledger.dropped == {"closed": 20}


@pytest.mark.parametrize(
    ("ledger", "kept", "text"),
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
def test_the_outcome_of_events_in_words(ledger: OutputLedger, kept: UnsentFiles | None, text: str) -> None:
    """The same ones everywhere."""
    assert counted(ledger, kept) == text
