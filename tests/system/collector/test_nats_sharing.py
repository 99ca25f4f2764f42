"""Collectors that ingest from NATS share the streams, also when one joins or leaves: each event is in the result once."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.js import JetStreamContext

from stepscope.collector.merge.sources import gather
from stepscope.collector.nats import scheduling
from stepscope.collector.nats.coordination import Peers
from stepscope.collector.nats.scheduling import MAX_RELEASED, FairShare, is_complete_in_jetstream
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.exporters.stream.settings import LinkSettings
from tests.support.basics import poll
from tests.support.beside import running
from tests.support.jetstreams import Publisher, jetstream
from tests.support.journals import frame_numbers
from tests.support.nats import NatsServer
from tests.support.nats_sources import LEASE_SECONDS, Source, ingesting
from tests.support.ranks.streams import no_room

QUICK = LinkSettings(timeout=5.0, first_delay=0.01, longest_delay=0.05)


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
    with NatsServer(tmp_path / "jetstream") as started:
        yield started


def assigned(*sources: Source) -> list[int]:
    """Number of streams of each, the largest first."""
    return sorted((source.assigned for source in sources), reverse=True)


async def test_streams_are_shared(server: NatsServer, tmp_path: Path) -> None:
    """Two collectors have half of them each. A third gets its share while they stream, and releases it when it leaves."""
    names = ("one", "other", "third")
    async with jetstream(server.url) as context:
        publishers = [Publisher(context) for _ in range(20)]
        published = 0

        async def publish() -> None:
            nonlocal published
            for publisher in publishers:
                await publisher.begin()
            for count in itertools.count(1):
                for publisher in publishers:
                    await publisher.publish(count - 1, 1)
                published = count
                await asyncio.sleep(0.05)  # as a training does something else, too

        async with ingesting(tmp_path / "one", server.url) as one, ingesting(tmp_path / "other", server.url) as other:
            async with running(publish()):
                await poll(lambda: assigned(one, other) == [10, 10])
                async with ingesting(tmp_path / "third", server.url) as third:
                    await poll(lambda: assigned(one, other, third) == [7, 7, 6])
                    now = published
                    await poll(lambda: sum(third.next(publisher.stream) > now for publisher in publishers) >= 6)
                    # A collector does not show a stream that it released.
                    await poll(lambda: sum(len(source.streams.all) for source in (one, other, third)) == 20)
                await poll(lambda: assigned(one, other) == [10, 10])
            for publisher in publishers:
                await publisher.publish(published, 1)
                await publisher.end(published + 1)
            await poll(lambda: all(one.ended(each.stream) or other.ended(each.stream) for each in publishers))
    for publisher in publishers:
        journals = [tmp_path / name / "streams" / publisher.stream / "journal" for name in names]
        numbers = [frame_numbers(journal) for journal in journals if journal.exists()]
        assert all(one == list(range(len(one))) for one in numbers)
        assert max(map(len, numbers)) == published + 2


async def test_a_merge_has_each_event_once(server: NatsServer, tmp_path: Path) -> None:
    """Also of streams that moved to another directory: the first one has a part of them."""
    exporters = [NatsExporter(server.url, settings=QUICK) for _ in range(4)]
    for number, exporter in enumerate(exporters):
        await exporter.open(run_in(tmp_path / f"run{number}"))
        await exporter.export(batch_of(spans(["before"])))
    directories = [tmp_path / "one", tmp_path / "other"]
    async with ingesting(directories[0], server.url) as one:
        await poll(lambda: sum(one.next(exporter.stream) > 2 for exporter in exporters) == 4)
        async with ingesting(directories[1], server.url) as other:
            await poll(lambda: assigned(one, other) == [2, 2])
            for exporter in exporters:
                await exporter.export(batch_of(spans(["after", "it"])))
                await exporter.aclose()
            await poll(lambda: all(one.ended(each.stream) or other.ended(each.stream) for each in exporters))
    assert len([*directories[0].glob("streams/*")]) == 4 and len([*directories[1].glob("streams/*")]) == 2
    for sources in (directories, directories[::-1]):
        recordings, notes = gather(sources, no_room)
        assert not notes
        assert sorted(one.stream for one in recordings) == sorted(exporter.stream for exporter in exporters)
        assert [(one.events, one.ended) for one in recordings] == [(3, True)] * 4


async def test_an_incomplete_stream_does_not_move(server: NatsServer, tmp_path: Path) -> None:
    """Another collector could not read all of it; one that joins gets the streams that begin later."""
    async with jetstream(server.url) as context:
        publishers = [Publisher(context) for _ in range(4)]
        async with ingesting(tmp_path / "one", server.url) as one:
            await begun(publishers)
            await poll(lambda: sum(one.next(publisher.stream) == 5 for publisher in publishers) == 4)
            for number in range(1, 5):
                await context.delete_msg(layout.STREAM, number)
            for publisher in publishers:
                await publisher.publish(5, 1, oldest=5)
            async with ingesting(tmp_path / "other", server.url) as other:
                later = [Publisher(context) for _ in range(4)]
                await begun(later)
                await poll(lambda: (one.assigned, other.assigned) == (4, 4))
                await poll(lambda: other.stored() == {publisher.stream for publisher in later})


async def begun(publishers: Sequence[Publisher]) -> None:
    """Publishes the beginning of each."""
    for publisher in publishers:
        await publisher.begin()
        await publisher.publish(0, 5)


async def test_a_stream_is_acquired_beyond_the_share(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, if a collector that announces itself acquires nothing."""
    monkeypatch.setattr(scheduling, "PATIENCE", 0.5)
    async with jetstream(server.url) as context:
        bucket = await layout.bucket(context, layout.LEASES, LEASE_SECONDS)
        idle = Peers(context, bucket, LEASE_SECONDS)

        async def announce() -> None:
            while True:
                await idle.announce(0)
                await asyncio.sleep(LEASE_SECONDS / 6)

        publishers = [Publisher(context) for _ in range(4)]
        await begun(publishers)
        async with running(announce()), ingesting(tmp_path / "one", server.url) as one:
            await poll(lambda: len(one.stored()) == 4)


