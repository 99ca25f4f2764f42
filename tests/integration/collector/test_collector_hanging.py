"""A disk that hangs costs confirmations and what reads files, and nothing else of a collector."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from stepscope.collector.downloads.downloads import THREADS as READING
from stepscope.collector.files import store
from stepscope.exporters.stream import protocol
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import EndRecord
from tests.support.basics import missing
from tests.support.collecting import CollectorProcess, collecting, send_request, trained, wait_until
from tests.support.disks import hanging_disk
from tests.support.streams import SYNC, frames, frames_header, hello
from tests.unit.collector.test_collector_live import record_frame

TOKEN = "a-token-of-this-test"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}
COUNT = 12
"""Exporters that come while the disk hangs."""


def stream_id(number: int) -> str:
    """Of one of several streams."""
    return f"{number:032x}"


def joined(collector: CollectorProcess) -> contextlib.AbstractContextManager[ClientConnection]:
    """A connection of an exporter."""
    url = f"ws://{urlsplit(collector.url).netloc}{protocol.PATH}"
    return connect(url, subprotocols=[Subprotocol(protocol.SUBPROTOCOL)], additional_headers=ALLOWED, compression=None)


def next_message(made: ClientConnection) -> protocol.Header:
    """The next message of the collector."""
    message = made.recv(30)
    assert isinstance(message, bytes)
    return protocol.decode(message)[0]


def threads(collector: CollectorProcess) -> int:
    """How many the collector has."""
    return len(list(Path(f"/proc/{collector.process.pid}/task").iterdir()))


def snapshots(answer: Any) -> Generator[Any]:
    """The snapshots in a stream of live events."""
    while line := answer.readline():
        if line.startswith(b"data:"):
            yield json.loads(line[5:])


def test_a_frozen_disk(tmp_path: Path) -> None:
    """Requests that need no file, refusals, clocks and live events are answered; others get an error, on a few threads.
    When the disk answers again all go on, and what was confirmed is there."""
    with (
        hanging_disk(tmp_path / "disk") as disk,
        collecting(disk.path / "c", STEPSCOPE_TOKEN=TOKEN) as collector,
        contextlib.ExitStack() as stack,
    ):
        trained(collector.url, 0, token=TOKEN)
        wait_until(lambda: collector.get("/v1/job", ALLOWED)["ended"])
        one, two = (stack.enter_context(joined(collector)) for _ in range(2))
        for number, made in enumerate((one, two)):
            made.send(hello(stream=stream_id(number)))
            assert isinstance(next_message(made), protocol.Welcome)
        one.send(protocol.encode(frames_header(0, 3), frames(0, 3)))
        assert next_message(one) == protocol.Ack(3)
        asked = urllib.request.Request(f"{collector.url}/v1/events", headers=ALLOWED)
        events = snapshots(stack.enter_context(urllib.request.urlopen(asked, timeout=40)))
        assert next(events)["full"]
        usual = threads(collector)

        disk.freeze()
        one.send(protocol.encode(frames_header(3, 2), frames(3, 2)))
        waiting = [stack.enter_context(joined(collector)) for _ in range(COUNT)]
        for number, made in enumerate(waiting, 2):
            made.send(hello(stream=stream_id(number)))
        pool = stack.enter_context(ThreadPoolExecutor())
        download = f"{collector.url}/v1/windows/0/chrome"
        wanted = [pool.submit(send_request, download, ALLOWED) for _ in range(2)]
        for _ in range(20):
            assert send_request(f"{collector.url}/v1/ranks").status == 401
            assert send_request(f"{collector.url}/healthz").status == 200
        two.send(protocol.encode(protocol.Ping(17)))
        pong = next_message(two)
        assert isinstance(pong, protocol.Pong) and pong.sent == 17
        wait_until(lambda: "does not answer" in collector.get("/v1/job", ALLOWED)["storage"]["problem"])
        waits = next(
            line
            for line in send_request(f"{collector.url}/metrics", ALLOWED).body.decode().splitlines()
            if line.startswith("stepscope_disk_wait_seconds")
        )
        assert float(waits.split()[1]) > 0
        assert not next(events)["full"] and not next(events)["full"]
        for one_wanted in wanted:
            answer = one_wanted.result()
            assert (answer.status, answer.headers["retry-after"]) == (503, "10")
            assert "disk does not answer" in answer.json()["detail"]
        assert threads(collector) <= usual + store.THREADS + READING + 2, "the writer's and the audit's"

        disk.thaw()
        assert next_message(one) == protocol.Ack(5)
        for made in waiting:
            assert isinstance(next_message(made), protocol.Welcome)
            made.send(protocol.encode(frames_header(0, 1), frames(0, 1)))
            assert next_message(made) == protocol.Ack(1)
        assert send_request(download, ALLOWED).status == 200
        wait_until(lambda: collector.get("/v1/job", ALLOWED)["storage"]["problem"] == "")
        for made in (one, two, *waiting):
            made.close()
        log = collector.stop()[1]
        assert log and "rror" not in log and "Traceback" not in log
        journal = disk.path / "c" / "streams" / stream_id(0) / "journal"
        assert journal.read_bytes() == fmt.encode_file_header(SYNC) + frames(0, 5)
        refused = (disk.path / "c" / "refused.jsonl").read_text().splitlines()
        assert refused and all("show the collector's token" in line for line in refused)
        audit = [json.loads(line)["action"] for line in (disk.path / "c" / "audit.jsonl").read_text().splitlines()]
        assert audit.count("stream") == 3 + COUNT and audit[0] == "start" and audit[-1] == "stop"


@contextlib.contextmanager
def traced(pid: int, report: Path) -> Generator[None]:
    """System calls of a process's main thread during the block, with the names of files."""
    strace = shutil.which("strace")
    if strace is None:
        missing("strace", "Install it (on Debian: apt-get install strace).")
    command = [strace, "-p", str(pid), "-y", "-s", "0", "-e", "trace=%file,%desc", "-o", str(report)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        if "attached" not in line:
            process.wait()
            missing(f"the right to trace a process ({line.strip()})", "Run the tests as root.")
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def test_the_loop_asks_nothing_of_the_disk(tmp_path: Path) -> None:
    """Its thread makes no call that names a file of the collector's directory, whatever is asked and sent."""
    directory, report = tmp_path / "c", tmp_path / "calls"
    with collecting(directory, STEPSCOPE_TOKEN=TOKEN) as collector:
        trained(collector.url, 0, token=TOKEN)
        wait_until(lambda: collector.get("/v1/job", ALLOWED)["ended"] == 1)
        stream = collector.get("/v1/ranks", ALLOWED)[0]["stream"]
        with traced(collector.process.pid, report):
            trained(collector.url, 1, token=TOKEN, steps=10)
            wait_until(lambda: collector.get("/v1/job", ALLOWED)["ended"] == 2)
            with joined(collector) as one:
                one.send(hello(stream=stream_id(1)))
                assert isinstance(next_message(one), protocol.Welcome)
                kind, flags, body = record_frame(fmt.FrameType.END, EndRecord())
                end = b"".join(bytes(part) for part in fmt.encode_frame(SYNC, kind, 0, [body], flags))
                one.send(protocol.encode(frames_header(0, 1), end))
                assert next_message(one) == protocol.Ack(1)
            assert send_request(f"{collector.url}/v1/ranks").status == 401
            of_stream = f"/v1/streams/{stream}"
            for path, status in (
                ("/v1/windows/0/chrome", 200),
                (f"{of_stream}/windows/0/perfetto", 200),
                (f"{of_stream}/windows/0/statistics", 200),
                (f"{of_stream}/journal", 200),
                (f"/v1/streams/{'0' * 32}/journal", 404),
                ("/v1/steps", 200),
                ("/metrics", 200),
            ):
                assert send_request(collector.url + path, ALLOWED).status == status, path
            ordered = send_request(f"{collector.url}/v1/windows", ALLOWED, method="POST", body=b'{"steps": 1}')
            assert ordered.status == 404
        lines = report.read_text().splitlines()
    assert any("epoll" in line for line in lines)
    assert [line for line in lines if str(directory) in line] == []
