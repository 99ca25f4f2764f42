"""The exporter before collectors that are away, refuse, hang, lie or are slow: nothing is blocked, and all is accounted for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import time
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

import stepscope as sc
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.exporter import CollectorExporter
from stepscope.exporters.stream.transport import LinkSettings
from stepscope.runtime.errors import OutputError
from stepscope.runtime.export.run import Run
from tests.support.basics import poll
from tests.support.certificates import certify
from tests.support.collectors import collecting, free_port, journals
from tests.support.collectors import spans as spans_of
from tests.support.messages import refused
from tests.support.streams import frames_header

QUICK = LinkSettings(timeout=0.3, first_delay=0.01, longest_delay=0.05)
Handler = Callable[[Reader, Writer], Awaitable[object]]


def welcome(next: int, max_message: int = 1 << 20) -> protocol.Welcome:
    """Asks for a frame."""
    return protocol.Welcome(next, max_message, protocol.MAX_MESSAGE)


@contextlib.asynccontextmanager
async def tcp(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    """A server that does with each connection what the handler does; its address."""

    tasks: set[asyncio.Task[object]] = set()

    async def handle(reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await handler(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'ws' if tls is None else 'wss'}://127.0.0.1:{port}"
    finally:
        for _ in range(5 if tls is None else 20):
            await asyncio.sleep(0.01)  # for connections that are being accepted: a server that is closed loses them
            left = list(tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        server.close()


def says(answer: bytes) -> Handler:
    """Answers every request with the same bytes, and closes."""

    async def handle(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return handle


async def silent(reader: Reader, writer: Writer) -> None:
    """Accepts, reads, and never answers."""
    while await reader.read(1 << 16):
        pass


async def hang_up(reader: Reader, writer: Writer) -> None:
    """Closes at once."""


@contextlib.asynccontextmanager
async def websocket(handler: Callable[[ServerConnection], Awaitable[None]]) -> AsyncGenerator[str]:
    """A server that completes the handshake and then does what the handler does."""
    async with serve(
        handler, "127.0.0.1", 0, subprotocols=[Subprotocol(protocol.SUBPROTOCOL)], max_size=None, close_timeout=0.1
    ) as server:
        (listening, *_) = server.sockets
        yield f"ws://127.0.0.1:{listening.getsockname()[1]}"


def sends(*messages: bytes | str) -> Callable[[ServerConnection], Awaitable[None]]:
    """Answers Hello with these messages, and goes on reading."""

    async def handle(connection: ServerConnection) -> None:
        await connection.recv()
        for message in messages:
            await connection.send(message)
        async for _ in connection:
            pass

    return handle


async def stopped(exporter: CollectorExporter, seconds: float = 0.3) -> str:
    """Closes as a pipeline does whose deadline comes; returns the message."""
    task = asyncio.ensure_future(exporter.aclose())
    start = time.monotonic()
    await asyncio.wait([task], timeout=seconds)
    task.cancel()
    try:
        async with asyncio.timeout(10):  # it has a fifth of a second really
            await task
    except asyncio.CancelledError:
        pass
    except OutputError as error:
        return str(error)
    finally:
        assert time.monotonic() - start < 20
        await asyncio.sleep(0.02)  # the connection that was aborted ends by itself
    return ""


def accounts(exporter: CollectorExporter) -> tuple[int, int]:
    """Events that were exported, and that were dropped as undelivered, since the last time."""
    results = exporter.delivery_results()
    return sum(one.exported for one in results), sum(one.dropped.get("undelivered", 0) for one in results)


def run_of(directory: Path) -> Run:
    """A run in a directory of its own."""
    directory.mkdir(exist_ok=True, parents=True)
    return run_in(directory)


REFUSING = {
    "401": says(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"),
    "426": says(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n"),
    "302": says(b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
}
WRONG = {
    "503": says(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
    "nonsense": says(b"\x16\x03\x01nonsense\0\xff" * 100),
    "endless header": says(b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 300_000),
    "silent": silent,
    "hangs up": hang_up,
}


@pytest.mark.parametrize("kind", [*REFUSING, *WRONG])
async def test_a_server_that_is_no_collector(kind: str, tmp_path: Path) -> None:
    """Everything is left on disk, and closing does not wait for one that refuses."""
    async with tcp({**REFUSING, **WRONG}[kind]) as url:
        exporter = CollectorExporter(url, settings=QUICK)
        await exporter.open(run_of(tmp_path / "run"))
        await exporter.export(batch_of(spans(["a", "b"])))
        if kind in REFUSING:
            await poll(lambda: (found := exporter.statistics()) and found.refused)
            async with asyncio.timeout(20):
                await exporter.aclose()
            assert exporter.unsent_files is not None and f"answered {kind}" in exporter.unsent_files.why
        else:
            await poll(lambda: (found := exporter.statistics()) and found.last_error)
            assert await stopped(exporter) == ""
        (result,) = exporter.delivery_results()
        assert (result.exported, result.unsent, result.dropped) == (2, 2, {})
    journal = tmp_path / "run" / "unsent" / "buffer"
    assert exporter.unsent_files is not None and exporter.unsent_files.place == str(journal)
    assert spans_of(journal) == {"a": 1, "b": 1}


LYING = {
    "a wrong first answer": sends(protocol.encode(protocol.Ack(0))),
    "frames that were never made": sends(protocol.encode(welcome(1 << 40, 1 << 20))),
    "a confirmation of the future": sends(protocol.encode(welcome(0, 1 << 20)), protocol.encode(protocol.Ack(1 << 50))),
    "a message that is no answer": sends(protocol.encode(welcome(0, 1 << 20)), protocol.encode(frames_header(0, 0))),
    "too much": sends(b"\0" * (protocol.MAX_HEADER + 100)),
    "nothing after Welcome": sends(protocol.encode(welcome(0, 0))),
}


@pytest.mark.parametrize("kind", LYING)
async def test_a_collector_that_lies(kind: str, tmp_path: Path) -> None:
    """It is noticed, the connection is made again, and nothing counts as confirmed."""
    connections = 0

    async def handle(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await LYING[kind](connection)

    async with websocket(handle) as url:
        exporter = CollectorExporter(url, settings=QUICK)
        await exporter.open(run_of(tmp_path / "run"))
        await exporter.export(batch_of(spans(["a"])))
        await poll(lambda: connections >= 3)
        await stopped(exporter)
        assert accounts(exporter) == (1, 0)
    assert (tmp_path / "run" / "unsent" / "buffer").exists()


@pytest.mark.parametrize("reason", ["full", "x" * 900])
async def test_a_refusal_in_the_protocol(reason: str, tmp_path: Path) -> None:
    """One that time does not change ends the waiting; the reason is shown, but not more than is good."""
    async with websocket(sends(protocol.encode(protocol.Refused(reason, False)))) as url:
        exporter = CollectorExporter(url, settings=QUICK)
        await exporter.open(run_of(tmp_path / "run"))
        await exporter.aclose()
    assert exporter.unsent_files is not None and exporter.unsent_files.why.endswith(
        f"refuses this stream: {reason[:200]}"
    )


async def test_a_refusal_of_each_connection_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As of a collector without room, which takes the connection before it knows."""
    messages = protocol.encode(welcome(0)), protocol.encode(protocol.Refused("full", True))
    async with websocket(sends(*messages)) as url:
        exporter = CollectorExporter(url, settings=QUICK)
        await exporter.open(run_of(tmp_path / "run"))
        await poll(lambda: (found := exporter.statistics()) is not None and found.connections > 3)
        await stopped(exporter)
    assert caplog.text.count("is tried again later") == 1


