"""The making of downloads and tables has bounds: of memory, time and size, of those who read, and when the collector is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path

import msgspec
import pytest

from stepscope.collector.app import Collector
from stepscope.collector.downloads import downloads as downloads_module
from stepscope.collector.downloads.bounded import AT_ONCE, WAITING
from stepscope.collector.downloads.downloads import Bounds, Download, Downloads, Source
from stepscope.collector.errors import StuckError
from stepscope.collector.files import blocking_pool
from stepscope.collector.files.disk import disk_use
from stepscope.collector.live.stream import Stream
from stepscope.collector.problems import ProblemError
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web import api, web_protocols
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import INCOMPLETE
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import WindowOpened, encode_record
from tests.support.basics import children, poll
from tests.support.collecting import send_request, wait_until
from tests.support.collectors import answer, collecting, connected
from tests.support.messages import refused
from tests.support.streams import RUN, STREAM, frames, frames_header, hello
from tests.support.window_streams import END, run_of, stored, windows


def kind(program: str, *, grows: bool = True) -> Download:
    """A kind of file that a program writes; `{}` in it is the file."""

    def command(sources: Sequence[Source], window: int | None, target: Path) -> Sequence[str]:
        return ["-c", program.replace("{}", repr(str(target)))]

    return Download(name="x", suffix=".x", command=command, grows=grows)


async def joined(chunks: AsyncGenerator[bytes]) -> bytes:
    """Everything that comes."""
    return b"".join([chunk async for chunk in chunks])


def remaining_files(directory: Path) -> list[Path]:
    """Files of downloads that were not removed."""
    return list((directory / "downloads").iterdir())


TWO_PARTS = """
import pathlib, sys, time
with open({}, "wb") as file:
    file.write(b"a" * 100_000)
    file.flush()
    while not pathlib.Path(GO).exists():
        time.sleep(0.01)
    file.write(b"b" * 50_000)
    file.flush()
sys.exit(END)
"""
"""Waits in the middle until `GO` is there."""


def in_two_parts(go: Path, *, grows: bool = True, end: str = "") -> Download:
    """A kind of file whose writer waits in the middle until `go` is there, and may say why it fails then."""
    return kind(TWO_PARTS.replace("GO", repr(str(go))).replace("END", repr(end or 0)), grows=grows)


@pytest.mark.parametrize("grows", [True, False])
async def test_a_file_is_sent_while_it_is_written(tmp_path: Path, grows: bool) -> None:
    """One that is changed as it grows is sent when it is whole."""
    go = tmp_path / "go"
    chunks = Downloads(tmp_path).send(in_two_parts(go, grows=grows), [], 0)
    first = asyncio.ensure_future(anext(chunks))
    await asyncio.wait({first}, timeout=60 if grows else 1.0)
    assert first.done() == grows and (not grows or first.result() == b"a" * 100_000)
    go.touch()
    assert await first + await joined(chunks) == b"a" * 100_000 + b"b" * 50_000
    assert not remaining_files(tmp_path)


async def test_a_file_that_breaks_off_is_no_whole_one(tmp_path: Path) -> None:
    """Its reader gets an answer that is cut, and the log says why."""
    go = tmp_path / "go"
    chunks = Downloads(tmp_path).send(in_two_parts(go, end="the disk is full"), [], 0)
    assert await anext(chunks)
    go.touch()
    with refused(RuntimeError, "the disk is full"):
        await joined(chunks)
    assert not remaining_files(tmp_path)


async def test_the_writer_is_ended_when_nobody_reads(tmp_path: Path) -> None:
    before = children(os.getpid())
    chunks = Downloads(tmp_path).send(in_two_parts(tmp_path / "go"), [], 0)
    assert await anext(chunks)
    assert children(os.getpid()) - before
    await chunks.aclose()
    assert not children(os.getpid()) - before and not remaining_files(tmp_path)


@pytest.mark.parametrize(
    ("program", "bounds", "facts"),
    [
        ("x = bytearray(1 << 30)", Bounds(memory_bytes=256 << 20), ["MemoryError"]),
        ("import time; time.sleep(1000)", Bounds(seconds=5.0), ["5 seconds"]),
        (
            "open({}, 'wb').write(b'x' * (1 << 20))",
            Bounds(file_bytes=1 << 18),
            ["262,144 bytes", "stepscope merge"],
        ),
    ],
)
async def test_a_download_that_exceeds_its_bounds_is_ended(
    tmp_path: Path, program: str, bounds: Bounds, facts: list[str]
) -> None:
    """The client gets the reason, no file of it is left, and the next one is made."""
    downloads = Downloads(tmp_path, bounds)
    before = children(os.getpid())
    with refused(ProblemError, *facts, snapshot=False):  # with a traceback, which versions of Python write differently
        await joined(downloads.send(kind(program, grows=False), [], 0))
    assert not remaining_files(tmp_path) and children(os.getpid()) == before
    assert await joined(downloads.send(kind("open({}, 'wb').write(b'fine')"), [], 0)) == b"fine"


async def test_a_download_that_exceeds_its_time_breaks_off(tmp_path: Path) -> None:
    """The client does not take the sent part for a whole file."""
    downloads = Downloads(tmp_path, Bounds(seconds=5.0))
    chunks = downloads.send(kind("import time; open({}, 'wb').write(b'x' * 100_000); time.sleep(1000)"), [], 0)
    with refused(RuntimeError, "5 seconds"):
        await joined(chunks)
    assert not remaining_files(tmp_path)


async def test_only_the_end_of_its_output_is_stored(tmp_path: Path) -> None:
    """A process that writes pages of warnings fills no memory, and does not wait for somebody to read them."""
    downloads = Downloads(tmp_path)
    program = "import sys; [sys.stderr.write('y' * 65536) for _ in range(300)]; sys.exit('the end')"
    with refused(ProblemError, "the end") as caught:
        await joined(downloads.send(kind(program), [], 0))
    assert len(caught.value.detail) < 400


async def test_a_file_that_lacks_a_journal_is_sent(tmp_path: Path) -> None:
    """A merge that could not read all journals has written the others."""
    program = f"import sys; open({{}}, 'wb').write(b'the others'); sys.exit({INCOMPLETE})"
    assert await joined(Downloads(tmp_path).send(kind(program), [], 0)) == b"the others"


async def test_a_disk_that_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for a journal is answered, and not only when the disk answers."""
    free = threading.Event()

    def hanging(path: Path) -> Generator[bytes]:
        free.wait(60)
        yield b"late"

    monkeypatch.setattr(downloads_module, "journal_copy", hanging)
    monkeypatch.setattr(downloads_module, "THREADS", 1)
    monkeypatch.setattr(blocking_pool, "PATIENCE", 0.2)
    downloads = Downloads(tmp_path)
    try:
        with refused(StuckError):
            await asyncio.wait_for(joined(downloads.journal(tmp_path / "journal")), 30)
    finally:
        free.set()


