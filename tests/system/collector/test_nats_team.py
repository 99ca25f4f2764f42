"""A team's collectors each show all of its ranks, and nothing of other teams; jobs can be kept apart by permissions of NATS."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from benchmarks.cases.streaming.nats_ranks import Rank
from stepscope.collector.live.startup_recovery import StartupRecovery
from stepscope.collector.live.stream import State
from stepscope.exporters.nats import layout
from stepscope.exporters.nats.connection import connect
from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.nats.names import Names, job_token
from stepscope.exporters.nats.servers import NatsAccess, NatsLimits, Servers
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.exporters.stream.transport import LinkSettings
from tests.support.basics import ROOT, poll
from tests.support.beside import running
from tests.support.collecting import CollectorProcess, collecting
from tests.support.jetstreams import NAMES, connected
from tests.support.journals import frame_numbers
from tests.support.nats import NatsServer
from tests.support.nats_sources import Source, ingesting

RANKS = 60
QUICK = LinkSettings(timeout=5.0, first_delay=0.01, longest_delay=0.05)


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
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


async def test_collectors_show_all_ranks_though_one_is_killed(server: NatsServer, tmp_path: Path) -> None:
    """None twice and none missing. What the killed one had not written is in the directories of the others."""
    server.start()
    directories = [tmp_path / name for name in ("one", "two", "three")]
    async with connected(server.url) as client:
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
                await asyncio.to_thread(stack.enter_context, collecting(directory, "--from", server.url))
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


async def test_a_rank_that_ended_at_another_collector_has_not_died(server: NatsServer, tmp_path: Path) -> None:
    """A collector that was not there when it ended asks for it as soon as it is there again; one that died has died."""
    server.start()
    async with connected(server.url) as client:
        ranks = [Rank(client, NAMES, number, 2, "job") for number in range(2)]
        async with ingesting(tmp_path / "one", server.url) as one:
            await poll(lambda: one.partitions)
            for rank in ranks:
                await rank.begin()
            await poll(lambda: all(one.next(rank.stream) for rank in ranks))
        async with ingesting(tmp_path / "other", server.url) as other:
            await ranks[0].end()
            await poll(lambda: other.ended(ranks[0].stream))
        again = Source(tmp_path / "one", server.url)
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


async def test_a_team_has_nothing_of_another(server: NatsServer, tmp_path: Path) -> None:
    """Not in its directory, not among what its collectors show."""
    server.start()
    async with (
        ingesting(tmp_path / "one", server.url, team="one") as one,
        ingesting(tmp_path / "other", server.url, team="other") as other,
        connected(server.url) as client,
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


async def test_permissions_keep_jobs_apart(server: NatsServer, tmp_path: Path) -> None:
    """With those of the documentation ranks can send for their job, and for no other one; a collector for its team only."""
    text = (ROOT / "docs" / "collector.md").read_text()
    (example,) = re.findall(r"```\n(authorization: .*?)```", text, re.DOTALL)
    for user in ("RESNET", "COLLECTOR"):
        (tmp_path / user.lower()).touch(0o600)
        (tmp_path / user.lower()).write_text(f"secret-{user}")
        example = example.replace(f"${user}_PASSWORD", f'"secret-{user}"')
    access = {user: NatsAccess(user=user, password_file=tmp_path / user) for user in ("resnet", "collector")}
    server.configure(example)
    server.start()
    exporter = NatsExporter(server.url, team="vision", access=access["resnet"], settings=QUICK)
    async with ingesting(tmp_path / "collected", server.url, team="vision", access=access["collector"]) as source:
        await poll(lambda: source.partitions)
        assert not source.nats.view().problem
        await exporter.open(msgspec.structs.replace(run_in(tmp_path), job="resnet"))
        await exporter.export(batch_of(spans(["x"])))
        await exporter.aclose()
        await poll(lambda: source.ended(exporter.stream))
        assert not source.nats.view().problem
        stream = "0" * 32
        async with logged_in(server, access["resnet"], "stepscope.vision.resnet.inbox") as (client, denied):
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
