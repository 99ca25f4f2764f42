"""A socket in the session directory that accepts commands of processes of the same user on the same machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.errors import ControlError
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.loop_threads.loop_thread import JOIN_S, LoopThread
from stepscope.runtime.requests.command import MAX_BYTES, Answer, Command
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.one_shot import OneShot

log = logging.getLogger("stepscope")

NAME = "socket"
"""Name of the socket in the session directory."""
ANSWER_TIMEOUT_S = 10.0
"""Seconds within which a command must arrive."""
MOST = 16
"""Limit of connections at the same time."""

Handler = Callable[[Command], "Future[Answer]"]
_CREDENTIALS = struct.Struct("3i")


class LocalSocket:
    """The socket of the process, on a thread with a loop. It answers a line with a command by a line with the answers of all
    profilers.

    Raises:
        RuntimeError: if the system gives no further thread.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._ready: OneShot[None] = OneShot()
        self._handlers: list[Handler] = []
        self._connections = 0
        self.problem = ""
        """Why it accepts no commands; empty if it does."""
        self._thread = LoopThread("stepscope socket", self._serve, self._failed)

    @classmethod
    def listen(cls, directory: Path, handler: Handler) -> LocalSocket:
        """Adds a handler for commands of this directory's socket, and opens the socket if needed."""
        with _lock:
            found = _sockets.get(directory)
            if found is None:
                found = _sockets[directory] = cls(directory)
            found._handlers.append(handler)
        found._ready.wait(ANSWER_TIMEOUT_S)
        return found

    def remove_handler(self, handler: Handler) -> None:
        """Removes a handler. After the last one, the socket is closed."""
        with _lock:
            if handler in self._handlers:
                self._handlers.remove(handler)
            if self._handlers or _sockets.get(self._path.parent) is not self:
                return
            del _sockets[self._path.parent]
        self._thread.cancel()
        self._thread.join(JOIN_S)

    async def _serve(self) -> None:
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._client, self._path, limit=MAX_BYTES)
        made = self._path.lstat().st_ino
        try:
            self._path.chmod(0o600)
            self._ready.set_result(None)
            await server.serve_forever()
        finally:
            server.close()
            with contextlib.suppress(FileNotFoundError):
                if self._path.lstat().st_ino == made:  # not if a later socket replaced it
                    self._path.unlink()

    def _failed(self, error: BaseException) -> None:
        self.problem = f"no commands are taken at {self._path}: {error}"
        self._ready.set_result(None)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > MOST:
                return
            user = peer_user(writer.get_extra_info("socket"))
            if user not in (os.geteuid(), 0):
                log.warning("a command of user %s was refused", user)
                return
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                line = await reader.readline()
            answers = await self._answer(line)
            writer.write(json_bytes(answers) + b"\n")
            await writer.drain()
        except (TimeoutError, ConnectionError, ValueError) as error:
            log.info("a command did not arrive whole: %r", error)
        finally:
            self._connections -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, line: bytes) -> list[Answer]:
        try:
            command = decode_json(line, Command)
        except ControlError as error:
            return [Answer(error=str(error))]
        return list(await asyncio.gather(*(asyncio.wrap_future(handler(command)) for handler in list(self._handlers))))


def peer_user(sock: socket.socket) -> int:
    """Returns the user of the process at the other end. Source: unix(7), SO_PEERCRED."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(found)[1]
    return user


_sockets: dict[Path, LocalSocket] = {}
_lock = locks.reentrant()


os.register_at_fork(after_in_child=_sockets.clear)  # they belong to the parent