async def test_a_collector_that_closes_at_random(tmp_path: Path) -> None:
    """Connections that end at any byte cost nothing: all frames are there once."""
    chance = random.Random(5)
    budgets = [chance.choice([100, 700, 3_000, 10_000]) for _ in range(12)]
    async with collecting(tmp_path / "c") as running:

        async def relay(reader: Reader, writer: Writer) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", running.port)
            budget = budgets.pop() if budgets else 1 << 30

            async def pass_on(source: Reader, sink: Writer) -> None:
                nonlocal budget
                while budget > 0 and (data := await source.read(min(budget, 1000))):
                    budget -= len(data)
                    sink.write(data)
                    await sink.drain()

            ways = [asyncio.ensure_future(pass_on(*way)) for way in ((reader, back), (there, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                back.transport.abort()
                writer.transport.abort()

        async with tcp(relay) as url:
            exporter = CollectorExporter(url, settings=QUICK)
            await exporter.open(run_of(tmp_path / "run"))
            for number in range(100):
                await exporter.export(batch_of(spans([f"span {number}"])))
                await asyncio.sleep(0.002)
            async with asyncio.timeout(60):
                await exporter.aclose()
            found = exporter.statistics()
            assert found is not None and found.connections > 1
        (journal,) = journals(tmp_path / "c")
        assert spans_of(journal) == {f"span {number}": 1 for number in range(100)}
    assert accounts(exporter) == (100, 0)
    assert not (tmp_path / "run" / "unsent").exists()


async def test_a_collector_that_is_slow_gets_less_at_once_and_more_time(tmp_path: Path) -> None:
    """One that reads a few KB a second is not given up again and again in the middle of the same message."""
    received = 0

    async def slow(connection: ServerConnection) -> None:
        nonlocal received
        await connection.recv()
        await connection.send(protocol.encode(welcome(received, 1 << 20)))
        async for message in connection:
            assert isinstance(message, bytes)
            header, payload = protocol.decode(message)
            if isinstance(header, protocol.Frames):
                await asyncio.sleep(len(payload) / 100_000)
                received = max(received, header.first + header.count)
                await connection.send(protocol.encode(protocol.Ack(received)))

    settings = LinkSettings(timeout=0.5, first_delay=0.01, longest_delay=0.05, first_sync=10, sync_interval=10)
    async with websocket(slow) as url:
        exporter = CollectorExporter(url, settings=settings)
        await exporter.open(run_of(tmp_path / "run"))
        for number in range(30):
            noise = random.Random(number).randbytes(16_000)
            batch = batch_of(spans([f"{number}"]), noise)
            batch.events.flags.writeable = True
            batch.events["args_len"] = len(noise)
            await exporter.export(batch)
        async with asyncio.timeout(90):
            await exporter.aclose()
    assert accounts(exporter) == (30, 0)


async def test_a_certificate_is_checked(tmp_path: Path) -> None:
    """One that is not trusted is shown nothing, least of all the token; one that is trusted works."""
    heard: list[bytes] = []
    certificate, key = certify(tmp_path)

    async def listen(reader: Reader, writer: Writer) -> None:
        heard.append(await reader.read(1000))

    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate, key)
    async with tcp(listen, serving) as url:
        exporter = CollectorExporter(url, token="s3cret", settings=QUICK)
        await exporter.open(run_of(tmp_path / "run"))
        # A handshake may take too long at first, which is reported then.
        await poll(lambda: (found := exporter.statistics()) and "CERTIFICATE_VERIFY_FAILED" in found.last_error)
        await stopped(exporter)
        assert not [data for data in heard if data]
        trusting = CollectorExporter(
            url, token="s3cret", settings=QUICK, tls=ssl.create_default_context(cafile=certificate)
        )
        await trusting.open(run_of(tmp_path / "again"))
        await poll(lambda: [data for data in heard if b"Authorization: Bearer s3cret" in data])
        await stopped(trusting)


async def test_a_token_is_shown_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither by logs, nor by reprs, errors, statistics or files; wherever it comes from."""
    secret = "s3cret-t0ken"
    heard: list[bytes] = []

    async def refuse(reader: Reader, writer: Writer) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 401 " + secret.encode() + b"\r\nContent-Length: 0\r\n\r\n")

    def failing() -> str:
        raise ValueError(secret)

    (tmp_path / "token").write_text(f"{secret}\n")
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG, "stepscope"):
        async with tcp(refuse) as url:
            for token in (secret, tmp_path / "token", lambda: secret, failing, lambda: secret + "\n"):
                exporter = CollectorExporter(url, token=token, settings=QUICK)
                await exporter.open(run_of(tmp_path / "runs" / str(len(shown))))
                await poll(lambda: (found := exporter.statistics()) and found.last_error)  # noqa: B023
                shown.append(await stopped(exporter))
                shown += [repr(exporter), repr(vars(exporter)), str(exporter.statistics()), exporter.url]
    assert sum(f"Authorization: Bearer {secret}\r\n".encode() in data for data in heard) >= 3
    assert caplog.records
    for text in (*shown, caplog.text):
        assert secret not in text
    assert not [path for path in files_below(tmp_path / "runs") if secret.encode() in path.read_bytes()]


def files_below(directory: Path) -> list[Path]:
    """All of them."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    assert found
    return found


async def test_a_token_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the collector's does."""
    monkeypatch.setenv("STEPSCOPE_TOKEN", "from-the-environment")
    async with collecting(tmp_path / "c", token="from-the-environment") as running:
        exporter = CollectorExporter(running.url)
        await exporter.open(run_of(tmp_path / "run"))
        await exporter.aclose()
    assert len(list(journals(tmp_path / "c"))) == 1


@pytest.mark.parametrize(
    ("url", "fact"),
    [
        ("localhost:7788", "ws://host:7788"),
        ("ws://", "ws://host:7788"),
        ("ws://host:port", "ws://host:7788"),
        ("ws://user:hunter2@host", "token="),
        ("wss://host/?token=hunter2", "query"),
        ("ws://other-host:7788", "other-host"),
    ],
)
def test_urls_that_cannot_work_are_refused_at_once(url: str, fact: str) -> None:
    """Misuse is raised where the exporter is made, and never shows what may be secret."""
    with refused(ValueError, fact) as caught:
        CollectorExporter(url, token="hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_url_may_be_a_browser_s() -> None:
    """The address in the browser's address bar works."""
    for url, expected in {
        "http://localhost:7788": "ws://localhost:7788/v1/stream",
        "https://host/": "wss://host/v1/stream",
        "wss://proxy/team/collector/": "wss://proxy/team/collector",
        "ws://[::1]:7788": "ws://[::1]:7788/v1/stream",
    }.items():
        assert CollectorExporter(url).url == expected
    assert (
        CollectorExporter("ws://other", token="t", settings=LinkSettings(insecure=True)).url == "ws://other/v1/stream"
    )


@pytest.mark.parametrize("kind", ["away", "half-open", "confirms nothing"])
async def test_a_collector_that_takes_nothing_holds_the_end_up_for_its_own_time(kind: str, tmp_path: Path) -> None:
    """A program that may take an hour to close, as one that is worth waiting for, does not spend it on a collector."""
    settings = LinkSettings(timeout=0.5, closing_seconds=0.1)
    options = sc.Options(close_timeout=3600.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with websocket(sends(protocol.encode(welcome(0)))) as confirms_nothing:
            urls = {
                "away": f"ws://127.0.0.1:{free_port()}",
                "half-open": f"ws://127.0.0.1:{listening.getsockname()[1]}",
                "confirms nothing": confirms_nothing,
            }
            exporter = CollectorExporter(urls[kind], settings=settings)
            async with sc.trace(exporters=[exporter], output_dir=tmp_path / "run", options=options):
                with sc.span("work"):
                    pass
    assert exporter.unsent_files is not None and "stepscope deliver" in exporter.unsent_files.command
    assert spans_of(Path(exporter.unsent_files.place))["work"] == 1


async def test_a_collector_that_came_back_is_tried_at_the_end(tmp_path: Path) -> None:
    """The next attempt would be in half an hour; the end of the run does not wait for that, nor give up."""
    port = free_port()
    settings = LinkSettings(first_delay=3600, longest_delay=3600, closing_seconds=60)
    exporter = CollectorExporter(f"ws://127.0.0.1:{port}", settings=settings)
    await exporter.open(run_in(tmp_path / "run"))
    await exporter.export(batch_of(spans(["work"])))
    await poll(lambda: (statistics := exporter.statistics()) and statistics.last_error)
    async with collecting(tmp_path / "collector", port=port):
        await exporter.aclose()
    assert exporter.unsent_files is None
    assert sum(one.exported for one in exporter.delivery_results()) == 1
