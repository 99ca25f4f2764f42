"""A collector's beginning and end."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

import stepscope
from stepscope.collector.app import Collector
from stepscope.collector.errors import DirectoryInUseError, ListenError
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.stream import protocol
from tests.support.collecting import ask, collecting, training
from tests.support.launch import run_to_end
from tests.support.messages import refused


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_within_five_seconds(tmp_path: Path, number: signal.Signals) -> None:
    """With a rank that streams, live events that nobody reads and an idle connection; those who listen are told."""
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
        open_to, *said = collector.process.stderr.read().splitlines()
        assert "no token is set" in open_to and said and all(" rank 0 of job job (pid " in line for line in said)


def test_it_says_how_to_stream_to_it_and_who_does(tmp_path: Path) -> None:
    """The line that it prints is what a training script needs; each stream's begin and end is a line of the log."""
    with collecting(tmp_path / "collected") as collector:
        assert collector.process.stdout is not None
        given = collector.process.stdout.readline().removeprefix("in training scripts: exporters=")
        assert collector.url.replace("http://", "ws://") in given
        exporters = eval(given, {"sc": stepscope, "Path": Path})
        with stepscope.trace(exporters=exporters, name="a\tjob", rank=3, output_dir=tmp_path / "run"):
            with stepscope.span("work"):
                pass
        collector.when(lambda ranks: ranks[3]["state"] == "ended")
        _, said = collector.stop()
    open_to, first, last = said.splitlines()
    assert " no token is set (--token-file, STEPSCOPE_TOKEN): every user of this machine can read all" in open_to
    who = rf"rank 3 of job a\\tjob \(pid {os.getpid()} on {re.escape(socket.gethostname())}\)"
    assert re.search(rf" {who} is connected: stream [0-9a-f]{{32}}$", first)
    assert re.search(rf" {who} has ended$", last)


def test_others_are_shown_this_machines_name(tmp_path: Path) -> None:
    """Nobody can connect to the address that stands for all of a machine's."""
    token = tmp_path / "token"
    token.write_text("a-token-of-this-test")
    with collecting(tmp_path / "c", "--host", "0.0.0.0", "--insecure", "--token-file", str(token)) as collector:
        assert collector.process.stdout is not None
        given = collector.process.stdout.readline()
    port = collector.url.rpartition(":")[2]
    assert given.endswith(
        f'CollectorExporter("ws://{socket.gethostname()}:{port}", token=Path({str(token)!r}), settings=sc.exporters.LinkSettings(insecure=True))]\n'
    )


def test_a_second_collector_is_refused(tmp_path: Path) -> None:
    """It is told who has the directory; when that one was killed, nothing is in the way."""
    command = [sys.executable, "-m", "stepscope", "collect", "--dir", str(tmp_path), "--port", "0"]
    with collecting(tmp_path) as collector:
        second = run_to_end(command, timeout=60, server="command")
        assert second.returncode == 1 and f"pid {collector.process.pid}" in second.stderr
        assert collector.ranks() == {}
        collector.process.kill()
        collector.process.wait()
    with collecting(tmp_path):
        pass


async def test_serving_in_a_program(tmp_path: Path) -> None:
    """It listens inside the block, as often as one likes, and leaves logging and signals to the program."""
    before = (
        logging.getLogger().handlers[:],
        logging.getLogger("uvicorn.error").level,
        signal.getsignal(signal.SIGTERM),
    )
    for _ in range(2):
        async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving() as url:
            assert (await asyncio.to_thread(ask, f"{url}/healthz")).json() == {"status": "ok"}
            with refused(DirectoryInUseError, os.getpid(), tmp_path):
                async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving():
                    pass
        with pytest.raises(OSError):
            await asyncio.to_thread(ask, f"{url}/healthz")
    after = (
        logging.getLogger().handlers[:],
        logging.getLogger("uvicorn.error").level,
        signal.getsignal(signal.SIGTERM),
    )
    assert after == before


async def test_an_error_inside_ends_it(tmp_path: Path) -> None:
    """What the block raises comes out, and the directory is free again."""
    with pytest.raises(RuntimeError, match="inside"):
        async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving():
            raise RuntimeError("inside")
    async with Collector(CollectorSettings(directory=tmp_path, port=0)).serving():
        pass


async def test_what_keeps_it_from_listening_is_reported(tmp_path: Path) -> None:
    """A port that is taken, an address of another machine, a certificate that is none; the directory is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for settings in (
            CollectorSettings(directory=tmp_path, port=taken.getsockname()[1]),
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
