"""A collector and the ranks that stream to it, as processes of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.support.basics import ROOT, missing
from tests.support.ranks import worker
from tests.support.ranks.worker import Rank


@contextmanager
def collector(directory: Path) -> Generator[str]:
    """A collector that runs meanwhile; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "stepscope", "collect", "--dir", str(directory), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT)
    address = f"http://127.0.0.1:{port}"
    try:
        while not _answers(address):
            assert process.poll() is None, "the collector ended"
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def start_rank(address: str, directory: Path, rank: Rank, world_size: int, job: str = "job") -> subprocess.Popen[bytes]:
    """Starts one rank."""
    argument = msgspec.json.encode(rank).decode()
    command = [sys.executable, "-m", worker.__name__, address, str(directory), argument]
    if rank.ahead_seconds:
        command = [*_shifted_clock(rank.ahead_seconds), *command]
    environment = {**os.environ, "RANK": str(rank.rank), "WORLD_SIZE": str(world_size), "STEPSCOPE_JOB": job}
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def truth(directory: Path) -> dict[tuple[int, int], int]:
    """When the collective of each step of each rank truly was: by the wall clock, in ns; of a repeated step the last."""
    files = sorted(directory.glob("truth-*"), key=lambda path: path.stat().st_mtime_ns)
    rows = [line.split() for path in files for line in path.read_text().splitlines()]
    return {(int(rank), int(step)): int(at) for rank, step, at in rows}


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz"):
            return True
    except (urllib.error.URLError, ConnectionError):
        return False


def _shifted_clock(seconds: int) -> list[str]:
    """A command that runs another with its monotonic clock put forward, as on a machine that was started earlier."""
    unshare = shutil.which("unshare")
    command = [unshare or "unshare", "--time", "--monotonic", str(seconds)]
    if unshare is None or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        missing("the right to make a time namespace", "Run the tests as root on Linux 5.6 or later.")
    return command
