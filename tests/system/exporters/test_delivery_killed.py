"""What killed runs left is delivered: of each run its own journal, all of it, and once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.collector.runs.mark import SUPERSEDED
from stepscope.exporters.collector.spool import DIRECTORY
from tests.support.basics import ROOT, missing
from tests.support.collecting import collecting
from tests.support.collectors import COMMAND, free_port
from tests.support.launch import run_to_end
from tests.support.messages import said

PROGRAM = """
import os, random, sys, time
import stepscope as sc

url, directory, name, limit, confirmed, collector = sys.argv[1:7]
exporter = sc.CollectorExporter(url, settings=sc.exporters.LinkSettings(timeout=0.5, memory_bytes=1 << 16))
options = sc.Options(journal_max_bytes=int(limit))
schedule = sc.schedule(wait=0, warmup=0, active=4)
profiler = sc.trace(exporters=[exporter], output_dir=directory, name="job", rank=0, schedule=schedule, options=options)
profiler.start()
for step in range(12):
    for number in range(1000):
        with sc.span(name, i=random.getrandbits(60)):
            pass
    profiler.step()
    if step in (7, 9) or step == 11 and confirmed == "all":
        assert profiler.flush(60)  # events of windows that the journal knows nothing of are recovered into its last
    if step == 7 and confirmed == "half" or step == 11 and confirmed == "all":
        while not (told := exporter.statistics()) or not told.confirmed or exporter._backlog:
            time.sleep(0.01)
        if collector:
            os.kill(int(collector), 9)
time.sleep(0.2)
os.kill(os.getpid(), 9)
"""
"""A rank that is killed: url, directory, name of its 12,000 spans, limit of its journal, what it sees confirmed before, and
the collector that it kills then, if any."""

SPANS = 12000
LARGE = 1 << 30
SMALL = 1 << 16
"""Bytes of a journal that holds a part of the spans only."""


def kill(
    url: str,
    directory: Path,
    name: str,
    *,
    limit: int = LARGE,
    confirmed: str = "",
    alone: bool = False,
    collector: str = "",
) -> None:
    """Runs it; `alone`: among processes of its own, so that its number is that of others."""
    command = [sys.executable, "-c", PROGRAM, url, str(directory), name, str(limit), confirmed, collector]
    if alone:
        unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
        if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
            missing("the right to make a process namespace", "Run the tests as root on Linux.")
        command = [*unshare, "sh", "-c", '"$@"; true', "sh", *command]
    subprocess.run(command, cwd=ROOT, timeout=60, check=False, stderr=subprocess.DEVNULL)


def deliver(place: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    command = [*COMMAND, "deliver", str(place), "--url", url, *options]
    return run_to_end(command, timeout=60, server="command")


def merged(directory: Path, out: Path) -> Counter[str]:
    """The spans of a merge, by name."""
    assert main(["merge", str(directory), "--out", str(out)]) == 0
    return Counter(event["name"] for event in json.loads(out.read_text()) if event["ph"] == "X")


def streams(directory: Path) -> list[str]:
    return sorted(path.parent.name for path in directory.glob("streams/*/journal"))


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_each_run_of_a_directory_has_its_own_journal(tmp_path: Path, alone: bool, there: bool) -> None:
    """A rank is killed, started again in the same directory and killed again; in containers both have one number."""
    with collecting(tmp_path / "c") as collector:
        url = collector.url.replace("http", "ws") if there else f"ws://127.0.0.1:{free_port()}"
        for name in ("first", "second"):
            kill(url, tmp_path / "run", name, confirmed="half" if there else "", alone=alone)
        done = deliver(tmp_path / "run" / "rank0", collector.url)
        assert done.returncode == 0, done.stderr
        assert not (tmp_path / "run" / "rank0" / DIRECTORY).exists()
        found = merged(tmp_path / "c", tmp_path / "out.json")
        assert (found["first"], found["second"]) == (SPANS, SPANS)
        assert len(streams(tmp_path / "c")) == (4 if there else 2)
        for mark in tmp_path.glob(f"c/streams/*/{SUPERSEDED}"):
            assert mark.read_text() in streams(tmp_path / "c")
        assert len(list(tmp_path.glob(f"c/streams/*/{SUPERSEDED}"))) == (2 if there else 0)


def test_a_spool_without_its_run_s_journal_is_sent_itself(tmp_path: Path) -> None:
    """Another run's journal in the directory says nothing of it."""
    away = f"ws://127.0.0.1:{free_port()}"
    for name in ("first", "second"):
        kill(away, tmp_path / "run", name)
    place = tmp_path / "run" / "rank0"
    (place / "journal").unlink()
    (place / "session").unlink()
    with collecting(tmp_path / "c") as collector:
        done = deliver(place, collector.url)
        assert done.returncode == 0, done.stderr
        assert "the rest of a stream" in done.stdout and "the journal of" in done.stdout
        found = merged(tmp_path / "c", tmp_path / "out.json")
        assert 0 < found["first"] <= SPANS and found["second"] == SPANS
    assert not (place / DIRECTORY).exists()


