"""A collector that takes streams from NATS: it shows failures and tries again, and nobody takes again what has ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import APIError

from stepscope.exporters.nats import layout
from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.nats.names import PARTITIONS, partition_of
from stepscope.exporters.nats.servers import NatsLimits
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.transport import LinkSettings
from tests.support.basics import poll
from tests.support.collecting import collecting, send_request, wait_until
from tests.support.jetstreams import NAMES, Publisher, connected, jetstream, publish_stream
from tests.support.nats import NatsServer
from tests.support.nats_sources import ingesting

QUICK = LinkSettings(timeout=2.0, first_delay=0.01, longest_delay=0.1)


@pytest.fixture
def server(tmp_path: Path) -> Generator[NatsServer]:
    """A server that is not started yet."""
    with NatsServer(tmp_path / "jetstream", start=False) as made:
        yield made


async def test_a_server_that_comes_later(server: NatsServer, tmp_path: Path) -> None:
    """First there is none, then one without JetStream: both failures are shown, and streams are ingested as soon as possible."""
    async with ingesting(tmp_path / "collected", server.url) as source:
        await poll(lambda: "refused" in source.nats.view().problem.lower())
        assert not source.nats.view().connected
        server.start(jetstream=False)
        await poll(lambda: "no JetStream" in source.nats.view().problem)
        server.kill()
        server.start()
        async with jetstream(server.url) as context:
            publisher = Publisher(context)
            await publish_stream(publisher)
            await poll(lambda: source.ended(publisher.stream))
        await poll(lambda: not source.nats.view().problem)


async def test_a_permission_that_comes_later(server: NatsServer, tmp_path: Path) -> None:
    """Both sides name what is not allowed, instead of a timeout."""
    server.configure(
        'authorization { users: [ { user: a, password: a, permissions: { publish: { deny: "$JS.API.>" } } } ] }\n'
        "no_auth_user: a"
    )
    server.start()
    exporter = NatsExporter(server.url, settings=QUICK)
    await exporter.open(run_in(tmp_path))
    async with ingesting(tmp_path / "collected", server.url) as source:
        await poll(lambda: "ermissions" in source.nats.view().problem)
        await poll(lambda: (found := exporter.statistics()) and "ermissions" in found.last_error)
        server.kill()
        server.configure("")
        server.start()
        await exporter.aclose()
        await poll(lambda: source.ended(exporter.stream))
        await poll(lambda: not source.nats.view().problem)


async def test_a_stream_that_somebody_deletes(server: NatsServer, tmp_path: Path) -> None:
    """Exporters and collectors create it again, and what is published then is ingested."""
    server.start()
    exporter = NatsExporter(server.url, settings=QUICK)
    await exporter.open(run_in(tmp_path))
    async with ingesting(tmp_path / "collected", server.url) as source:
        await poll(lambda: (found := source.streams.all.get(exporter.stream)) and found.next)
        async with jetstream(server.url) as context:
            await context.delete_stream(NAMES.stream)
            await exporter.export(batch_of(spans(["x"])))
            await exporter.aclose()
        await poll(lambda: source.ended(exporter.stream))


async def test_buckets_that_somebody_deletes(server: NatsServer, tmp_path: Path) -> None:
    """Exporters and collectors create them again, and streams that begin then are stored."""
    server.start()
    async with ingesting(tmp_path / "collected", server.url) as source, jetstream(server.url) as context:
        await poll(lambda: source.partitions == PARTITIONS)
        for name in (NAMES.hellos, NAMES.leases, NAMES.ended):
            await context.delete_stream(f"KV_{name}")
        exporter = NatsExporter(server.url, settings=QUICK)
        await exporter.open(run_in(tmp_path))
        await exporter.aclose()
        await poll(lambda: source.ended(exporter.stream))
        await poll(lambda: not source.nats.view().problem)


async def test_an_ended_stream_is_not_read_again(server: NatsServer, tmp_path: Path) -> None:
    """Though JetStream still has it; after the loss of the directory it can be stored again."""
    server.start()
    async with jetstream(server.url) as context:
        first, second = Publisher(context), Publisher(context)
        async with ingesting(tmp_path / "one", server.url) as one:
            await publish_stream(first)
            await poll(lambda: one.ended(first.stream) and not one.nats.view().streams)
        assert await layout.keys(context, NAMES.leases) == set()
        assert (await context.stream_info(NAMES.stream)).state.messages == 2
        async with ingesting(tmp_path / "other", server.url) as other:
            await publish_stream(second)
            await poll(lambda: other.ended(second.stream) and not other.nats.view().streams)
            assert other.stored() == {second.stream}
        await (await context.key_value(NAMES.ended)).delete(first.names.key)
        async with ingesting(tmp_path / "third", server.url) as third:
            await poll(lambda: third.ended(first.stream))
            assert third.stored() == {first.stream}


async def test_hellos_expire(server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hello expires later than the messages of its stream, and is published again until then; an older bucket has no limit."""
    server.start()
    exporter = NatsExporter(server.url, limits=NatsLimits(max_age=300.0), settings=QUICK)
    await exporter.open(run_in(tmp_path))
    await poll(lambda: (found := exporter.statistics()) and found.confirmed)
    async with jetstream(server.url) as context:
        hellos = await context.key_value(NAMES.hellos)
        assert (await hellos.status()).ttl == 300.0 + layout.HELLO_SPARE_S
        await context.delete_stream(f"KV_{NAMES.hellos}")
        await layout.bucket(context, NAMES.hellos)
    await exporter.aclose()
    monkeypatch.setattr(layout, "HELLO_SPARE_S", 0.2)
    exporter = NatsExporter(server.url, settings=QUICK)
    await exporter.open(run_in(tmp_path / "second"))
    async with jetstream(server.url) as context:
        await poll(lambda: (found := exporter.statistics()) and found.confirmed)
        (key,) = {key for key in await layout.keys(context, NAMES.hellos) if key.endswith(exporter.stream)}
        await layout.forget(context, NAMES.hellos, key)
        async with asyncio.timeout(30):
            while key not in await layout.keys(context, NAMES.hellos):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await exporter.aclose()


