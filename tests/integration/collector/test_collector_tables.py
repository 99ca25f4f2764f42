"""The table of a window, which a process of its own reads, within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

from stepscope.collector.downloads.bounded import AT_ONCE, WAITING
from tests.support.basics import children, poll
from tests.support.collecting import ask
from tests.support.collectors import collecting
from tests.support.streams import STREAM
from tests.support.windowed import END, run_of, stored, windows


@contextlib.asynccontextmanager
async def started() -> AsyncGenerator[set[int]]:
    """The processes that were started inside, as far as they were seen to run."""
    before, found = children(os.getpid()), set[int]()

    async def look() -> None:
        while True:
            found.update(children(os.getpid()) - before)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(look())
    try:
        yield found
    finally:
        task.cancel()


async def test_what_nobody_waits_for_is_not_read(tmp_path: Path) -> None:
    """Of clients that ask and go away the processes go as well, and nobody's turn comes after them."""
    async with collecting(tmp_path) as running:
        stored(running.collector.store, STREAM, [run_of(), *windows(range(2), 1 << 16), END])
        address = f"/v1/streams/{STREAM}/windows/{{}}/statistics"
        async with started() as processes:
            clients = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(AT_ONCE + WAITING)]
            for number, client in enumerate(clients):
                client.sendall(f"GET {address.format(number)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            await poll(lambda: processes)
            for client in clients[AT_ONCE:]:  # those who wait first: a turn that ends is another one's
                client.close()
            await poll(lambda: len(running.server.server_state.connections) == AT_ONCE)
            for client in clients[:AT_ONCE]:
                client.close()
            url = f"http://127.0.0.1:{running.port}{address.format(1)}"
            await poll(lambda: not running.server.server_state.connections)
            assert (await asyncio.to_thread(ask, url)).json()["left_out"] == 0
            assert len(processes) < len(clients) / 2
