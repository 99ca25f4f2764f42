"""Connections that have not agreed on TLS count, and are ended, as any others."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stepscope.build import trace
from stepscope.collector.web import web_protocols
from stepscope.exporters.stream import protocol
from tests.support.basics import poll
from tests.support.certificates import certify
from tests.support.collecting import collecting as collecting_apart
from tests.support.collectors import answer, collecting, connected, send_frames
from tests.support.commands import stepscope
from tests.support.streams import hello

HELLO = bytes.fromhex("16030100c8010000c40303")
"""How a client begins, cut off."""
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    return certify(tmp_path_factory.mktemp("tls"))


async def test_who_does_not_agree_makes_room_for_who_does(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """However many connect and say nothing; exporters that stream are not disturbed, and the end does not wait for them."""
    made, key = certificate
    trusting = ssl.create_default_context(cafile=str(made))
    async with collecting(tmp_path, max_streams=1, max_readers=4, certificate=made, key=key) as running:
        url = running.url.replace("ws:", "wss:")
        async with connected(url, ssl=trusting) as one:
            await one.send(hello())
            await answer(one)
            silent = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(20)]
            for reader, _ in silent[:16]:
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 30) == b""
            await poll(lambda: len(running.server.server_state.connections) == 5)
            for _ in range(3):
                reader, stream = await asyncio.open_connection("127.0.0.1", running.port, ssl=trusting)
                stream.write(REQUEST)
                assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 200 ")
                stream.close()
            assert await send_frames(one, 0, 2) == protocol.Ack(2)
            for _, stream in silent:
                stream.close()
        rest = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(3)]
        await poll(lambda: len(running.server.server_state.connections) >= 3)
        assert not running.server.force_exit
    assert not running.server.server_state.connections
    for _, stream in rest:
        stream.close()


async def test_who_takes_too_long_to_agree_is_ended(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that says nothing, half of what is to be said, or something else; who agrees has no more time for its request."""
    made, key = certificate
    trusting = ssl.create_default_context(cafile=str(made))
    async with collecting(tmp_path, certificate=made, key=key) as running:
        monkeypatch.setattr(web_protocols, "REQUEST_SECONDS", 1.5)
        opened = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(3)]
        opened[1][1].write(HELLO)
        opened[2][1].write(REQUEST)
        opened.append(await asyncio.open_connection("127.0.0.1", running.port, ssl=trusting))
        opened[3][1].write(b"GET /")
        for reader, stream in opened:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                told = await asyncio.wait_for(reader.read(), 30)
                assert b"HTTP" not in told
            stream.close()
        await poll(lambda: not running.server.server_state.connections)


@pytest.mark.parametrize("there", [True, False])
def test_tls_that_one_side_lacks_is_named(there: bool, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """Which of the two it probably is, and what to write instead, by what sends streams and by what gives orders."""
    with trace(output_dir=tmp_path / "run"):
        pass
    made, key = certificate
    options = ("--certificate", str(made), "--key", str(key)) if there else ()
    with collecting_apart(tmp_path / "c", *options) as collector:
        url = f"{'ws' if there else 'wss'}://{urlsplit(collector.url).netloc}"
        said = "probably wants TLS, use wss://" if there else "speaks no TLS: use ws://"
        for command in (("deliver", "run/journal", "--timeout", "2"), ("arm", "--steps", "1")):
            done = stepscope(*command, "--url", url, cwd=tmp_path)
            assert done.returncode == 1 and said in done.stderr, done.stderr
