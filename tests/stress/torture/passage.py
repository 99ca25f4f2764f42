"""A passage to a server that works: what goes there is passed on, until it is told to stop."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from tests.support.basics import is_readable

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
        """From now on nothing is passed on. Nothing tells a client so: connections stay as they are, and further ones are accepted."""
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
        with contextlib.suppress(OSError):  # one end is gone: the other is told below
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
