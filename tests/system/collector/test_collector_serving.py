"""A collector's beginning and end, with and without TLS, in order and killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

import stepscope
from stepscope.build import trace
from stepscope.collector.app import Collector
from stepscope.collector.errors import DirectoryInUseError, ListenError
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web import web_protocols
from stepscope.exporters.stream import protocol
from tests.support.basics import poll
from tests.support.certificates import certify
from tests.support.collecting import collecting, send_request, training
from tests.support.collectors import COMMAND, Process, answer, connected, free_port, journals, send_frames
from tests.support.collectors import collecting as collecting_here
from tests.support.collectors import spans as spans_of
from tests.support.commands import stepscope as run_stepscope
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.streams import hello


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_within_five_seconds(tmp_path: Path, number: signal.Signals) -> None:
    """With a rank that streams, live events that nobody reads and an idle connection; listeners get the end."""
    with collecting(tmp_path) as collector:
        with (
            training(collector.url, 0, steps=10_000),
            urllib.request.urlopen(f"{collector.url}/v1/events") as events,
            urllib.request.urlopen(f"{collector.url}/v1/events"),
            socket.create_connection(("127.0.0.1", int(collector.url.rpartition(":")[2]))),
        ):
            collector.when(lambda ranks: 0 in ranks and ranks[0]["windows"])
            began = time.monotonic()
            collector.process.send_signal(number)
            assert collector.process.wait(20) == 0
            assert time.monotonic() - began < 5
            assert b"event: end" in events.read()
        assert collector.process.stderr is not None
        open_to, *output = collector.process.stderr.read().splitlines()
        assert "no token is set" in open_to and output and all(" rank 0 of job job (pid " in line for line in output)


def test_it_prints_how_to_stream_to_it_and_its_ranks(tmp_path: Path) -> None:
    """The line that it prints is what a training script needs; each stream's begin and end is a line of the log."""
    with collecting(tmp_path / "collected") as collector:
        assert collector.process.stdout is not None
        exporter = collector.process.stdout.readline().removeprefix("in training scripts: exporters=")
        assert collector.url.replace("http://", "ws://") in exporter
        exporters = eval(exporter, {"sc": stepscope, "Path": Path})
        with stepscope.trace(exporters=exporters, name="a\tjob", rank=3, output_dir=tmp_path / "run"):
            with stepscope.span("work"):
                pass
        collector.when(lambda ranks: ranks[3]["state"] == "ended")
        _, output = collector.stop()
    open_to, first, last = output.splitlines()
    assert " no token is set (--token-file, STEPSCOPE_TOKEN): every user of this machine can read all" in open_to
    who = rf"rank 3 of job a\\tjob \(pid {os.getpid()} on {re.escape(socket.gethostname())}\)"
    assert re.search(rf" {who} is connected: stream [0-9a-f]{{32}}$", first)
    assert re.search(rf" {who} has ended$", last)


def test_a_collector_on_all_addresses_prints_the_name_of_its_machine(tmp_path: Path) -> None:
    """Nobody can connect to the address that stands for all of a machine's."""
    token = tmp_path / "token"
    token.write_text("a-token-of-this-test")
    with collecting(tmp_path / "c", "--host", "0.0.0.0", "--insecure", "--token-file", str(token)) as collector:
        assert collector.process.stdout is not None
        line = collector.process.stdout.readline()
    port = collector.url.rpartition(":")[2]
    assert line.endswith(
        f'CollectorExporter("ws://{socket.gethostname()}:{port}", token=Path({str(token)!r}), settings=sc.exporters.LinkSettings(insecure=True))]\n'
    )


def test_a_second_collector_is_refused(tmp_path: Path) -> None:
    """The message names the process that has the directory; when that one was killed, nothing is in the way."""
    command = [sys.executable, "-m", "stepscope", "collect", "--dir", str(tmp_path), "--port", "0"]
    with collecting(tmp_path) as collector:
        second = run_to_end(command, timeout=60, server="command")
        assert second.returncode == 1 and f"pid {collector.process.pid}" in second.stderr
        assert collector.ranks() == {}
        collector.process.kill()
        collector.process.wait()
    with collecting(tmp_path):
        pass


