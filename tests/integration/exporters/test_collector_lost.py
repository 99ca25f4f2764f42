"""A collector that has lost what was confirmed to it, and connections that are lost: what follows can be read all the same."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.server import ServerConnection

from stepscope.collector.files.store import Store
from stepscope.collector.live.restoring import Restoring
from stepscope.collector.live.streams import Streams
from stepscope.collector.runs.recording import Recording
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.collector import delivery, protocol
from stepscope.exporters.collector.address import Address
from stepscope.exporters.collector.backlog import Backlog
from stepscope.exporters.collector.exporter import CollectorExporter
from stepscope.exporters.collector.link import Link
from stepscope.exporters.collector.piece import Piece
from stepscope.exporters.collector.settings import LinkSettings
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from tests.integration.exporters.test_collector_exporter import connecting
from tests.integration.exporters.test_collector_faults import websocket
from tests.support.basics import poll
from tests.support.collectors import collecting, free_port, journals
from tests.support.streams import hello

QUICK = LinkSettings(first_delay=0.01, longest_delay=0.05)


async def test_what_waits_is_read_with_names_that_were_lost(tmp_path: Path) -> None:
    """They are sent before the frames that were encoded while nobody was there; how many are missing is known, and is
    known again after a restart."""
    port = free_port()
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=QUICK)
    run = msgspec.structs.replace(run_in(tmp_path), rank=3, metadata=lambda: {"model": "m"})
    await exporter.open(run)
    async with collecting(tmp_path / "one", port=port):
        for _ in range(12):
            await exporter.export(batch_of(spans(["before"])))
        await poll(lambda: not len(exporter._backlog))  # pyright: ignore[reportPrivateUsage]
    await exporter.export(batch_of(spans(["before", "after"])))
    async with collecting(tmp_path / "two", port=port) as running:
        await exporter.aclose()
        shown = running.collector.streams.all[exporter.stream].missing
    (journal,) = journals(tmp_path / "two")
    names = Counter[str]()
    with JournalReader(journal) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                spans_only = item.events[item.events["kind"] == int(Kind.SPAN)]
                names.update(strings.name_of(event) for event in spans_only)
        assert names == Counter(before=1, after=1)
        assert reader.run is not None and reader.run.rank == 3 and reader.metadata == {"model": "m"}
        assert reader.damage.lost_frames == shown > 0
    restarted = Streams(8)
    restoring = Restoring(Store(CollectorSettings(directory=tmp_path / "two")), restarted)
    restoring.look()
    await restoring.run()
    assert restarted.all[exporter.stream].missing == shown


async def test_what_is_delivered_to_another_collector_can_be_merged(tmp_path: Path) -> None:
    """The first frames were confirmed by one that is gone, and nobody has them any more to say whose the others are."""
    port = free_port()
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=QUICK)
    await exporter.open(msgspec.structs.replace(run_in(tmp_path / "run"), rank=3))
    async with collecting(tmp_path / "one", port=port):
        await exporter.export(batch_of(spans(["before"])))
        await poll(lambda: exporter.settle())
    await exporter.export(batch_of(spans(["after", "after"])))
    closing = asyncio.ensure_future(exporter.aclose())
    await asyncio.sleep(0)  # it waits for the collector then
    await end_tasks(closing)
    assert exporter.kept
    (parcel,) = delivery.parcels(tmp_path / "run")
    async with collecting(tmp_path / "two") as running:
        await delivery.deliver(parcel, connecting(running.url), 20.0)
        shown = running.collector.streams.all[exporter.stream].missing
    parcel.close()
    (journal,) = journals(tmp_path / "two")
    recording = Recording.of(journal, exporter.stream)
    assert recording.run.rank == 3 and recording.events == 2 and recording.ended
    assert recording.damage.lost_frames == shown > 0
    restarted = Streams(8)
    restoring = Restoring(Store(CollectorSettings(directory=tmp_path / "two")), restarted)
    restoring.look()
    await restoring.run()
    assert restarted.all[exporter.stream].events == 2 and restarted.all[exporter.stream].missing == shown


async def test_what_a_lost_connection_raises_is_told_once() -> None:
    """Whoever sent and whoever listened: nothing of it is left for the loop to complain of."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    backlog = Backlog(64 << 20)
    for number in range(64):
        backlog.put(Piece(number, 1, 1 << 20, Counter(), os.urandom(1 << 20)))
    link: Link | None = None

    async def vanish(server: ServerConnection) -> None:
        await server.recv()
        await server.send(protocol.encode(protocol.Welcome(0, 1 << 20)))
        await poll(lambda: blocked(link))
        server.transport.abort()

    async with websocket(vanish) as url:
        said, _ = protocol.decode(hello())
        assert isinstance(said, protocol.Hello)
        link = Link(Address(url, None), LinkSettings(first_delay=30), None, backlog, lambda: said)
        link.start()
        await poll(lambda: link.statistics().last_error)
        await link.close()
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


def blocked(link: Link | None) -> bool:
    """Whether a connection has more to send than is taken."""
    socket = None if link is None else link._socket  # pyright: ignore[reportPrivateUsage]
    return socket is not None and socket.transport.get_write_buffer_size() > 1 << 19
