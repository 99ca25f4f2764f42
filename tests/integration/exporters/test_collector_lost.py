"""A collector that has lost what was confirmed to it, and connections that are lost: what follows can be read all the same."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from websockets.asyncio.server import ServerConnection

from stepscope.collector.files.store import Store
from stepscope.collector.live.startup_recovery import StartupRecovery
from stepscope.collector.live.streams import Streams
from stepscope.collector.runs.recording import Recording
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.address import Address
from stepscope.exporters.stream.exporter import CollectorExporter
from stepscope.exporters.stream.shipper import Shipper
from stepscope.exporters.stream.transport import Feed, LinkSettings
from stepscope.exporters.stream.websocket import WebSocketTransport
from tests.integration.exporters.test_collector_faults import websocket
from tests.support.basics import poll
from tests.support.collectors import collecting, free_port
from tests.support.streams import hello

QUICK = LinkSettings(first_delay=0.01, longest_delay=0.05)


async def test_segments_that_are_nowhere_any_more_are_counted(tmp_path: Path) -> None:
    """The rank has deleted what the first collector confirmed; the second one shows how many frames it lacks, also after a
    restart, and what it has can be read and merged."""
    port = free_port()
    settings = LinkSettings(first_delay=0.01, longest_delay=0.05, buffer_bytes=1 << 16)
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=settings)
    await exporter.open(msgspec.structs.replace(run_in(tmp_path / "run"), rank=3, metadata=lambda: {"model": "m"}))
    async with collecting(tmp_path / "one", port=port):
        for number in range(300):
            batch = batch_of(spans(["before"]), window=number)
            await exporter.export(batch)
            await exporter.close_window(window_of(number, batch))
            await poll(lambda: (shipper := exporter._shipper) and shipper.is_confirmed)  # pyright: ignore[reportPrivateUsage]
        assert sum(one.exported for one in exporter.delivery_results()) == 300
    await exporter.export(batch_of(spans(["after", "after"]), window=300))
    async with collecting(tmp_path / "two", port=port) as running:
        await exporter.aclose()
        shown = running.collector.streams.all[exporter.stream].missing
    (journal,) = (tmp_path / "two").glob("streams/*")
    recording = Recording.of(journal / "journal", exporter.stream)
    assert recording.run.rank == 3 and recording.metadata == {"model": "m"} and recording.ended
    assert 2 <= recording.events < 302 and shown > 0
    restarted = Streams(8)
    restoring = StartupRecovery(Store(CollectorSettings(directory=tmp_path / "two")), restarted)
    restoring.look()
    await restoring.run()
    # The index counts the event of a window that was cut by the loss.
    assert restarted.all[exporter.stream].events in (recording.events, recording.events - 1)


async def test_what_a_lost_connection_raises_is_logged_once(tmp_path: Path) -> None:
    """Whoever sent and whoever listened: nothing of it is left for the loop to complain of."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    journal = JournalExporter(tmp_path / "journal")
    await journal.open(run_in(tmp_path))
    for _ in range(16):
        noise = batch_of(spans(["x"] * 100), os.urandom(2_000_000))
        noise.events.flags.writeable = True
        noise.events["args_at"], noise.events["args_len"] = np.arange(100) * 20_000, 20_000
        await journal.export(noise)
    await journal.aclose()
    shipper = Shipper(journal.path)
    link: WebSocketTransport | None = None

    async def vanish(server: ServerConnection) -> None:
        await server.recv()
        await server.send(protocol.encode(protocol.Welcome(0, 1 << 20, protocol.MAX_MESSAGE)))
        await poll(lambda: blocked(link))
        server.transport.abort()

    async with websocket(vanish) as url:
        said, _ = protocol.decode(hello())
        assert isinstance(said, protocol.Hello)
        link = WebSocketTransport(Address(url, None), LinkSettings(first_delay=30), None, Feed(shipper, lambda: said))
        link.start()
        await poll(lambda: link.statistics().last_error)
        await link.close()
    shipper.close()
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


def blocked(link: WebSocketTransport | None) -> bool:
    """Whether a connection has more to send than is taken."""
    socket = None if link is None else link._socket  # pyright: ignore[reportPrivateUsage]
    return socket is not None and socket.transport.get_write_buffer_size() > 1 << 19
