"""Object stores for tests: one that hangs, a slow one that counts its calls, and a server of S3. And what is uploaded there."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.exporters.specimens import run_in, window_of
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.journals import batch_with_arguments
from tests.support.launch import start


class Stream:
    """A stream in a collector's directory, in segments of about `segment_bytes` each; it grows.

    Args:
        directory: of the collector.
        number: makes its id.
        windows: that it has at the beginning.
    """

    def __init__(self, directory: Path, number: int = 0, *, windows: int = 0, segment_bytes: int = 4000) -> None:
        self.id = f"{number:032x}"
        self.journal = directory / "streams" / self.id / "journal"
        self._writer = JournalWriter(self.journal, segment_bytes=segment_bytes)
        self._writer.open(run_in(directory))
        self._windows = 0
        self.grow(windows)

    @property
    def segments(self) -> list[Path]:
        """Its files, in their order."""
        return segment_paths(self.journal)

    def names(self, last: bool = True) -> list[str]:
        """Names of the objects of its segments, with the last one or without it."""
        paths = self.segments if last else self.segments[:-1]
        return sorted(f"{self.id}/{path.name}" for path in paths)

    def grow(self, windows: int = 1, nbytes: int = 1000) -> None:
        """Appends windows. Each has events with random arguments of about so many bytes."""
        for _ in range(windows):
            arguments = [{"x": os.urandom(min(nbytes, 10_000) // 2).hex()} for _ in range(max(nbytes // 10_000, 1))]
            names = ["step"] * len(arguments)
            batch = batch_with_arguments(names, arguments, window=self._windows, start_ns=1000 * (self._windows + 1))
            self._writer.write_batch(batch)
            self._writer.write_window(window_of(self._windows, batch))
            self._windows += 1

    def end(self) -> Stream:
        """Appends the end."""
        self._writer.close()
        return self


def contents(directory: Path) -> dict[str, bytes]:
    """All files below a directory, without those that are hidden."""
    paths = (path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


class HangingStore:
    """A file system of fsspec's in which some writes of segments hang, until they may go on."""

    PROTOCOL = "hanging"

    def __init__(self, directory: Path, *, after: int = 0) -> None:
        """Args: where its files lie; writes that do not hang."""
        self.url = f"{self.PROTOCOL}://{directory}"
        self.hangs = threading.Event()
        """Set when a write hangs."""
        self.go = threading.Event()
        """Nothing hangs any more when it is set."""
        self._left = after
        local: Any = importlib.import_module("fsspec.implementations.local").LocalFileSystem

        def opened(files: Any, path: str, mode: str = "rb", **options: Any) -> Any:
            if mode == "wb" and "/journal" in path:
                self._write()
            return local.open(files, path, mode, **options)

        def place(kind: Any, path: str) -> str:  # fsspec below 2024.9 knows only its own protocols
            return str(local._strip_protocol(path.removeprefix(f"{self.PROTOCOL}://")))

        functions = {"open": opened, "_strip_protocol": classmethod(place)}
        made = type("Hanging", (local,), {"protocol": self.PROTOCOL, **functions})
        importlib.import_module("fsspec").register_implementation(self.PROTOCOL, made, clobber=True)

    def _write(self) -> None:
        if self._left > 0:
            self._left -= 1
            return
        self.hangs.set()
        self.go.wait(60)


class S3Server:
    """moto's server of S3, in a process of its own, with one bucket; what it stores is in its memory.

    A context manager. The packages moto, flask, flask_cors and boto3 must be installed.
    """

    BUCKET = "bucket"

    def __enter__(self) -> S3Server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        """For programs that use it."""
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert self._process.poll() is None and time.monotonic() < deadline, "moto's server does not listen"
                time.sleep(0.05)
        session: Any = importlib.import_module("boto3").session.Session(
            aws_access_key_id="test", aws_secret_access_key="test", region_name="us-east-1"
        )
        self.client: Any = session.client("s3", endpoint_url=self.environment["AWS_ENDPOINT_URL"])
        """Of boto3."""
        self.client.create_bucket(Bucket=self.BUCKET)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()

    def sizes(self) -> dict[str, int]:
        """All objects of the bucket, and their sizes."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.BUCKET)
        return {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", ())}

    def read(self, key: str) -> bytes:
        """An object."""
        body = self.client.get_object(Bucket=self.BUCKET, Key=key)["Body"]
        data: bytes = body.read()
        return data


@contextmanager
def following(directory: Path, remote: Path, every: float, *options: str) -> Generator[subprocess.Popen[str]]:
    """`stepscope upload --follow`, until the end of the block."""
    command = (sys.executable, "-m", "stepscope", "upload")
    process = start(
        [*command, str(directory), f"file://{remote}", "--follow", str(every), *options],
        server="command",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
