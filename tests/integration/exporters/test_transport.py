"""Connections over which a journal is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.specimens import run_in
from stepscope.exporters.stream.protocol import Hello
from stepscope.exporters.stream.shipper import Shipper
from stepscope.exporters.stream.transport import Feed, LinkSettings, Transport
from tests.support.basics import poll


class Stubborn(Transport):
    """A connection whose library makes an error of its own of a cancellation."""

    def __init__(self, shipper: Shipper) -> None:
        super().__init__("nowhere", LinkSettings(first_delay=0.001, longest_delay=0.001), Feed(shipper, self._none))
        self.swallowed = 0

    def _none(self) -> Hello:
        raise AssertionError("nothing is said")

    async def _connection(self) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.swallowed += 1
            if self.swallowed == 3:
                raise
            raise ConnectionError("the connection is closed") from None


def transports() -> list[asyncio.Task[object]]:
    """Those that go on."""
    return [task for task in asyncio.all_tasks() if task.get_name() == "stepscope transport"]


async def test_a_transport_that_swallows_its_cancellation(tmp_path: Path) -> None:
    """It ends nevertheless, whether it is closed or aborted."""
    journal = JournalExporter(tmp_path / "journal")
    await journal.open(run_in(tmp_path))
    shipper = Shipper(journal.path)
    aborted, closed = Stubborn(shipper), Stubborn(shipper)
    for transport in (aborted, closed):
        transport.start()
        await asyncio.sleep(0)
    assert len(transports()) == 2
    await closed.close()
    assert len(transports()) == 1
    aborted.abort()
    aborted.abort()
    await poll(lambda: not transports())
    assert aborted.swallowed and closed.swallowed
    shipper.close()
    await journal.aclose()
