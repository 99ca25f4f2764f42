"""Uploads of a collector and of `stepscope upload`, with processes killed in between and faults of the store."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import uuid
from pathlib import Path
from typing import IO, Any

import pytest

from stepscope.cli.main import main
from stepscope.collector.app import Collector
from stepscope.collector.clocks import server_clock
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.upload import uploader as uploader_module
from stepscope.collector.upload.object_store import ObjectStore
from stepscope.collector.upload.uploader import Uploading
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import OutputError
from tests.integration.collector.test_merge import syncs_of
from tests.support.basics import poll
from tests.support.collecting import collecting, send_request, trained, wait_until
from tests.support.collectors import answer, connected
from tests.support.messages import check_messages, refused
from tests.support.object_stores import HangingStore, Stream, contents, following
from tests.support.streams import STREAM, frames_header, hello
from tests.support.window_streams import END, Frame, encoded, run_of, windows
from tests.unit.collector.test_merge_clocks import OURS, add, named


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path / 'remote'}"


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    return tmp_path / "collected"


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_collector_that_is_killed_in_the_middle_goes_on(collected: Path, tmp_path: Path) -> None:
    """Killed three times: what is under the name of a segment is whole at any time, and in the end everything is there."""
    for number in range(60):
        Stream(collected, number, windows=12).end()
    made = contents(collected / "streams")
    remote = tmp_path / "remote"
    for kills in range(4):
        with collecting(collected, "--upload", f"file://{remote}") as collector:
            if kills < 3:
                wanted = kills * 40 + 1
                wait_until(lambda: len(list(remote.rglob("journal*"))) >= wanted)  # noqa: B023
                collector.process.send_signal(signal.SIGKILL)
                collector.process.wait()
                there = contents(remote)
                assert all(there[name] == made[name] for name in there.keys() & made.keys())
            else:
                upload = wait_until(lambda: (u := collector.get("/v1/job")["upload"])["complete"] == 60 and u)
                assert (upload["streams"], upload["waiting_bytes"], upload["problem"]) == (60, 0, "")
                assert upload["url"] == f"file://{remote}" and upload["at_ns"] != 0
    there = contents(remote)
    assert {name: data for name, data in there.items() if name in made} == made
    assert all(name.endswith(".part") for name in there.keys() - made.keys() - {"clocks.json"})


async def test_an_ended_uploader_puts_no_object(collected: Path, tmp_path: Path) -> None:
    """Not even what was being put, if the store answers within two seconds."""
    Stream(collected, windows=12).end()
    remote = tmp_path / "remote"
    other = HangingStore(remote)
    uploading = Uploading(collected, other.url, every=0.05)
    task = asyncio.create_task(uploading.run())
    await poll(other.hangs.is_set)
    task.cancel()
    await asyncio.sleep(0.05)
    other.go.set()
    await asyncio.wait([task])
    assert contents(remote) == {}


async def test_a_store_that_fails_is_reported_and_asked_again(
    collected: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A journal that cannot be read costs itself alone. Each reason is logged once."""
    for number in range(3):
        Stream(collected, number, windows=12).end()
    bad = Stream(collected, 15).end()
    bad.journal.write_bytes(b"no journal" * 10)
    remote = tmp_path / "remote"
    remote.write_text("in the way")
    uploading = Uploading(collected, f"file://{remote}", every=0.02)
    with caplog.at_level(logging.ERROR, "stepscope.collector"):
        task = asyncio.create_task(uploading.run())
        await poll(lambda: uploading.view().problem)
        assert uploading.view().bytes == 0
        await asyncio.sleep(0.2)
        remote.unlink()
        await poll(lambda: uploading.view().complete == 3)
        await poll(lambda: "not a stepscope journal" in uploading.view().problem)
        await asyncio.sleep(0.1)
        await cancel(task)
    logged = [record.getMessage() for record in caplog.records]
    assert len(logged) == 2 and "in the way" not in logged[0] and "not a stepscope journal" in logged[1]
    there = {name for name in contents(collected / "streams") if bad.id not in name}
    assert set(ObjectStore(f"file://{remote}").sizes()) == there


class StrangeError(Exception):
    """As of a library that knows nothing of OSError."""


