"""Collectors of a team share its partitions and each show all of its ranks, and nothing of other teams."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from benchmarks.cases.streaming.nats_ranks import Rank
from stepscope.collector.live.startup_recovery import StartupRecovery
from stepscope.collector.live.stream import State
from stepscope.collector.merge.sources import gather
from stepscope.collector.nats import source as nats_source
from stepscope.collector.nats.leases import Leases, room, surplus
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.connection import connect
from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.nats.names import PARTITIONS, Names, job_token, partition_of
from stepscope.exporters.nats.servers import NatsAccess, NatsLimits, Servers
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.exporters.stream.transport import LinkSettings
from tests.support.background_task import running
from tests.support.basics import ROOT, poll
from tests.support.collecting import CollectorProcess, collecting
from tests.support.jetstreams import NAMES, Publisher, connected, jetstream
from tests.support.journals import frame_numbers
from tests.support.nats import NatsServer
from tests.support.nats_sources import LEASE_SECONDS, Source, ingesting
from tests.support.ranks.streams import no_room

RANKS = 60
QUICK = LinkSettings(timeout=5.0, first_delay=0.01, longest_delay=0.05)


@pytest.fixture
def later_server(tmp_path: Path) -> Generator[NatsServer]:
    """A server that is not started yet."""
    with NatsServer(tmp_path / "jetstream", start=False) as made:
        yield made


async def shows_all(collector: CollectorProcess) -> None:
    """Waits until a collector lists each rank once."""
    async with asyncio.timeout(60):
        while True:
            ranks = sorted(view["rank"] for view in await asyncio.to_thread(collector.get, "/v1/ranks"))
            assert len(ranks) == len(set(ranks))
            if ranks == list(range(RANKS)):
                return
            await asyncio.sleep(0.1)


async def test_collectors_show_all_ranks_though_one_is_killed(later_server: NatsServer, tmp_path: Path) -> None:
    """None twice and none missing. Events that the killed one had not written are in the directories of the others."""
    later_server.start()
    directories = [tmp_path / name for name in ("one", "two", "three")]
    async with connected(later_server.url) as client:
        context = layout.jetstream(client)
        await layout.create(context, NAMES, NatsLimits())
        await layout.bucket(context, NAMES.leases, 3.0, direct=False)
        ranks = [Rank(client, NAMES, number, RANKS, "many") for number in range(RANKS)]
        for rank in ranks:
            await rank.begin()

        async def stream() -> None:
            while True:
                for rank in ranks:
                    await rank.publish(2)
                    await rank.summarize(10)
                await asyncio.sleep(0.2)

        with ExitStack() as stack:
            collectors = [
                await asyncio.to_thread(stack.enter_context, collecting(directory, "--from", later_server.url))
                for directory in directories
            ]
            async with running(stream()):
                for collector in collectors:
                    await shows_all(collector)
                before = {rank.stream for rank in ranks if (directories[0] / "streams" / rank.stream).exists()}
                assert before
                collectors[0].process.kill()
                await asyncio.sleep(3.0)
                for collector in collectors[1:]:
                    await shows_all(collector)
            for rank in ranks:
                await rank.publish(2)
                await rank.end()
            async with asyncio.timeout(60):
                while not all(is_whole(rank, directories[1:]) for rank in ranks):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            for collector in collectors[1:]:
                await shows_all(collector)


def is_whole(rank: Rank, directories: list[Path]) -> bool:
    """Whether one of these directories has a stream up to its end; each has its frames in order."""
    numbers: list[list[int]] = []
    for directory in directories:
        journal = directory / "streams" / rank.stream / "journal"
        if journal.exists():
            numbers.append(frame_numbers(journal))
            assert numbers[-1] == list(range(len(numbers[-1])))
    return max(map(len, numbers), default=0) == rank.next


async def test_a_rank_that_ended_at_another_collector_has_not_died(later_server: NatsServer, tmp_path: Path) -> None:
    """A collector that was not there when it ended asks for it as soon as it is there again; one that died has died."""
    later_server.start()
    async with connected(later_server.url) as client:
        ranks = [Rank(client, NAMES, number, 2, "job") for number in range(2)]
        async with ingesting(tmp_path / "one", later_server.url) as one:
            await poll(lambda: one.partitions)
            for rank in ranks:
                await rank.begin()
            await poll(lambda: all(one.next(rank.stream) for rank in ranks))
        async with ingesting(tmp_path / "other", later_server.url) as other:
            await ranks[0].end()
            await poll(lambda: other.ended(ranks[0].stream))
        again = Source(tmp_path / "one", later_server.url)
        restoring = StartupRecovery(again.store, again.streams)
        restoring.look()
        await restoring.run()
        streams = [again.streams.all[rank.stream] for rank in ranks]
        for stream in streams:
            stream.seen -= 3600
        assert [stream.state(time.monotonic()) for stream in streams] == [State.DIED, State.DIED]
        async with running(again.nats.run()):
            await poll(lambda: streams[0].state(time.monotonic()) is State.ENDED)
            await poll(lambda: streams[1].end_looked_up > 0)
            assert streams[1].state(time.monotonic()) is State.DIED


async def test_a_team_has_nothing_of_another(later_server: NatsServer, tmp_path: Path) -> None:
    """Not in its directory, not among what its collectors show."""
    later_server.start()
    async with (
        ingesting(tmp_path / "one", later_server.url, team="one") as one,
        ingesting(tmp_path / "other", later_server.url, team="other") as other,
        connected(later_server.url) as client,
    ):
        await poll(lambda: one.partitions and other.partitions)
        ranks = [Rank(client, Names(team), 0, 1, "job") for team in ("one", "other")]
        for rank in ranks:
            await rank.begin()
            await rank.summarize(1)
            await rank.end()
        for source, rank in zip((one, other), ranks, strict=True):
            await poll(lambda: source.ended(rank.stream))  # noqa: B023
            assert source.stored() == set(source.streams.all) == {rank.stream}


async def ignore(message: Msg) -> None:
    """Nobody wants it."""


@asynccontextmanager
async def logged_in(server: NatsServer, access: NatsAccess, inbox: str) -> AsyncGenerator[tuple[Client, list[str]]]:
    """A connection of a user, and what it was not allowed to do."""
    denied: list[str] = []

    async def note(error: Exception) -> None:
        denied.append(str(error))

    client = await connect(Servers(server.url, access), error_cb=note, inbox_prefix=inbox)
    try:
        yield client, denied
    finally:
        await client.close()


async def test_permissions_keep_jobs_apart(later_server: NatsServer, tmp_path: Path) -> None:
    """With those of the documentation ranks can send for their job, and for no other one; a collector for its team only."""
    text = (ROOT / "docs" / "collector.md").read_text()
    (example,) = re.findall(r"```\n(authorization: .*?)```", text, re.DOTALL)
    for user in ("RESNET", "COLLECTOR"):
        (tmp_path / user.lower()).touch(0o600)
        (tmp_path / user.lower()).write_text(f"secret-{user}")
        example = example.replace(f"${user}_PASSWORD", f'"secret-{user}"')
    access = {user: NatsAccess(user=user, password_file=tmp_path / user) for user in ("resnet", "collector")}
    later_server.configure(example)
    later_server.start()
    exporter = NatsExporter(later_server.url, team="vision", access=access["resnet"], settings=QUICK)
    async with ingesting(tmp_path / "collected", later_server.url, team="vision", access=access["collector"]) as source:
        await poll(lambda: source.partitions)
        assert not source.nats.view().problem
        await exporter.open(msgspec.structs.replace(run_in(tmp_path), job="resnet"))
        await exporter.export(batch_of(spans(["x"])))
        await exporter.aclose()
        await poll(lambda: source.ended(exporter.stream))
        assert not source.nats.view().problem
        stream = "0" * 32
        async with logged_in(later_server, access["resnet"], "stepscope.vision.resnet.inbox") as (client, denied):
            subjects = [
                f"stepscope.vision.bert.frames.0.{stream}",
                f"stepscope.vision.bert.live.{stream}",
                f"stepscope.vision.bert.orders.{stream}",
                f"stepscope.vision.resnet.orders.{stream}",
                f"$KV.stepscope-vision-hellos.bert.{stream}",
                "$JS.API.STREAM.PURGE.STEPSCOPE_VISION",
            ]
            for number, subject in enumerate(subjects, 1):
                await client.publish(subject, b"")
                await poll(lambda: len(denied) == number)  # noqa: B023
                assert "permissions violation for publish" in denied[-1].lower()
            for subject in ("stepscope.vision.bert.orders.>", "_INBOX.>", "stepscope.vision.>"):
                await layout.answer(client, subject, ignore)
                await client.flush()
            await poll(lambda: len(denied) == len(subjects) + 3)
            # Values of other jobs cannot be removed in a roundabout way.
            await layout.jetstream(client).publish(f"$KV.stepscope-vision-hellos.resnet.{stream}", b"")
            with pytest.raises(NatsError, match="rollup"):
                await layout.jetstream(client).publish(
                    f"$KV.stepscope-vision-hellos.resnet.{stream}", b"", headers={"Nats-Rollup": "all"}
                )
    assert source.stored() == {exporter.stream}


def test_tokens_of_jobs() -> None:
    """A name that fits is itself; two others never have one token, nor that of a name that fits."""
    assert job_token("resnet-50_a") == "resnet-50_a"
    others = ["resnet x4", "resnet_x4", "resnet.x4", "a" * 65, "", "é", "a.b", "*", ">"]
    tokens = [job_token(name) for name in others]
    assert len(set(tokens)) == len(others)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]*=[0-9a-f]{16}|resnet_x4", token) for token in tokens)
    assert job_token("resnet x4").startswith("resnet_x4=")


@pytest.mark.parametrize("team", ["", "Vision", "a.b", "a" * 33, "*"])
def test_names_that_no_team_has(team: str) -> None:
    with pytest.raises(ValueError, match="lower-case letters, digits"):
        NatsExporter("nats://127.0.0.1:1", team=team)


def partitions(*sources: Source) -> list[int]:
    """Number of partitions of each, the largest first."""
    return sorted((source.partitions for source in sources), reverse=True)


async def test_partitions_are_shared(server: NatsServer, tmp_path: Path) -> None:
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
                await poll(lambda: partitions(one, other) == [16, 16])
                async with ingesting(tmp_path / "third", server.url) as third:
                    await poll(lambda: partitions(one, other, third) == [11, 11, 10])
                    now = published
                    await poll(lambda: sum(map(len, (one.ahead(now), other.ahead(now), third.ahead(now)))) == 20)
                await poll(lambda: partitions(one, other) == [16, 16])
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
            await poll(lambda: partitions(one, other) == [16, 16])
            for exporter in exporters:
                await exporter.export(batch_of(spans(["after", "it"])))
                await exporter.aclose()
            await poll(lambda: all(one.ended(each.stream) or other.ended(each.stream) for each in exporters))
    assert len([*directories[0].glob("streams/*")]) == 4
    for sources in (directories, directories[::-1]):
        gathered = gather(sources, no_room)
        recordings = gathered.recordings
        assert not gathered.notes and not gathered.unreadable
        assert sorted(one.stream for one in recordings) == sorted(exporter.stream for exporter in exporters)
        assert [(one.events, one.ended) for one in recordings] == [(3, True)] * 4


async def test_frames_deleted_from_jetstream_are_in_the_directory_before(server: NatsServer, tmp_path: Path) -> None:
    """The collector that takes a partition over has the rest, and goes on."""
    directories = [tmp_path / "one", tmp_path / "other"]
    async with jetstream(server.url) as context:
        publisher = Publisher(context)
        async with ingesting(directories[0], server.url) as one:
            await publisher.begin()
            first = await publisher.publish(0, 5)
            await poll(lambda: one.next(publisher.stream) == 5)
        await context.delete_msg(NAMES.stream, first)
        async with ingesting(directories[1], server.url) as other:
            await publisher.publish(5, 5)
            await publisher.end(10)
            await poll(lambda: other.ended(publisher.stream))
    journals = [directory / "streams" / publisher.stream / "journal" for directory in directories]
    assert frame_numbers(journals[0]) == list(range(5))
    assert frame_numbers(journals[1]) == list(range(4, 11))  # the first one says whose it is


async def test_a_partition_is_acquired_beyond_the_share(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, if a collector that announces itself acquires nothing."""
    monkeypatch.setattr(nats_source, "PATIENCE", 0.5)
    async with jetstream(server.url) as context:
        bucket = await layout.bucket(context, NAMES.leases, LEASE_SECONDS, direct=False)
        idle = Leases(context, bucket, NAMES.leases, LEASE_SECONDS)

        async def announce() -> None:
            while True:
                await idle.announce(PARTITIONS - 1)
                await asyncio.sleep(LEASE_SECONDS / 6)

        async with running(announce()), ingesting(tmp_path / "one", server.url) as one:
            await poll(lambda: one.partitions == PARTITIONS)