async def test_a_reader_that_is_too_slow_is_given_up(tmp_path: Path) -> None:
    """Its turn is for others; one that takes what there is at once may wait as long as it takes to be made."""
    program = "open({}, 'wb').write(b'x' * 1_000_000)"
    impatient = Downloads(tmp_path, Bounds(grace=0.0, least_rate=1e15))
    with refused(RuntimeError, "262144", snapshot=False):  # it has the time that it took
        await joined(impatient.send(kind(program), [], 0))
    assert not remaining_files(tmp_path)
    assert len(await joined(Downloads(tmp_path).send(kind(program), [], 0))) == 1_000_000


async def test_a_reader_that_stalls_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes nothing: the connection, the process and the file go, however much is still to be sent."""
    monkeypatch.setattr(web_protocols, "STALLED", 0.3)
    before = children(os.getpid())
    async with collecting(tmp_path) as running:
        stored(running.collector.store, STREAM, [run_of()])
        program = "import time; open({}, 'wb').write(b'x' * (64 << 20)); time.sleep(1000)"
        running.collector.downloads.of_rank["x"] = kind(program)
        with socket.create_connection(("127.0.0.1", running.port)) as client:
            client.sendall(f"GET /v1/streams/{STREAM}/windows/0/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            await poll(lambda: children(os.getpid()) - before)
            await poll(lambda: children(os.getpid()) == before)
            await poll(lambda: not remaining_files(tmp_path))
            await poll(lambda: not running.server.server_state.connections)


PARENT = """
import asyncio, sys
from pathlib import Path
from stepscope.collector.downloads.downloads import Download, Downloads

def command(sources, window, target):
    return ["-c", f"import time; open({str(target)!r}, 'wb').write(b'x' * 100_000); time.sleep(1000)"]

async def main():
    downloads = Downloads(Path(sys.argv[1]))
    async for _ in downloads.send(Download(name="x", suffix=".x", command=command), [], 0):
        print("made", flush=True)

