"""Collector and exporters are killed, again and again: in the end every event is there, once."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

from tests.support.collectors import COMMAND, Process, free_port, journals
from tests.support.collectors import spans as spans_of
from tests.support.launch import run_to_end

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


def test_everything_is_there_once(tmp_path: Path) -> None:
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
