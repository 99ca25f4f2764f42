"""Servers that a streaming exporter may meet, and the plainest exporter that meets them."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Self

import anyio
import anyio.abc

from stepscope.exporters.base import EventBatch, Run, Window
from tests.support.basics import is_readable


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


WAIT = 0.05
"""Seconds between two looks whether it has to stop, or to end."""


class Passage:
    """Listens on a port of its own and passes connections on; a context manager, which ends them.

    So a connection can go bad that was made and used: every handshake is over, and something was confirmed.

    Args:
        port: the server's, on loopback.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._stopped, self._ending = threading.Event(), threading.Event()
        self._listening = socket.socket()
        # So that the system takes little more off a client's hands than this does.
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, name="passage")]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        for thread in self._threads:  # the first adds no more once it has ended
            thread.join()
        self._listening.close()

    def stop(self) -> None:
        """From now on nothing is passed on. No client notices: connections stay as they are, and further ones are accepted."""
        self._stopped.set()

    def _accept(self) -> None:
        while not self._ending.is_set():
            if not is_readable(self._listening, WAIT):
                continue
            client, _ = self._listening.accept()
            self._threads.append(threading.Thread(target=self._connect, args=(client,), name="passage"))
            self._threads[-1].start()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server)) as server:
            back = threading.Thread(target=self._pass_on, args=(server, client), name="passage")
            back.start()
            self._pass_on(client, server)
            back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one end is gone: the other is closed below
            while not self._ending.is_set():
                if self._stopped.is_set():
                    self._ending.wait()
                    break
                if not is_readable(source, WAIT):
                    continue
                data = source.recv(1 << 16)
                if not data:
                    break
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