asyncio.run(main())
"""


def test_its_process_ends_with_the_collector(tmp_path: Path) -> None:
    """Also if that is killed; what lies there is deleted by the next one."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None and parent.stdout.readline() == "made\n"
        (child,) = children(parent.pid)
    finally:
        parent.kill()
        parent.communicate()

    def state() -> str:
        try:
            return Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "gone"

    wait_until(lambda: state() in ("gone", "Z", "X"))
    assert remaining_files(tmp_path)
    Downloads(tmp_path).clear()
    assert not (tmp_path / "downloads").exists()
    Downloads(tmp_path).clear()


async def test_no_more_are_made_than_may_be_at_once(tmp_path: Path) -> None:
    """Two are made, sixteen wait, and a further client gets the status to come later."""
    downloads = Downloads(tmp_path)
    go = tmp_path / "go"
    waits = f"import time, pathlib\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nopen({{}}, 'wb').write(b'x')"
    before = children(os.getpid())
    running = [asyncio.create_task(joined(downloads.send(kind(waits), [], 0))) for _ in range(18)]
    await poll(lambda: len(children(os.getpid()) - before) == 2)
    with refused(ProblemError):
        await joined(downloads.send(kind(waits), [], 0))
    assert len(children(os.getpid()) - before) == 2
    go.touch()
    assert await asyncio.gather(*running) == [b"x"] * 18
    assert not remaining_files(tmp_path)


LARGE = """
import os, pathlib, time
with open({}, "wb") as file:
    file.write(os.urandom(SIZE))
while not pathlib.Path(GO).exists():
    time.sleep(0.01)
"""


async def test_they_stay_within_the_limit_of_the_disk(tmp_path: Path) -> None:
    """Room for as many as are made at once stays free: streams that fill the disk leave it, and nothing is given up for it."""
    limit, go = 16 << 20, tmp_path / "go"
    size = limit // 16
    collector = Collector(CollectorSettings(directory=tmp_path / "collected", port=0, disk_bytes=limit))
    large = kind(LARGE.replace("SIZE", str(size)).replace("GO", repr(str(go))))
    async with collector.serving() as url, connected(url.replace("http", "ws")) as one:
        await one.send(hello())
        response, first = await answer(one), 0
        while not isinstance(response, protocol.Refused):
            await one.send(protocol.encode(frames_header(first, 1), frames(first, 1, size=size // 4)))
            response, first = await answer(one), first + 1
        assert f"limit of {limit} bytes on disk" in response.reason
        assert limit * 3 // 4 < disk_use(collector.settings.directory).total
        made = [asyncio.create_task(joined(collector.downloads.send(large, [], 0))) for _ in range(2)]
        await poll(lambda: disk_use(collector.settings.directory).downloads >= 2 * size)
        assert disk_use(collector.settings.directory).total <= limit
        go.touch()
        assert [len(data) for data in await asyncio.gather(*made)] == [size, size]
        with refused(ProblemError, f"{size:,} bytes", "stepscope merge", snapshot=False):
            await joined(
                collector.downloads.send(kind(f"open({{}}, 'wb').write(bytes({2 * size}))", grows=False), [], 0)
            )


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


async def test_abandoned_downloads_are_not_read(tmp_path: Path) -> None:
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
            assert (await asyncio.to_thread(send_request, url)).json()["left_out"] == 0
            assert len(processes) < len(clients) / 2


async def test_files_of_many_ranks_are_found_though_each_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk of a network: all together take longer than the disk may take to answer."""
    monkeypatch.setattr(blocking_pool, "PATIENCE", 1.5)
    monkeypatch.setattr(api, "TOGETHER", 32, raising=False)
    async with collecting(tmp_path) as running:
        store, existing = running.collector.store, running.collector.store.existing

        def slowly(stream: str) -> Path | None:
            time.sleep(0.01)
            return existing(stream)

        monkeypatch.setattr(store, "existing", slowly)
        for rank in range(300):
            run = msgspec.structs.replace(RUN, rank=rank)
            running.collector.streams.add(stream := Stream(f"{rank:032x}", run))
            stream.add_frames([(fmt.FrameType.WINDOW_OPENED, 0, encode_record(WindowOpened(0, 0)))], 0, 1)
        response = await asyncio.to_thread(send_request, f"http://127.0.0.1:{running.port}/v1/windows/0/perfetto")
    assert response.status == 404 and "no file is left of window 0" in response.json()["detail"]
