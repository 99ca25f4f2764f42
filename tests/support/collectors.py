"""Real collectors, and what they have written."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from stepscope.collector.app import Collector
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web.server import Server
from stepscope.exporters.stream import protocol
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.journal.reader import JournalReader
from tests.support.basics import poll
from tests.support.launch import run_to_end, start
from tests.support.streams import STREAM, frames, frames_header, hello

COMMAND = (sys.executable, "-c", "import sys; from stepscope.cli.main import main; sys.exit(main())")
"""The command line, whatever is installed."""


class Running:
    """A collector that listens in this process."""

    def __init__(self, directory: Path, collector: Collector, server: Server, port: int) -> None:
        self.directory, self.collector, self.server, self.port = directory, collector, server, port

    @property
    def url(self) -> str:
        """Its address."""
        return f"ws://127.0.0.1:{self.port}"

    def journal(self, stream: str = STREAM) -> Path:
        """The file of a stream."""
        return self.directory / "streams" / stream / "journal"


@contextlib.asynccontextmanager
async def collecting(directory: Path, *, port: int = 0, **settings: Any) -> AsyncGenerator[Running]:
    """A collector that listens on the loop of the test."""
    made = CollectorSettings(directory=directory, port=port, **settings)
    collector = Collector(made)
    listening = socket.create_server(("127.0.0.1", port), backlog=1000)
    server = Server(collector.app, made, collector.budget, collector.events.stop, collector.no_request)
    task = asyncio.create_task(server.serve([listening]))
    try:
        await poll(lambda: server.started or task.done())
        yield Running(directory, collector, server, listening.getsockname()[1])
    finally:
        server.should_exit = True
        await task
        listening.close()
        await collector.audit.flush(30)


class Process:
    """A collector in a process of its own, to be killed."""

    def __init__(self, directory: Path, port: int, *arguments: str, program: tuple[str, ...] | None = None) -> None:
        """Args: its own; `program` is a text of Python, and its first arguments, in place of the command line's."""
        program_arguments = COMMAND if program is None else (sys.executable, "-c", *program)
        command = [*program_arguments, "collect", "--dir", str(directory), "--port", str(port), *arguments]
        self._process = start(command, server="command", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._port = port

    def wait(self) -> Process:
        """Returns when it listens."""
        while True:
            assert self._process.poll() is None, "the collector has ended"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                return self

    def kill(self) -> None:
        """As `kill -9` does."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """In order."""
        self._process.terminate()
        self._process.wait()


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@contextlib.asynccontextmanager
async def connected(url: str, **settings: Any) -> AsyncGenerator[ClientConnection]:
    """A connection for any messages."""
    options: dict[str, Any] = {
        "subprotocols": [Subprotocol(protocol.SUBPROTOCOL)],
        "compression": None,
        "close_timeout": 1,
        **settings,
    }
    async with connect(url + protocol.PATH, **options) as made:
        yield made


async def answer(made: ClientConnection) -> protocol.Header:
    """The next message of the collector."""
    async with asyncio.timeout(30):
        message = await made.recv()
    assert isinstance(message, bytes)
    return protocol.decode(message)[0]


@contextlib.asynccontextmanager
async def welcomed(running: Running, stream: str = STREAM, **first: Any) -> AsyncGenerator[ClientConnection]:
    """A connection whose stream is accepted."""
    async with connected(running.url) as made:
        await made.send(hello(stream=stream, **first))
        assert isinstance(await answer(made), protocol.Welcome)
        yield made


async def send_frames(made: ClientConnection, first: int, count: int) -> protocol.Header:
    """Sends frames; what the collector says to that."""
    await made.send(protocol.encode(frames_header(first, count), frames(first, count)))
    return await answer(made)


def journals(directory: Path) -> Iterator[Path]:
    """The journals that a collector keeps."""
    yield from sorted((directory / "streams").glob("*/journal"))


def spans(path: Path, *, ended: bool = True) -> Counter[str]:
    """Names of the spans in a journal that is not damaged."""
    with JournalReader(path) as reader:
        found = Counter(
            strings.name_of(event)
            for item in reader
            if isinstance(item, EventBatch)
            for event in item.events[item.events["kind"] == int(Kind.SPAN)]
        )
        assert not reader.damage, reader.damage
        assert (reader.end is not None) == ended
    return found


def spans_whole(path: Path) -> bool:
    """Whether a journal of one span `x` is there up to its end."""
    try:
        return spans(path) == {"x": 1}
    except (AssertionError, ValueError):
        return False


def deliver(place: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `stepscope deliver`."""
    return run_to_end([*COMMAND, "deliver", str(place), "--url", url, *options], timeout=60, server="command")