async def test_a_directory_that_was_made_anew_is_another_ones(tmp_path: Path) -> None:
    """A collector whose directory was removed writes nothing into that of the one that was started in its place, and deletes nothing."""
    settings = CollectorSettings(directory=tmp_path / "c", port=0)
    first = Collector(settings)
    async with first.serving() as url:
        shutil.rmtree(tmp_path / "c")
        async with Collector(settings).serving() as other:
            async with connected(url.replace("http", "ws")) as one:
                await one.send(hello())
                response = await answer(one)
            assert isinstance(response, protocol.Refused) and response.retry and "was removed" in response.reason
            assert not list(journals(tmp_path / "c"))
            with refused(FileNotFoundError, "was removed"):
                first.storage.enforce()
            async with connected(other.replace("http", "ws")) as one:
                await one.send(hello())
                assert isinstance(await answer(one), protocol.Welcome)


async def test_serving_in_a_program(tmp_path: Path) -> None:
    """It listens inside the block, as often as one likes, and leaves logging and signals to the program."""
    before = (
        logging.getLogger().handlers[:],
        logging.getLogger("uvicorn.error").level,
        signal.getsignal(signal.SIGTERM),
    )
    for _ in range(2):
        async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving() as url:
            assert (await asyncio.to_thread(send_request, f"{url}/healthz")).json() == {"status": "ok"}
            with refused(DirectoryInUseError, os.getpid(), tmp_path):
                async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving():
                    pass
        with pytest.raises(OSError):
            await asyncio.to_thread(send_request, f"{url}/healthz")
    after = (
        logging.getLogger().handlers[:],
        logging.getLogger("uvicorn.error").level,
        signal.getsignal(signal.SIGTERM),
    )
    assert after == before


async def test_an_error_inside_ends_it(tmp_path: Path) -> None:
    """An exception of the block comes out, and the directory is free again."""
    with pytest.raises(RuntimeError, match="inside"):
        async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving():
            raise RuntimeError("inside")
    async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving():
        pass


async def test_reasons_for_not_listening_are_reported(tmp_path: Path) -> None:
    """A port that is taken, an address of another machine, a certificate that is none; the directory is free again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for settings in (
            CollectorSettings(directory=tmp_path, port=server.getsockname()[1]),
            CollectorSettings(directory=tmp_path, port=0, host="192.0.2.1", insecure=True),
            CollectorSettings(directory=tmp_path, port=0, certificate=Path(__file__)),
            CollectorSettings(directory=tmp_path, port=0, certificate=tmp_path / "none"),
        ):
            with pytest.raises(ListenError):
                async with Collector(settings).serving():
                    pass
    async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving():
        pass


def test_ipv6(tmp_path: Path) -> None:
    """Its address is one that browsers take."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with collecting(tmp_path, "--host", "::1") as collector:
        assert collector.url.startswith("http://[::1]:")
        assert collector.ranks() == {}


def test_streams_are_reported(tmp_path: Path) -> None:
    """The code of the WebSocket's end says that the service restarts, so that exporters come again."""
    with collecting(tmp_path) as collector:
        with connect(
            collector.url.replace("http", "ws") + protocol.PATH, subprotocols=[Subprotocol(protocol.SUBPROTOCOL)]
        ) as stream:
            collector.process.terminate()
            with pytest.raises(ConnectionClosed) as ended:
                stream.recv(timeout=20)
            assert "1012" in str(ended.value)


HELLO = bytes.fromhex("16030100c8010000c40303")
"""How a client begins, cut off."""
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    return certify(tmp_path_factory.mktemp("tls"))