def test_the_spool_is_sent_as_well_where_the_journal_has_less(tmp_path: Path) -> None:
    """The journal met its limit, and the collector went away: its file, the spool and the journal make up the run."""
    with collecting(tmp_path / "c") as collector:
        url, pid = collector.url.replace("http", "ws"), str(collector.process.pid)
        kill(url, tmp_path / "run", "x", limit=SMALL, confirmed="half", collector=pid)
    with collecting(tmp_path / "c") as collector:
        before = merged(tmp_path / "c", tmp_path / "before.json")["x"]
        done = deliver(tmp_path / "run" / "rank0", collector.url)
        assert done.returncode == 0, done.stderr
        assert "the rest of a stream" in done.stdout and "whose process was killed" in done.stdout
        assert not (tmp_path / "run" / "rank0" / DIRECTORY).exists()
        assert SPANS * 2 // 3 <= before < merged(tmp_path / "c", tmp_path / "after.json")["x"] <= SPANS


def test_a_stream_that_has_more_than_the_journal_stays(tmp_path: Path) -> None:
    """The journal met its limit: nothing of what was confirmed gives way to it, and nothing is there twice."""
    with collecting(tmp_path / "c", "--disk", str(1 << 30)) as collector:
        kill(collector.url.replace("http", "ws"), tmp_path / "run", "x", limit=SMALL, confirmed="all")
        before = merged(tmp_path / "c", tmp_path / "before.json")
        assert before["x"] == SPANS
        done = deliver(tmp_path / "run" / "rank0", collector.url)
        assert done.returncode == 0 and "whose process was killed" in done.stdout
        assert len(streams(tmp_path / "c")) == 2 and not list(tmp_path.glob(f"c/streams/*/{SUPERSEDED}"))
        assert merged(tmp_path / "c", tmp_path / "after.json")["x"] == SPANS


def test_a_mark_that_is_wrong_hides_nothing(tmp_path: Path) -> None:
    """As a collector may have left it that did not compare the two."""
    with collecting(tmp_path / "c") as collector:
        url = collector.url.replace("http", "ws")
        kill(url, tmp_path / "run", "x", limit=SMALL, confirmed="all")
        (old,) = streams(tmp_path / "c")
        assert deliver(tmp_path / "run" / "rank0", collector.url).returncode == 0
    (new,) = set(streams(tmp_path / "c")) - {old}
    (tmp_path / "c" / "streams" / old / SUPERSEDED).write_text(new)
    assert merged(tmp_path / "c", tmp_path / "out.json")["x"] == SPANS


def test_a_delivery_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    """It is the same stream the next time, with what is there already."""
    kill(f"ws://127.0.0.1:{free_port()}", tmp_path / "run", "x")
    place = tmp_path / "run" / "rank0"
    with collecting(tmp_path / "c", "--max-stream-bytes", "100000") as collector:
        refused = deliver(place, collector.url, "--timeout", "1")
        assert refused.returncode == 1 and said(refused.stderr, "100000 bytes")
        (first,) = streams(tmp_path / "c")
    with collecting(tmp_path / "c") as collector:
        done = deliver(place, collector.url)
        assert done.returncode == 0, done.stderr
    assert streams(tmp_path / "c") == [first]
    assert merged(tmp_path / "c", tmp_path / "out.json")["x"] == SPANS


def test_directories_below_are_named(tmp_path: Path) -> None:
    """Who names the directory of all ranks is told where the spools are."""
    kill(f"ws://127.0.0.1:{free_port()}", tmp_path / "runs" / "one", "x")
    for place in (tmp_path / "runs", tmp_path / "runs" / "one"):
        done = deliver(place, "ws://127.0.0.1:1")
        assert done.returncode == 1 and str(tmp_path / "runs" / "one" / "rank0") in done.stderr
    assert "name a journal" in deliver(tmp_path, "ws://127.0.0.1:1").stderr