async def test_repeated_cancellation_leaves_nothing(server: NatsServer, tmp_path: Path) -> None:
    """No socket, no lease, and no value of its own, though it is cancelled again in each iteration of the loop while it ends."""
    async with jetstream(server.url) as context:
        publishers = [Publisher(context) for _ in range(4)]
        await begun(publishers)
        await layout.bucket(context, layout.LEASES, 3600)
        before = sockets()
        source = Source(tmp_path / "one", server.url)
        task = asyncio.create_task(source.nats.run())
        await poll(lambda: sum(source.next(publisher.stream) == 5 for publisher in publishers) == 4)
        assert len(await layout.keys(context, layout.LEASES)) == 5
        assert sockets() == before + 1
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        await poll(lambda: sockets() == before)
        assert await layout.keys(context, layout.LEASES) == set()


def sockets() -> int:
    """Number of sockets of this process."""
    return sum(os.readlink(file).startswith("socket:") for file in Path("/proc/self/fd").iterdir() if file.is_symlink())


async def test_completeness_in_jetstream(server: NatsServer) -> None:
    """A stream is complete if JetStream has its beginning, and does not delete it soon."""
    async with jetstream(server.url) as context:
        old, new, none = Publisher(context), Publisher(context), Publisher(context)
        await begun([old])
        assert await is_complete(context, old) and not await is_complete(context, none)
        await limit(context, max_bytes=1 << 20)
        for number in range(9):
            await old.publish(5 + number, 1, size=100_000)
        await begun([new])
        assert not await is_complete(context, old), "its beginning is deleted soon"
        assert await is_complete(context, new), "all others are deleted first"
        await limit(context, max_bytes=1 << 20, discard="new")
        assert await is_complete(context, old), "nothing is deleted to make room"
        await limit(context, max_bytes=-1)
        assert await is_complete(context, old)
        await limit(context, max_bytes=-1, max_age=1e6)
        assert await is_complete(context, old)
        await context.delete_msg(layout.STREAM, 1)
        assert not await is_complete(context, old)


async def is_complete(context: JetStreamContext, publisher: Publisher) -> bool:
    return await is_complete_in_jetstream(context, publisher.stream, await context.stream_info(layout.STREAM))


async def limit(context: JetStreamContext, **limits: object) -> None:
    """Changes the limits of the stream in JetStream."""
    untyped: Any = context
    config: Any = (await context.stream_info(layout.STREAM)).config
    await untyped.update_stream(config.evolve(**limits))


@given(st.lists(st.integers(0, 200), min_size=1, max_size=8), st.integers(0, 300))
def test_loads_become_even(loads: list[int], unassigned: int) -> None:
    """Whatever each has at first, none releases more than allowed, and in the end no two differ by more than one."""
    streams = sum(loads) + unassigned
    for _ in range(400):
        before = list(loads), unassigned
        for index in range(len(loads)):
            share = FairShare(loads[index], streams, loads[:index] + loads[index + 1 :])
            assert not (share.room and share.surplus) and share.surplus <= MAX_RELEASED
            acquired = min(share.room, unassigned)
            loads[index] += acquired - share.surplus
            unassigned += share.surplus - acquired
        if (loads, unassigned) == before:
            break
    assert unassigned == 0 and sum(loads) == streams
    assert max(loads) - min(loads) <= 1


def test_a_single_collector_acquires_everything() -> None:
    share = FairShare(assigned=3, streams=10, others=[])
    assert (share.room, share.surplus) == (7, 0)