async def test_a_bucket_is_bounded(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values that nobody repeats go first, and none is larger than a Hello may be."""
    server.start()
    monkeypatch.setattr(layout, "MAX_KEYS", 3)
    async with jetstream(server.url) as context:
        await layout.bucket(context, NAMES.hellos)
        for key in ("job.a", "job.b", "job.a", "job.c", "job.d"):
            await layout.put(context, NAMES.hellos, key, b"Hello")
        assert await layout.keys(context, NAMES.hellos) == {"job.a", "job.c", "job.d"}
        with pytest.raises(APIError):
            await layout.put(context, NAMES.hellos, "job.e", bytes(layout.MAX_VALUE + 1))


async def test_messages_that_name_no_stream(server: NatsServer, tmp_path: Path) -> None:
    """An id that is none, a stream of another partition, a summary of a stream that nobody knows: the others are stored."""
    server.start()
    async with jetstream(server.url) as context, ingesting(tmp_path / "collected", server.url) as source:
        good = Publisher(context)
        for subject in ("frames.3.nobody", f"frames.{(partition_of(good.stream) + 1) % PARTITIONS}.{good.stream}"):
            await context.publish(f"stepscope.default.job.{subject}", b"")
        await publish_stream(good)
        await poll(lambda: source.ended(good.stream))
        await poll(lambda: source.nats.view().malformed_messages == 2)
        async with connected(server.url) as client:
            summary = protocol.encode(protocol.StepSummary(1, 0, 0, [], b""))
            await client.publish(f"stepscope.default.job.live.{good.stream}", summary)
            await poll(lambda: source.nats.view().unknown_summaries == 1)
            for message in (b"", protocol.encode(protocol.Ack(1))):
                await client.publish(good.names.live, message)
            await poll(lambda: source.nats.view().malformed_messages == 4)
        assert source.stored() == {good.stream}


def test_malformed_messages_are_shown(server: NatsServer, tmp_path: Path) -> None:
    """On the page, to Prometheus, in the audit and in the log. The rest of the stream is ingested."""
    server.start()

    async def publish() -> str:
        async with jetstream(server.url) as context:
            publisher = Publisher(context)
            await publisher.begin()
            for _ in range(3):
                await publisher.send(b"\xff" * 10)
            await publisher.publish(0, 5)
            await publisher.end(5)
            return publisher.stream

    stream = asyncio.run(publish())
    with collecting(tmp_path / "collected", "--from", server.url) as collector:
        wait_until(lambda: collector.get("/v1/job")["nats"]["malformed_messages"] == 3)
        wait_until(lambda: collector.get("/v1/job")["ended"] == 1)
        text = send_request(f"{collector.url}/metrics").body.decode()
        assert "stepscope_nats_malformed_messages_total 3.0" in text and "stepscope_nats_up 1.0" in text
        _, log = collector.stop()
    assert sum(stream in line and "claims" in line for line in log.splitlines()) == 3
    assert (tmp_path / "collected" / "refused.jsonl").read_text().count(stream) == 3


async def test_the_stream_has_the_limits_of_the_first_exporter(server: NatsServer, tmp_path: Path) -> None:
    """The first exporter creates the stream with its limits; an existing stream stays as it is."""
    server.start()
    limits = NatsLimits(max_bytes=1 << 28, max_age=300.0, discard="new")
    for requested in (limits, NatsLimits(max_bytes=1 << 20)):
        exporter = NatsExporter(server.url, limits=requested, settings=QUICK)
        await exporter.open(run_in(tmp_path))
        await exporter.aclose()
    async with jetstream(server.url) as context:
        found = (await context.stream_info(NAMES.stream)).config
        assert (found.max_bytes, found.max_age, found.discard) == (1 << 28, 300.0, "new")
        assert found.duplicate_window == 300.0


async def test_a_limit_that_the_server_cannot_reserve(server: NatsServer, tmp_path: Path) -> None:
    """The error names the setting."""
    server.start()
    exporter = NatsExporter(server.url, limits=NatsLimits(max_bytes=1 << 60), settings=QUICK)
    await exporter.open(run_in(tmp_path))
    await poll(lambda: (found := exporter.statistics()) and "max_bytes" in found.last_error)
    async with jetstream(server.url):  # with limits that it can reserve
        await exporter.aclose()
    assert not (tmp_path / "unsent").exists()


async def test_a_full_stream_that_takes_nothing_more(server: NatsServer, tmp_path: Path) -> None:
    """Exporters publish the rest when there is room."""
    server.start()
    async with jetstream(server.url) as context:
        await context.delete_stream(NAMES.stream)
        exporter = NatsExporter(server.url, limits=NatsLimits(max_bytes=1 << 12, discard="new"), settings=QUICK)
        await exporter.open(run_in(tmp_path))
        await exporter.export(batch_of(spans([os.urandom(8).hex() for _ in range(2000)])))
        await poll(lambda: (found := exporter.statistics()) and "maximum bytes" in found.last_error)
        untyped: Any = context
        config: Any = (await context.stream_info(NAMES.stream)).config
        await untyped.update_stream(config.evolve(max_bytes=1 << 30))
        await exporter.aclose()
        async with ingesting(tmp_path / "collected", server.url) as source:
            await poll(lambda: source.ended(exporter.stream))
            assert source.streams.all[exporter.stream].missing == 0
