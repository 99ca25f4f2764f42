"""A collector that never came, or lost what was confirmed to it, and connections that end: report, log and ledger agree."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import InvalidStatus

from stepscope.collector.files.store import Store
from stepscope.collector.live.startup_recovery import StartupRecovery
from stepscope.collector.live.streams import Streams
from stepscope.collector.runs.recording import Recording
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.nats.servers import NatsAccess
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.address import Address
from stepscope.exporters.stream.exporter import CollectorExporter
from stepscope.exporters.stream.protocol import Hello
from stepscope.exporters.stream.shipper import Shipper
from stepscope.exporters.stream.transport import Feed, LinkSettings, Transport
from stepscope.exporters.stream.websocket import WebSocketTransport
from tests.integration.exporters.test_collector_faults import websocket
from tests.support.basics import poll
from tests.support.collectors import collecting, free_port, journals
from tests.support.collectors import spans as spans_of
from tests.support.commands import python
from tests.support.messages import check_messages
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


async def test_a_lost_connection_is_logged_once(tmp_path: Path) -> None:
    """No exception of a sender or listener is left for the loop to complain of."""
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
        link = WebSocketTransport(
            Address(url, None), LinkSettings(first_delay=30), None, Feed(shipper, first_message())
        )
        link.start()
        await poll(lambda: link.statistics().last_error)
        await link.close()
    shipper.close()
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


def blocked(link: WebSocketTransport | None) -> bool:
    """Whether a connection has more to send than is read."""
    socket = None if link is None else link._socket  # pyright: ignore[reportPrivateUsage]
    return socket is not None and socket.transport.get_write_buffer_size() > 1 << 19


PROGRAM = """
import sys
from pathlib import Path
import stepscope as sc
port = sys.argv[1]
Path("token").write_text("t")
exporter = sc.CollectorExporter(f"ws://127.0.0.1:{port}", token=Path("token"))
options = sc.Options(close_timeout=1.5)
with sc.trace(output_dir="a run", exporters=[exporter], options=options) as profiler:
    for number in range(40):
        with sc.span("work", number=number):
            pass
        profiler.step()
profiler.raise_errors()
print(profiler.report())
"""


async def test_the_command_of_the_report_sends_everything(tmp_path: Path) -> None:
    """The run ends without an error; the command that its report has, typed where it ran, delivers all stored events."""
    port = free_port()
    done = await asyncio.to_thread(python, "-c", PROGRAM, port, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("  output    collector: "))
    text = line.removeprefix("  output    ")
    assert text in done.stderr and "TimeoutError" not in done.stderr + done.stdout
    counts, _, command = text.partition("; when this process has ended, send that with: ")
    match = re.fullmatch(r"collector: 0 of (\d+) events confirmed, (\d+) kept in (.*) \((.*)\)", counts)
    assert match is not None and int(match[1]) == int(match[2]) >= 80
    assert Path(match[3]) == tmp_path / "a run" / "journal" and f"ws://127.0.0.1:{port}" in match[4]
    program, *words = shlex.split(command)
    assert program == "stepscope"
    async with collecting(tmp_path / "c", port=port, token="t"):
        sent = await asyncio.to_thread(python, "-m", "stepscope", *words, cwd=tmp_path)
    assert sent.returncode == 0 and f"{match[1]} events" in sent.stdout, sent.stderr
    (journal,) = journals(tmp_path / "c")
    assert spans_of(journal)["work"] == 40


async def test_a_wrong_token_is_reported_and_the_command_asks_for_one(tmp_path: Path) -> None:
    """Whether the run had another token, or none."""
    async with collecting(tmp_path / "c", token="t") as running:
        for token in ("token='wrong'", "token=None"):
            program = PROGRAM.replace('token=Path("token")', token).replace("a run", token)
            done = await asyncio.to_thread(python, "-c", program, running.port, cwd=tmp_path)
            check_messages(done.stderr, "401", "token=")
            assert re.search(r"send that with: .* --token-file FILE$", done.stdout, re.MULTILINE), done.stdout


async def test_a_path_that_takes_no_streams_is_reported(tmp_path: Path) -> None:
    """It does not look as if a right were missing, and the path that does is named."""
    async with collecting(tmp_path / "c") as running:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"{running.url}/foo"):
                pass
        assert refused.value.response.status_code == 404 and b"/v1/stream" in refused.value.response.body
        assert running.collector.audit.refused == 1


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (
            ("--token-file", "nofile"),
            "--token-file: nofile, which should hold the secret, cannot be read: No such file",
        ),
        (("--timeout", "-1"), "--timeout must be a number of seconds above 0, got '-1'"),
    ],
)
def test_a_delivery_that_cannot_begin_is_wrong_usage(arguments: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    """It is not tried again until the time is over."""
    done = python("-m", "stepscope", "deliver", tmp_path, "--url", "ws://127.0.0.1:1", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and wanted in done.stderr
    assert not (tmp_path / "a run" / "unsent").exists()


def test_the_way_into_nats_is_reported_as_options(tmp_path: Path) -> None:
    """As the command line takes them."""
    access = NatsAccess(user="me", password_file=tmp_path / "p", ca=tmp_path / "ca", insecure=True)
    assert access.options() == [
        "--nats-user", "me", "--nats-password-file", str(tmp_path / "p"), "--nats-ca", str(tmp_path / "ca"), "--nats-insecure",
    ]  # fmt: skip
    assert NatsAccess().options() == []


def first_message() -> Hello:
    """The first message of an exporter."""
    header, _ = protocol.decode(hello())
    assert isinstance(header, Hello)
    return header


class Stubborn(Transport):
    """A connection whose library makes an error of its own of a cancellation."""

    def __init__(self, shipper: Shipper) -> None:
        super().__init__(
            "nowhere", LinkSettings(first_delay=0.001, longest_delay=0.001), Feed(shipper, first_message())
        )
        self.swallowed = 0

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