async def test_a_lease_that_another_collector_has(server: NatsServer, tmp_path: Path) -> None:
    """As after a pause: the partition is left to the other one, and the rest is read as before."""
    async with jetstream(server.url) as context, ingesting(tmp_path / "one", server.url) as one:
        await poll(lambda: one.partitions == PARTITIONS)
        leases = await context.key_value(NAMES.leases)
        await leases.put("partition.7", b"another")
        publishers = [Publisher(context, stream=f"{number:08x}{'0' * 24}") for number in (7, 8)]
        for publisher in publishers:
            await publisher.begin()
        await poll(lambda: one.partitions == PARTITIONS - 1)
        for publisher in publishers:
            await publisher.publish(0, 1)
            await publisher.end(1)
        await poll(lambda: one.ended(publishers[1].stream))
        assert not one.ended(publishers[0].stream)
        # Nobody renews it, so it is free after a while.
        await poll(lambda: one.ended(publishers[0].stream))


async def test_repeated_cancellation_leaves_nothing(server: NatsServer, tmp_path: Path) -> None:
    """No socket, no lease, and no value of its own, though it is cancelled again in each iteration of the loop while it ends."""
    async with jetstream(server.url) as context:
        publishers = [Publisher(context) for _ in range(4)]
        for publisher in publishers:
            await publisher.begin()
            await publisher.publish(0, 5)
        await layout.bucket(context, NAMES.leases, 3600, direct=False)
        before = sockets()
        source = Source(tmp_path / "one", server.url)
        task = asyncio.create_task(source.nats.run())
        await poll(lambda: sum(source.next(publisher.stream) == 5 for publisher in publishers) == 4)
        await poll(lambda: source.partitions == PARTITIONS)
        assert sockets() == before + 2  # the second one is for summaries
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        await poll(lambda: sockets() == before)
        assert await layout.keys(context, NAMES.leases) == set()


def sockets() -> int:
    """Number of sockets of this process."""
    return sum(os.readlink(file).startswith("socket:") for file in Path("/proc/self/fd").iterdir() if file.is_symlink())


@given(st.lists(st.integers(0, PARTITIONS), min_size=1, max_size=8))
def test_loads_become_even(wanted: list[int]) -> None:
    """From any distribution, in the end all partitions are owned, no two collectors differ by more than one, and none moves."""
    loads: list[int] = []
    left = PARTITIONS
    for load in wanted:
        loads.append(min(load, left))
        left -= loads[-1]
    for _ in range(100):
        before = list(loads)
        for index in range(len(loads)):
            others = loads[:index] + loads[index + 1 :]
            acquired = min(room(loads[index], others), left)
            loads[index] += acquired
            left -= acquired
        for index in range(len(loads)):
            released = surplus(loads[index], loads[:index] + loads[index + 1 :])
            loads[index] -= released
            left += released
        if loads == before:
            break
    assert left == 0
    assert max(loads) - min(loads) <= 1


def test_a_stream_belongs_to_one_partition() -> None:
    assert [partition_of(f"{number:08x}{'f' * 24}") for number in (0, 31, 32, 0xFFFFFFFF)] == [0, 31, 0, 31]
