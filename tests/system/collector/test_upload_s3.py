"""`stepscope upload` and a server of S3: its own tools list and read what is there, whatever was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.collecting import collecting, trained, wait_until
from tests.support.launch import start
from tests.support.object_stores import S3Server, Stream, contents

pytestmark = pytest.mark.needs("s3fs", "moto", "flask", "flask_cors", "boto3")


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as made:
        yield made


def command(server: S3Server, *arguments: str | Path) -> subprocess.Popen[str]:
    """Starts `stepscope upload`."""
    return start(
        [sys.executable, "-m", "stepscope", "upload", *map(str, arguments)],
        server=None,
        env={**os.environ, **server.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    """The output of a command that succeeded."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_a_killed_upload_goes_on(server: S3Server, tmp_path: Path) -> None:
    """Under the name of a segment there is all of it, or nothing; small ones and one that is put in several parts."""
    collected = tmp_path / "collected"
    for number in range(40):
        Stream(collected, number, windows=12).end()
    large = Stream(collected, 99, segment_bytes=12 << 20)
    large.grow(3, 24 << 20)
    large.end()
    made = {f"job1/{name}": data for name, data in contents(collected / "streams").items()}
    assert max(map(len, made.values())) > 8 << 20
    url = f"s3://{server.BUCKET}/job1"

    there: dict[str, int] = {}
    for kills in range(3):
        process = command(server, collected, url)
        before = len(there)
        wait_until(lambda: len(server.sizes()) > before + 10)  # noqa: B023
        process.send_signal(signal.SIGKILL)
        process.communicate()
        there = server.sizes()
        assert len(there) < len(made) and there == {name: len(made[name]) for name in there}, kills
        assert all(server.read(name) == made[name] for name in there)
    rest = len(made) - len(there)
    assert finished(command(server, collected, url)).startswith(f"41 streams, 41 complete: {rest} objects")
    assert server.sizes() == {name: len(data) for name, data in made.items()}
    assert finished(command(server, collected, url)).startswith("41 streams, 41 complete: 0 objects")

    back = tmp_path / "back"
    process = command(server, "--restore", back, url)
    wait_until(lambda: len(list(back.glob("streams/*/journal*"))) > 10)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert contents(back / "streams").items() <= contents(collected / "streams").items()
    finished(command(server, "--restore", back, url))
    assert contents(back / "streams") == contents(collected / "streams")


def test_a_collector_uploads_there(server: S3Server, tmp_path: Path) -> None:
    """To a bucket that does not exist it puts nothing, and says so; it does not make one."""
    collected = tmp_path / "collected"
    stream = Stream(collected, windows=12).end()
    arguments = ("--upload", f"s3://{server.BUCKET}/a/b", "--upload-every", "0.2")
    with collecting(collected, *arguments, files=None, **server.environment) as collector:
        wait_until(lambda: collector.get("/v1/job")["upload"]["complete"] == 1)
    found = {name: size for name, size in server.sizes().items() if not name.endswith("clocks.json")}
    assert found == {f"a/b/{stream.id}/{path.name}": path.stat().st_size for path in stream.segments}
    arguments = ("--upload", "s3://nowhere/job1", "--upload-every", "0.2")
    with collecting(collected, *arguments, files=None, **server.environment) as collector:
        problem = wait_until(lambda: collector.get("/v1/job")["upload"]["problem"])
        assert "bucket does not exist" in problem
    assert [bucket["Name"] for bucket in server.client.list_buckets()["Buckets"]] == [server.BUCKET]


def test_a_client_of_s3_restores_it(server: S3Server, tmp_path: Path) -> None:
    """Without stepscope: a client gets all objects as files, and a merge of these is that of the collector's directory."""
    collected, back = tmp_path / "collected", tmp_path / "back"
    arguments = ("--upload", f"s3://{server.BUCKET}/job1", "--upload-every", "0.2")
    with collecting(collected, *arguments, files=None, **server.environment) as collector:
        for rank in range(2):
            trained(collector.url, rank)
        wait_until(lambda: collector.get("/v1/job")["upload"]["complete"] == 2)
    for name in server.sizes():
        path = back / name
        path.parent.mkdir(parents=True, exist_ok=True)
        server.client.download_file(server.BUCKET, name, str(path))

    def merged(directory: Path) -> tuple[Any, Any]:
        """The report, and the trace."""
        out = tmp_path / f"{directory.name}.json"
        process = start(
            [sys.executable, "-m", "stepscope", "merge", str(directory), "--out", str(out), "--json"],
            server=None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return json.loads(finished(process)), json.loads(out.read_bytes())

    report, trace = merged(collected)
    assert [member["ended"] for member in report["members"]] == [True, True] and report["events"] > 200
    assert merged(back) == (report, trace)
