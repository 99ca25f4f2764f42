"""A fault in ranks that train is on the page 15 seconds later at most."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.collecting import WAIT, CollectorProcess, collecting
from tests.support.commands import LAUNCHERS
from tests.support.launch import start

RANKS = 3
LIMIT = 15.0
"""Seconds from the first step with the fault until the verdict has it."""
TRAINING = """
import socket, sys, time
import stepscope as sc
from stepscope.exporters.stream.exporter import CollectorExporter

url, rank, port, fault = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
barrier = socket.create_connection(("127.0.0.1", port))
exporter = CollectorExporter(url)
with sc.trace(rank=rank, name="job", exporters=[exporter], options=sc.Options(journal=False)) as profiler:
    for step in range(100_000):
        faulty = step >= 60
        if step == 60:
            print("it begins", flush=True)
        with sc.span("next", category="data"):
            time.sleep(0.03 if faulty and fault == "loader" else 0.001)
        with sc.span("forward"):
            time.sleep(0.05 if faulty and fault == "slow rank" and rank == 1 else 0.02)
        with sc.span("gloo:all_reduce", category="user_annotation"):
            barrier.sendall(b".")
            if not barrier.recv(1):
                break
        if faulty and fault == "stall" and step % 10 == 0:
            time.sleep(0.4)
        profiler.step()
"""
"""A rank that waits for the others in each step, and has a fault from a step on."""


@contextmanager
def barrier() -> Generator[int]:
    """Lets ranks go on when all have come; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            # Killed ranks reset their connections.
            with suppress(OSError), ExitStack() as stack:
                ranks = [stack.enter_context(server.accept()[0]) for _ in range(RANKS)]
                while all(rank.recv(1) for rank in ranks):
                    for rank in ranks:
                        rank.sendall(b".")

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


@contextmanager
def ranks_with(fault: str, url: str, port: int) -> Generator[list[subprocess.Popen[str]]]:
    """Ranks that train until the end of the block."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
    environment = {**inherited, "WORLD_SIZE": str(RANKS), "STEPSCOPE_SIGNALS": "steps"}
    command = [sys.executable, "-c", TRAINING, url]
    ranks = [
        start([*command, str(rank), str(port), fault], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(RANKS)
    ]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate(timeout=WAIT)


def found_by(collector: CollectorProcess) -> dict[str, list[int]]:
    """The ranks of the verdict, by the rule that names them."""
    verdicts = collector.get("/v1/job")["verdicts"]
    return {finding["id"]: finding["ranks"] for verdict in verdicts for finding in verdict["findings"]}


@pytest.mark.parametrize(
    ("fault", "rule", "ranks"),
    [("slow rank", "slow-rank", [1]), ("loader", "input-bound-in-process", []), ("stall", "periodic-stall", [])],
)
def test_a_fault_is_in_the_verdict_soon(tmp_path: Path, fault: str, rule: str, ranks: list[int]) -> None:
    """Ranks that were well for two seconds."""
    with collecting(tmp_path) as collector, barrier() as port, ranks_with(fault, collector.url, port) as processes:
        assert processes[1].stdout is not None and processes[1].stdout.readline() == "it begins\n"
        began = time.monotonic()
        while (found := found_by(collector)).get(rule) != ranks:
            assert time.monotonic() - began < LIMIT, found
            time.sleep(0.1)
