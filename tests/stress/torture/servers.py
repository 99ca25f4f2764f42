"""Servers that a streaming exporter may meet, and the plainest exporter that meets them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator

import anyio
import anyio.abc

from stepscope.exporters.base import EventBatch, Run, Window


class StreamExporter:
    """Sends events as they are to a TCP port; as simple as exporters get, with no timeout of its own."""

    name = "stream"

    def __init__(self, port: int) -> None:
        self._port = port
        self._stream: anyio.abc.SocketStream | None = None

    async def open(self, run: Run) -> None:
        self._stream = await anyio.connect_tcp("127.0.0.1", self._port)
        # So that the system takes no more off its hands than the server does.
        connection = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    async def export(self, batch: EventBatch) -> None:
        assert self._stream is not None
        data = batch.events.tobytes()
        await self._stream.send(struct.pack("<Q", len(data)) + data)

    async def close_window(self, window: Window) -> None:
        """Nothing is sent for a window's end."""

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()


@contextlib.contextmanager
def refusing() -> Generator[int]:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield port


@contextlib.contextmanager
def dead() -> Generator[int]:
    """A host that does not answer: its queue of connections is full, so the system lets further ones wait."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        time.sleep(0.05)
        yield server.getsockname()[1]


@contextlib.contextmanager
def half_open() -> Generator[int]:
    """A connection that was accepted and is never read."""
    with _serving(lambda connection, stop: stop.wait()) as port:
        yield port


@contextlib.contextmanager
def trickling() -> Generator[int]:
    """A server that reads one byte a second."""

    def read(connection: socket.socket, stop: threading.Event) -> None:
        while not stop.wait(1.0) and connection.recv(1):
            pass

    with _serving(read) as port:
        yield port


@contextlib.contextmanager
def resetting() -> Generator[int]:
    """A server that breaks the connection after the first kilobyte."""

    def read(connection: socket.socket, stop: threading.Event) -> None:
        connection.recv(1024)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with _serving(read) as port:
        yield port


@contextlib.contextmanager
def _serving(serve: Callable[[socket.socket, threading.Event], object]) -> Generator[int]:
    stop = threading.Event()
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    server.bind(("127.0.0.1", 0))
    server.listen(4)
    server.settimeout(0.1)

    def accept() -> None:
        threads: list[threading.Thread] = []
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                threads.append(threading.Thread(target=handle, args=(connection,)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def handle(connection: socket.socket) -> None:
        with connection:
            serve(connection, stop)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        stop.set()
        thread.join()
        server.close()
