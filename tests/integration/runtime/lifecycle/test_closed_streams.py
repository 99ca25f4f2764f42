"""Standard input, output and error that are closed, full or broken: exit codes and traces are as without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

STEPSCOPE = [sys.executable, "-m", "stepscope"]
PROGRAM = """
import os
import sys
import stepscope

with stepscope.span("work"):
    print("working")
    os.system("echo from a child")
sys.exit(7)
"""
LIBRARY = """
import os
import stepscope as sc

with sc.trace(output_dir="run", exporters=[sc.exporters.ConsoleExporter(), sc.ChromeTraceExporter("run/trace.json")]) as profiler:
    with sc.span("work"):
        os.system("echo from a child")
    profiler.step()
profiler.raise_errors()
"""
CLOSED = [(0,), (0, 1, 2)]


def start(
    command: list[str], place: Path, closed: tuple[int, ...] = (), streams: Mapping[str, int] = MappingProxyType({})
) -> int:
    """Runs a command with descriptors closed, or with other streams; its exit code."""

    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment["STEPSCOPE_OPTIONS"] = json.dumps({"options": {"session_dir": str(place)}})
    stdin, stdout, stderr = (streams.get(name, subprocess.DEVNULL) for name in ("stdin", "stdout", "stderr"))
    ended = subprocess.run(
        command,
        cwd=place,
        env=environment,
        preexec_fn=close,
        timeout=60,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )
    return ended.returncode


@pytest.mark.parametrize("closed", CLOSED)
def test_commands(closed: tuple[int, ...], tmp_path: Path) -> None:
    """A program under `stepscope run` keeps its exit code, and what it makes is written; so it is with other commands."""
    (tmp_path / "program.py").write_text(PROGRAM)
    exporters = ["--exporter", "console", "--exporter", "chrome"]
    assert start([*STEPSCOPE, "run", *exporters, "--out", "run", "program.py"], tmp_path, closed) == 7
    assert b'"work"' in (tmp_path / "run" / "trace.json").read_bytes()
    assert start([*STEPSCOPE, "convert", "run", "converted.json"], tmp_path, closed) == 0
    assert json.loads((tmp_path / "converted.json").read_bytes())
    assert start([*STEPSCOPE, "recover", "run"], tmp_path, closed) == 1  # there is nothing to recover
    assert not list(tmp_path.glob("stepscope-*"))


@pytest.mark.parametrize("closed", CLOSED)
def test_programs(closed: tuple[int, ...], tmp_path: Path) -> None:
    """No file of ours gets the number of a standard stream: what others print there would be in it."""
    assert start([sys.executable, "-c", LIBRARY], tmp_path, closed) == 0
    assert any(event.get("name") == "work" for event in json.loads((tmp_path / "run" / "trace.json").read_bytes()))
    assert b"from a child" not in (tmp_path / "run" / "journal").read_bytes()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("kind", ["full", "broken"])
def test_streams_that_cannot_be_written(stream: str, kind: str, tmp_path: Path) -> None:
    """A program ends as it does alone. A command whose result cannot be printed has failed; its messages need no reader."""
    (tmp_path / "program.py").write_text(PROGRAM)
    assert start([*STEPSCOPE, "run", "--quiet", "--out", "run", "program.py"], tmp_path) == 7
    if kind == "full":
        to = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, to = os.pipe()
        os.close(reader)
    try:
        alone = start([sys.executable, "program.py"], tmp_path, streams={stream: to})
        assert start([*STEPSCOPE, "run", "--out", "again", "program.py"], tmp_path, streams={stream: to}) == alone
        assert start([*STEPSCOPE, "convert", "run", "converted.json"], tmp_path, streams={stream: to}) == 0
        assert start([*STEPSCOPE, "analyse", "run"], tmp_path, streams={stream: to}) == (1 if stream == "stdout" else 0)
    finally:
        os.close(to)
    assert (tmp_path / "again" / "trace.json").exists()
