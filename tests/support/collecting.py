"""Collectors and training processes, started as users start them."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.commands import LAUNCHERS
from tests.support.launch import start

TRAINING = """
import sys, time
import stepscope as sc
from stepscope.exporters.stream.exporter import CollectorExporter

url, rank, steps, seconds, token, name = sys.argv[1:7]
with sc.trace(
    schedule=sc.schedule(wait=0, warmup=0, active=10),
    rank=int(rank),
    name=name,
    exporters=[CollectorExporter(url, token=token or None)],
    options=sc.Options(journal=False),
) as profiler:
    for step in range(int(steps)):
        with sc.span("forward"):
            time.sleep(float(seconds))
        sc.counter("loss", 1 / (step + 1))
        profiler.step()
"""
"""A rank that trains: url, rank, steps, seconds of each, token, name of the run."""

WAIT = 40.0
"""Seconds after which a test gives up, on a loaded machine."""


class Answer:
    """An HTTP answer."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def send_request(
    url: str,
    headers: dict[str, str] | None = None,
    *,
    method: str = "GET",
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Sends a request and returns its answer."""
    request = urllib.request.Request(url, body, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=WAIT, context=tls) as answer:
            return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())


def wait_until(condition: Callable[[], Any]) -> Any:
    """Calls a function until its result is true, and returns the result."""
    end = time.monotonic() + WAIT
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


class CollectorProcess:
    """A collector in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str, directory: Path) -> None:
        self.process, self.url, self.directory = process, url, directory

    def get(self, path: str, headers: dict[str, str] | None = None) -> Any:
        """The answer in JSON to a request that succeeds."""
        answer = send_request(self.url + path, headers)
        assert answer.status == 200, answer.body
        return answer.json()

    def ranks(self) -> dict[int, Any]:
        """Ranks by number."""
        return {view["rank"]: view for view in self.get("/v1/ranks")}

    def when(self, condition: Callable[[dict[int, Any]], object]) -> dict[int, Any]:
        """The ranks as soon as the condition holds for them."""

        def look() -> dict[int, Any] | None:
            ranks = self.ranks()
            return ranks if condition(ranks) else None

        found: dict[int, Any] = wait_until(look)
        return found

    def stop(self) -> tuple[str, str]:
        """Stops it as a service manager does; returns its standard output and errors."""
        self.process.terminate()
        return self.process.communicate(timeout=WAIT)


@contextmanager
def collecting(
    directory: Path, *arguments: str, files: int | None = None, **environment: str
) -> Generator[CollectorProcess]:
    """A collector on a port that is free, until the end of the block; with so many open files at most."""
    limited = () if files is None else ("sh", "-c", f'ulimit -n {files} && exec "$@"', "sh")
    inherited = {name: value for name, value in os.environ.items() if name not in (*LAUNCHERS, "STEPSCOPE_TOKEN")}
    process = start(
        [*limited, sys.executable, "-m", "stepscope", "collect", "--dir", str(directory), "--port", "0", *arguments],
        server="command",
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("listening on "), process.stderr.read()
        yield CollectorProcess(process, line.removeprefix("listening on ").strip(), directory)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def training(
    url: str, rank: int, *, steps: int = 30, seconds: float = 0.01, token: str = "", name: str = "job", world: int = 0
) -> Generator[subprocess.Popen[bytes]]:
    """A rank that trains; it is killed at the end of the block if it still does."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    process = start(
        [sys.executable, "-c", TRAINING, url, str(rank), str(steps), str(seconds), token, name],
        env={**inherited, **({"WORLD_SIZE": str(world)} if world else {})},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def trained(url: str, rank: int, **how: Any) -> None:
    """A rank that trains to its end."""
    with training(url, rank, **how) as process:
        assert process.wait(WAIT) == 0
