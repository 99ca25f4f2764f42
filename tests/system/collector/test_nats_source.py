"""A collector that ingests from NATS: it shows failures and tries again, and releases streams that have ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import KeyNotFoundError

from stepscope.exporters.nats import layout
from stepscope.exporters.nats.exporter import NatsExporter
from stepscope.exporters.nats.limits import NatsLimits
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.exporters.stream.settings import LinkSettings
from tests.support.basics import poll
from tests.support.collecting import ask, collecting, until
from tests.support.jetstreams import Publisher, jetstream, whole
from tests.support.nats import NatsServer
from tests.support.nats_sources import ingesting
from tests.support.streams import hello

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
            await whole(publisher)
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
            await context.delete_stream(layout.STREAM)
            await exporter.export(batch_of(spans(["x"])))
            await exporter.aclose()
        await poll(lambda: source.ended(exporter.stream))


async def test_a_stream_that_has_ended_is_released(server: NatsServer, tmp_path: Path) -> None:
    """It has no lease and no consumer, and other collectors do not ingest it again."""
    server.start()
    async with jetstream(server.url) as context:
        first, second = Publisher(context), Publisher(context)
        async with ingesting(tmp_path / "one", server.url) as one:
            await whole(first)
            await poll(lambda: one.ended(first.stream) and not one.assigned)
            leases = await layout.bucket(context, layout.LEASES)
            with pytest.raises(KeyNotFoundError):
                await leases.get(first.stream)
            info = await context.stream_info(layout.STREAM)
            assert info.state.consumer_count == 0 and info.state.messages == 2
        async with ingesting(tmp_path / "other", server.url) as other:
            await whole(second)
            await poll(lambda: other.ended(second.stream) and not other.assigned)
            assert other.stored() == {second.stream}
            # Its Hello does not stay for ever. After the loss of that directory it can be ingested again all the same.
            assert not {first.stream, second.stream} & await layout.keys(context, layout.HELLOS)
            await (await layout.bucket(context, layout.ENDED)).delete(first.stream)
        async with ingesting(tmp_path / "third", server.url) as third:
            await poll(lambda: third.ended(first.stream))


async def test_hellos_expire(server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hello expires later than the messages of its stream, and is published again until then; an older bucket has no limit."""
    server.start()
    exporter = NatsExporter(server.url, limits=NatsLimits(max_age=300.0), settings=QUICK)
    await exporter.open(run_in(tmp_path))
    await poll(lambda: (found := exporter.statistics()) and found.confirmed)
    async with jetstream(server.url) as context:
        hellos = await layout.bucket(context, layout.HELLOS)
        assert (await hellos.status()).ttl == 300.0 + layout.HELLO_SPARE
        await context.delete_stream(f"KV_{layout.HELLOS}")
        await layout.bucket(context, layout.HELLOS)
    await exporter.aclose()
    monkeypatch.setattr(layout, "HELLO_SPARE", 0.2)
    exporter = NatsExporter(server.url, settings=QUICK)
    await exporter.open(run_in(tmp_path / "second"))
    async with jetstream(server.url) as context:
        await poll(lambda: (found := exporter.statistics()) and found.confirmed)
        assert exporter.stream in await layout.keys(context, layout.HELLOS)
        await layout.forget(context, layout.HELLOS, exporter.stream)
        async with asyncio.timeout(30):
            while exporter.stream not in await layout.keys(context, layout.HELLOS):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with ingesting(tmp_path / "collected", server.url) as source:
            await exporter.aclose()
            await poll(lambda: source.ended(exporter.stream) and not source.assigned)
            assert exporter.stream not in await layout.keys(context, layout.HELLOS)


async def test_a_stream_without_messages_is_released(server: NatsServer, tmp_path: Path) -> None:
    """Its exporter never ended it, and JetStream has deleted all of it."""
    server.start()
    async with jetstream(server.url) as context, ingesting(tmp_path / "collected", server.url) as source:
        publisher = Publisher(context)
        await publisher.begin()
        await publisher.publish(0, 5)
        await poll(lambda: (found := source.streams.all.get(publisher.stream)) and found.next == 5)
        await context.purge_stream(layout.STREAM)
        await poll(lambda: not source.assigned)
        await publisher.publish(5, 5)
        await publisher.end(10)
        await poll(lambda: source.ended(publisher.stream))
        assert source.streams.all[publisher.stream].missing == 0


async def test_messages_of_unknown_streams(server: NatsServer, tmp_path: Path) -> None:
    """An invalid subject, a Hello of another stream, and no Hello at all: the other streams are ingested."""
    server.start()
    async with jetstream(server.url) as context, ingesting(tmp_path / "collected", server.url) as source:
        invalid, wrong, unknown, good = (Publisher(context) for _ in range(4))
        invalid.stream = "nobody"
        hellos = await layout.bucket(context, layout.HELLOS)
        await hellos.put(wrong.stream, hello(0, good.stream))
        for publisher in (invalid, wrong, unknown):
            await publisher.publish(0, 5)
        await whole(good)
        await poll(lambda: source.ended(good.stream))
        await poll(lambda: source.nats.view().malformed_messages == 1)
        await poll(lambda: "stream " in source.nats.view().problem)
        assert source.stored() == {good.stream}
        # With a Hello they are ingested.
        for publisher in (wrong, unknown):
            await publisher.begin()
            await publisher.end(5)
        await poll(lambda: source.ended(wrong.stream) and source.ended(unknown.stream))


def test_malformed_messages_are_shown(server: NatsServer, tmp_path: Path) -> None:
    """On the page, to Prometheus and in the audit; once in the log. The rest of the stream is ingested."""
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
        until(lambda: collector.get("/v1/job")["nats"]["malformed_messages"] == 3)
        until(lambda: collector.get("/v1/job")["ended"] == 1)
        text = ask(f"{collector.url}/metrics").body.decode()
        assert "stepscope_nats_malformed_messages_total 3.0" in text and "stepscope_nats_up 1.0" in text
        _, log = collector.stop()
    assert sum(stream in line and "claims" in line for line in log.splitlines()) == 1
    assert (tmp_path / "collected" / "refused.jsonl").read_text().count(stream) == 3


async def test_limits_of_what_jetstream_keeps(server: NatsServer, tmp_path: Path) -> None:
    """The first exporter creates the stream with its limits; an existing stream stays as it is."""
    server.start()
    limits = NatsLimits(max_bytes=1 << 28, max_age=300.0, discard="new")
    for requested in (limits, NatsLimits(max_bytes=1 << 20)):
        exporter = NatsExporter(server.url, limits=requested, settings=QUICK)
        await exporter.open(run_in(tmp_path))
        await exporter.aclose()
    async with jetstream(server.url) as context:
        found = (await context.stream_info(layout.STREAM)).config
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
        await context.delete_stream(layout.STREAM)
        exporter = NatsExporter(server.url, limits=NatsLimits(max_bytes=1 << 12, discard="new"), settings=QUICK)
        await exporter.open(run_in(tmp_path))
        await exporter.export(batch_of(spans([os.urandom(8).hex() for _ in range(2000)])))
        await poll(lambda: (found := exporter.statistics()) and "maximum bytes" in found.last_error)
        untyped: Any = context
        config: Any = (await context.stream_info(layout.STREAM)).config
        await untyped.update_stream(config.evolve(max_bytes=1 << 30))
        await exporter.aclose()
        async with ingesting(tmp_path / "collected", server.url) as source:
            await poll(lambda: source.ended(exporter.stream))
            assert source.streams.all[exporter.stream].missing == 0
