"""Collectors that take from NATS share the streams, whoever comes later or goes: each event is there once in the result."""

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
from stepscope.collector.nats import free
from stepscope.collector.nats.beginning import has_beginning
from stepscope.collector.nats.members import Members
from stepscope.collector.nats.share import MOST_GIVEN, Share
from stepscope.exporters.collector.settings import LinkSettings
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.specimens import batch_of, run_in, spans
from tests.support.basics import poll
from tests.support.beside import running
from tests.support.jetstreams import Publisher, jetstream
from tests.support.journals import frame_numbers
from tests.support.nats import NatsServer
from tests.support.ranks.streams import no_room
from tests.support.taking import LEASE_SECONDS, Source, taking

QUICK = LinkSettings(timeout=5.0, first_delay=0.01, longest_delay=0.05)


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
    with NatsServer(tmp_path / "jetstream") as started:
        yield started


def held(*sources: Source) -> list[int]:
    """How many streams each takes, the most first."""
    return sorted((source.held for source in sources), reverse=True)


async def test_streams_are_shared(server: NatsServer, tmp_path: Path) -> None:
    """Two have half of them each; one that joins gets its part while they stream, and gives it back when it goes."""
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
                await asyncio.sleep(0.05)  # as those who train do something else, too

        async with taking(tmp_path / "one", server.url) as one, taking(tmp_path / "other", server.url) as other:
            async with running(publish()):
                await poll(lambda: held(one, other) == [10, 10])
                async with taking(tmp_path / "third", server.url) as third:
                    await poll(lambda: held(one, other, third) == [7, 7, 6])
                    now = published
                    await poll(lambda: sum(third.next(publisher.stream) > now for publisher in publishers) >= 6)
                    # Who has given a stream away does not tell of it any more.
                    await poll(lambda: sum(len(source.streams.all) for source in (one, other, third)) == 20)
                await poll(lambda: held(one, other) == [10, 10])
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
    """Of streams that went from one directory to another; who gave them away has a part of them still."""
    exporters = [NatsExporter(server.url, settings=QUICK) for _ in range(4)]
    for number, exporter in enumerate(exporters):
        await exporter.open(run_in(tmp_path / f"run{number}"))
        await exporter.export(batch_of(spans(["before"])))
    directories = [tmp_path / "one", tmp_path / "other"]
    async with taking(directories[0], server.url) as one:
        await poll(lambda: sum(one.next(exporter.stream) > 2 for exporter in exporters) == 4)
        async with taking(directories[1], server.url) as other:
            await poll(lambda: held(one, other) == [2, 2])
            for exporter in exporters:
                await exporter.export(batch_of(spans(["after", "it"])))
                await exporter.aclose()
            await poll(lambda: all(one.ended(each.stream) or other.ended(each.stream) for each in exporters))
    assert len([*directories[0].glob("streams/*")]) == 4 and len([*directories[1].glob("streams/*")]) == 2
    for sources in (directories, directories[::-1]):
        recordings, said = gather(sources, no_room)
        assert not said
        assert sorted(one.stream for one in recordings) == sorted(exporter.stream for exporter in exporters)
        assert [(one.events, one.ended) for one in recordings] == [(3, True)] * 4


async def test_a_stream_without_its_beginning_stays(server: NatsServer, tmp_path: Path) -> None:
    """Who took it over would not have all of it; one who joins takes those that begin later."""
    async with jetstream(server.url) as context:
        publishers = [Publisher(context) for _ in range(4)]
        async with taking(tmp_path / "one", server.url) as one:
            await begun(publishers)
            await poll(lambda: sum(one.next(publisher.stream) == 5 for publisher in publishers) == 4)
            for number in range(1, 5):
                await context.delete_msg(layout.STREAM, number)
            for publisher in publishers:
                await publisher.publish(5, 1, oldest=5)
            async with taking(tmp_path / "other", server.url) as other:
                later = [Publisher(context) for _ in range(4)]
                await begun(later)
                await poll(lambda: (one.held, other.held) == (4, 4))
                await poll(lambda: other.kept() == {publisher.stream for publisher in later})


async def begun(publishers: Sequence[Publisher]) -> None:
    """Publishes the beginning of each."""
    for publisher in publishers:
        await publisher.begin()
        await publisher.publish(0, 5)


async def test_what_one_does_not_take_others_take(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that is there and takes nothing holds nothing up for long."""
    monkeypatch.setattr(free, "PATIENCE", 0.5)
    async with jetstream(server.url) as context:
        bucket = await layout.bucket(context, layout.LEASES, LEASE_SECONDS)
        idle = Members(context, bucket, LEASE_SECONDS)

        async def be_there() -> None:
            while True:
                await idle.tell(0)
                await asyncio.sleep(LEASE_SECONDS / 6)

        publishers = [Publisher(context) for _ in range(4)]
        await begun(publishers)
        async with running(be_there()), taking(tmp_path / "one", server.url) as one:
            await poll(lambda: len(one.kept()) == 4)


async def test_who_is_told_to_end_many_times_leaves_nothing(server: NatsServer, tmp_path: Path) -> None:
    """No socket, no lease, and no sign of itself, though it is cancelled again at each turn of the loop while it ends."""
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
    """How many this process has open."""
    return sum(os.readlink(file).startswith("socket:") for file in Path("/proc/self/fd").iterdir() if file.is_symlink())


async def test_beginnings(server: NatsServer) -> None:
    """They are there as long as JetStream has them, and does not throw them away soon."""
    async with jetstream(server.url) as context:
        old, new, none = Publisher(context), Publisher(context), Publisher(context)
        await begun([old])
        assert await beginning(context, old) and not await beginning(context, none)
        await limit(context, max_bytes=1 << 20)
        for number in range(9):
            await old.publish(5 + number, 1, size=100_000)
        await begun([new])
        assert not await beginning(context, old), "there is hardly any room"
        assert await beginning(context, new), "all others go first"
        await limit(context, max_bytes=1 << 20, discard="new")
        assert await beginning(context, old), "nothing goes to make room"
        await limit(context, max_bytes=-1)
        assert await beginning(context, old)
        await limit(context, max_bytes=-1, max_age=1e6)
        assert await beginning(context, old)
        await context.delete_msg(layout.STREAM, 1)
        assert not await beginning(context, old)


async def beginning(context: JetStreamContext, publisher: Publisher) -> bool:
    return await has_beginning(context, publisher.stream, await context.stream_info(layout.STREAM))


async def limit(context: JetStreamContext, **limits: object) -> None:
    """Changes what JetStream keeps."""
    untyped: Any = context
    config: Any = (await context.stream_info(layout.STREAM)).config
    await untyped.update_stream(config.evolve(**limits))


@given(st.lists(st.integers(0, 200), min_size=1, max_size=8), st.integers(0, 300))
def test_shares_become_even(loads: list[int], free: int) -> None:
    """Whatever each has at first: nobody gives more than it may, and in the end nobody has two more than another."""
    streams = sum(loads) + free
    for _ in range(400):
        before = list(loads), free
        for index in range(len(loads)):
            share = Share(loads[index], streams, loads[:index] + loads[index + 1 :])
            assert not (share.room and share.surplus) and share.surplus <= MOST_GIVEN
            took = min(share.room, free)
            loads[index] += took - share.surplus
            free += share.surplus - took
        if (loads, free) == before:
            break
    assert free == 0 and sum(loads) == streams
    assert max(loads) - min(loads) <= 1


def test_who_is_alone_takes_everything() -> None:
    share = Share(held=3, streams=10, others=[])
    assert (share.room, share.surplus) == (7, 0)