@pytest.mark.parametrize("operation", ["find", "open"])
async def test_any_error_of_a_store_is_reported_and_over_the_next_time(
    collected: Path, url: str, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Libraries of object stores have errors of their own."""

    def fails(*_: Any, **options: Any) -> None:
        raise StrangeError("no route")

    Stream(collected, windows=6).end()
    uploading = Uploading(collected, url, every=0.05)
    files: Any = uploading._uploader.store.files  # pyright: ignore[reportPrivateUsage]
    with monkeypatch.context() as away:
        away.setattr(files, operation, fails)
        task = asyncio.create_task(uploading.run())
        await poll(lambda: "StrangeError: no route" in uploading.view().problem)
    await poll(lambda: uploading.view().complete == 1 and not uploading.view().problem)
    await cancel(task)


def test_a_wrong_url_is_refused_at_once_and_no_password_shown(tmp_path: Path) -> None:
    with refused(OutputError) as caught:
        Uploading(tmp_path, "ftp://me:secret@host/x", every=1.0)
    assert "secret" not in str(caught.value)
    with refused(OutputError, "nosuch"):
        Collector(CollectorSettings(directory=tmp_path / "other", upload="nosuch://x"))


async def streamed(url: str, made: list[Frame], first: int, last: int) -> None:
    """Sends frames as an exporter does that waits for confirmations; each is accepted."""
    async with connected(url.replace("http", "ws")) as one:
        await one.send(hello(stream=STREAM))
        welcome = await answer(one)
        assert isinstance(welcome, protocol.Welcome) and welcome.next == first
        for at in range(first, last, 5):
            some = made[at : min(at + 5, last)]
            await one.send(protocol.encode(frames_header(at, len(some)), encoded(some, at)))
            assert await answer(one) == protocol.Ack(at + len(some))


async def test_a_store_that_hangs_stops_no_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says so. Frames that were streamed meanwhile are put when the store answers."""
    monkeypatch.setattr(uploader_module, "SILENCE_S", 0.1)
    collected = tmp_path / "collected"
    Stream(collected, 5, windows=6).end()
    other = HangingStore(tmp_path / "remote")
    made = [run_of(), *windows(range(24), 64 << 10), END]
    collector = Collector(CollectorSettings(directory=collected, port=0, upload=other.url, upload_seconds=0.05))
    try:
        async with collector.serving() as url:
            assert collector.uploading is not None
            view = collector.uploading.view
            await poll(other.hangs.is_set)
            await streamed(url, made, 0, len(made))
            await poll(lambda: "nothing was heard of the store" in view().problem)
            assert view().bytes == 0
            other.go.set()
            await poll(lambda: view().complete == 2 and not view().problem)
    finally:
        other.go.set()
    there = contents(collected / "streams")
    sizes = ObjectStore(f"file://{tmp_path / 'remote'}").sizes()
    assert sizes == {name: len(data) for name, data in there.items() if "/journal" in name} | {
        "clocks.json": sizes["clocks.json"]
    }


def test_an_upload_follows_streams_that_grow(tmp_path: Path) -> None:
    """Beside a collector that uploads the same to the same place; in the end all is there."""
    collected, remote = tmp_path / "collected", tmp_path / "remote"
    streams = [Stream(collected, number) for number in range(4)]
    upload = ("--upload", f"file://{remote}", "--upload-every", "0.05")
    with (
        following(collected, remote, 0.03, "--unfinished"),
        collecting(collected, *upload) as collector,
    ):
        for _ in range(20):
            for stream in streams:
                stream.grow()
        for stream in streams:
            stream.end()
        trained(collector.url, 0)
        wait_until(lambda: collector.get("/v1/job")["upload"]["complete"] == 1)
        text = send_request(f"{collector.url}/metrics").body.decode()
        assert "stepscope_upload_waiting_bytes 0.0" in text and "stepscope_uploaded_bytes_total" in text
        made = {name: data for name, data in contents(collected / "streams").items() if "/journal" in name}
        wait_until(lambda: made.items() <= contents(remote).items())


def line(stream: IO[str] | None) -> str:
    """The next line that a process writes."""
    assert stream is not None
    return stream.readline()


def test_failed_uploads_are_reported_and_tried_again(tmp_path: Path) -> None:
    """With pauses that grow, as long as it fails; then as often as before."""
    stream = Stream(tmp_path / "collected", windows=12)
    remote = tmp_path / "remote"
    remote.write_text("in the way")
    with following(tmp_path / "collected", remote, 0.05) as process:
        for least in (0.05, 0.05, 0.1):
            output = line(process.stderr)
            assert str(remote) in output
            pause = float(output.rpartition("tried again in ")[2].removesuffix(" s\n"))
            assert least <= pause <= 2 * least
        remote.unlink()
        closed = len(stream.segments) - 1
        assert line(process.stdout).startswith(f"1 streams, 0 complete: {closed} objects")
        assert line(process.stdout).startswith("1 streams, 0 complete: 0 objects")
        stream.end()
        while not (output := line(process.stdout)).startswith("1 streams, 1 complete: 1 objects"):
            assert output.startswith("1 streams, 0 complete: 0 objects")
    assert contents(remote) == contents(tmp_path / "collected" / "streams")


def merged(directory: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """The spans of all ranks, and what the command says of them."""
    assert main(["merge", str(directory), "--out", str(out)]) == 0
    events = json.loads(out.read_text())
    spans = sorted((event["pid"], event["ts"], event["dur"], event["name"]) for event in events if event["ph"] == "X")
    return spans, capsys.readouterr().out


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A collector's directory of two ranks, whose clocks it has compared with its own."""
    directory = tmp_path / "job"
    for rank in (0, 1):
        add(directory, rank, named(syncs_of(rank * 10**9), OURS))
    server_clock.add_clock_name(directory, OURS)
    return directory


def test_uploaded_segments_are_restored_and_merged(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The times of ranks are aligned as before; restoring again restores what is missing."""
    url, back = f"file://{tmp_path / 'remote'}", tmp_path / "back"
    assert main(["upload", str(job), url]) == 0
    assert capsys.readouterr().out.startswith("2 streams, 2 complete: 2 objects")
    assert main(["upload", str(job), url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"streams": 2, "complete": 2, "objects": 0, "nbytes": 0}
    assert main(["upload", "--restore", str(back), url]) == 0
    assert capsys.readouterr().out.startswith("2 streams: 2 segments")
    assert main(["upload", "--restore", str(back), url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["streams"] == 2
    made = {name: data for name, data in contents(job / "streams").items() if name.endswith("/journal")}
    assert contents(back / "streams") == made
    assert server_clock.read_clock_names(back) == frozenset({OURS})
    spans, report = merged(back, tmp_path / "back.json", capsys)
    assert (spans, report) == merged(job, tmp_path / "job.json", capsys) and len(spans) > 20
    second = max(back.glob("streams/*/journal"))
    second.write_bytes(second.read_bytes()[:1000])
    assert main(["upload", "--restore", str(back), url]) == 0
    assert capsys.readouterr().out.startswith("2 streams: 1 segments")
    assert contents(back / "streams") == made


def test_unrestorable_jobs(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing is; and not into the files of a collector that runs."""
    remote = tmp_path / "remote"
    assert main(["upload", "--restore", str(tmp_path / "back"), f"file://{remote}"]) == 1
    check_messages(capsys.readouterr().err, "stepscope upload", "URL")
    assert not (tmp_path / "back").exists()
    assert main(["upload", str(job), f"file://{remote}"]) == 0
    with collecting(tmp_path / "back"):
        assert main(["upload", "--restore", str(tmp_path / "back"), f"file://{remote}"]) == 1
        check_messages(capsys.readouterr().err, "stepscope upload", "/back")
    assert not list(tmp_path.glob("back/streams/*/journal"))


def test_unusable_directories_and_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upload", str(tmp_path), f"file://{tmp_path / 'remote'}"]) == 1
    check_messages(capsys.readouterr().err, tmp_path, "streams")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--restore", "--unfinished"], "neither --unfinished nor --follow"),
        (["--restore", "--follow", "1"], "neither --unfinished nor --follow"),
        (["--follow", "0"], "seconds above 0"),
        (["--follow", "nan"], "seconds above 0"),
    ],
)
def test_wrong_usage_is_reported(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["upload", "somewhere", "memory://x", *arguments])
    assert ended.value.code == 2 and text in capsys.readouterr().err