async def test_unfinished_handshakes_make_room_for_others(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """However many connect and say nothing; exporters that stream are not disturbed, and the end does not wait for them."""
    made, key = certificate
    trusting = ssl.create_default_context(cafile=str(made))
    async with collecting_here(tmp_path, max_streams=1, max_readers=4, certificate=made, key=key) as running:
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


async def test_slow_handshakes_are_ended(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that says nothing, half of the handshake, or other bytes; a client that agrees has no more time for its request."""
    made, key = certificate
    trusting = ssl.create_default_context(cafile=str(made))
    async with collecting_here(tmp_path, certificate=made, key=key) as running:
        monkeypatch.setattr(web_protocols, "REQUEST_SECONDS", 1.5)
        opened = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(3)]
        opened[1][1].write(HELLO)
        opened[2][1].write(REQUEST)
        opened.append(await asyncio.open_connection("127.0.0.1", running.port, ssl=trusting))
        opened[3][1].write(b"GET /")
        for reader, stream in opened:
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                reply = await asyncio.wait_for(reader.read(), 30)
                assert b"HTTP" not in reply
            stream.close()
        await poll(lambda: not running.server.server_state.connections)


@pytest.mark.parametrize("there", [True, False])
def test_tls_that_one_side_lacks_is_named(there: bool, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """Which of the two it probably is, and what to write instead, by what sends streams and by what gives orders."""
    with trace(output_dir=tmp_path / "run"):
        pass
    made, key = certificate
    options = ("--certificate", str(made), "--key", str(key)) if there else ()
    with collecting(tmp_path / "c", *options) as collector:
        url = f"{'ws' if there else 'wss'}://{urlsplit(collector.url).netloc}"
        text = "probably wants TLS, use wss://" if there else "speaks no TLS: use ws://"
        for command in (("deliver", "run/journal", "--timeout", "2"), ("arm", "--steps", "1")):
            done = run_stepscope(*command, "--url", url, cwd=tmp_path)
            assert done.returncode == 1 and text in done.stderr, done.stderr


CLIENT = textwrap.dedent(
    """
    import os, sys, threading, time
    import stepscope as sc
    from stepscope.exporters.stream.exporter import CollectorExporter
    from stepscope.exporters.stream.transport import LinkSettings
    place, url, name, die = sys.argv[1:]
    settings = LinkSettings(first_delay=0.02, longest_delay=0.2, timeout=2.0)
    exporter = CollectorExporter(url, settings=settings)
    options = sc.Options(close_timeout=60.0, drain_interval=0.02)
    profiler = sc.trace(exporters=[exporter], output_dir=place, options=options)
    profiler.start()
    for number in range(120):
        for part in range(20):
            with sc.span(f"{name}-{number}", part=part):
                pass
        time.sleep(0.02)
        profiler.step()
        if number == int(die):
            os.kill(os.getpid(), 9)
    profiler.close()
    profiler.raise_errors()
    """
)


def test_each_event_is_stored_once_through_kills(tmp_path: Path) -> None:
    """Four exporters, two of which are killed, and a collector that is killed over and over."""
    chance = random.Random(11)
    port = free_port()
    url = f"ws://127.0.0.1:{port}"
    fates = {"a": -1, "b": -1, "c": 50, "d": 100}
    collector = Process(tmp_path / "c", port).wait()
    clients = {
        name: subprocess.Popen([sys.executable, "-c", CLIENT, str(tmp_path / name), url, name, str(die)])
        for name, die in fates.items()
    }
    try:
        kills = 0
        while any(client.poll() is None for client in clients.values()):
            time.sleep(chance.uniform(0.05, 0.6))
            if kills < 5:
                collector.kill()
                time.sleep(chance.uniform(0.0, 0.5))
                collector = Process(tmp_path / "c", port).wait()
                kills += 1
        assert {name: client.returncode for name, client in clients.items()} == {"a": 0, "b": 0, "c": -9, "d": -9}
        assert not (tmp_path / "a" / "unsent").exists()
        for name in "cd":
            command = [*COMMAND, "deliver", str(tmp_path / name), "--url", url]
            with contextlib.suppress(subprocess.TimeoutExpired):
                run_to_end(command, timeout=chance.uniform(0.5, 1.5), server="command")  # killed as well
            run_to_end(command, timeout=60, server="command")
            # Byte by byte what was recovered.
            recovered = (tmp_path / name / "journal").read_bytes()
            assert any(path.read_bytes() == recovered for path in journals(tmp_path / "c"))
    finally:
        for client in clients.values():
            client.kill()
            client.wait()
        collector.end()
    found = Counter[str]()
    for path in journals(tmp_path / "c"):
        found.update(spans_of(path))
    expected = {f"{name}-{number}": 20 for name, die in fates.items() for number in range(120 if die < 0 else die + 1)}
    assert {name: count for name, count in found.items() if "-" in name} == expected
