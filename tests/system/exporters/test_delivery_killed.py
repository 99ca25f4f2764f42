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
from stepscope.runtime.session.note import BUFFER_DIRECTORY
from tests.support.basics import ROOT, missing
from tests.support.collecting import collecting
from tests.support.collectors import deliver, free_port
from tests.support.messages import said

PROGRAM = """
import os, random, sys, time
import stepscope as sc

url, directory, name, limit, confirmed, journal = sys.argv[1:7]
exporter = sc.CollectorExporter(url, settings=sc.exporters.LinkSettings(timeout=0.5))
options = sc.Options(journal_max_bytes=int(limit), journal=bool(journal))
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
        while not exporter._shipper or not exporter._shipper.is_confirmed:
            time.sleep(0.01)
time.sleep(0.2)
os.kill(os.getpid(), 9)
"""
"""A rank that is killed: url, directory, name of its 12,000 spans, limit of its journal, what it sees confirmed before, and
whether it keeps a journal."""

SPANS = 12000
LARGE = 1 << 30
SMALL = 1 << 17
"""Bytes of a journal that holds a part of the spans only."""


def kill(
    url: str,
    directory: Path,
    name: str,
    *,
    limit: int = LARGE,
    confirmed: str = "",
    alone: bool = False,
    journal: bool = True,
) -> None:
    """Runs it; `alone`: among processes of its own, so that its number is that of others."""
    command = [sys.executable, "-c", PROGRAM, url, str(directory), name, str(limit), confirmed, "1" if journal else ""]
    if alone:
        unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
        if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
            missing("the right to make a process namespace", "Run the tests as root on Linux.")
        command = [*unshare, "sh", "-c", '"$@"; true', "sh", *command]
    subprocess.run(command, cwd=ROOT, timeout=60, check=False, stderr=subprocess.DEVNULL)


def merged(directory: Path, out: Path) -> Counter[str]:
    """The spans of a merge, by name."""
    assert main(["merge", str(directory), "--out", str(out)]) == 0
    return Counter(event["name"] for event in json.loads(out.read_text()) if event["ph"] == "X")


def streams(directory: Path) -> list[str]:
    return sorted(path.parent.name for path in directory.glob("streams/*/journal"))


@pytest.mark.parametrize(("alone", "there"), [(False, False), (True, True)])
def test_each_run_of_a_directory_has_its_own_journal(tmp_path: Path, alone: bool, there: bool) -> None:
    """A rank is killed, started again in the same directory and killed again; in containers both have one number."""
    with collecting(tmp_path / "c") as collector:
        url = collector.url.replace("http", "ws") if there else f"ws://127.0.0.1:{free_port()}"
        for name in ("first", "second"):
            kill(url, tmp_path / "run", name, confirmed="half" if there else "", alone=alone)
        for _ in range(2):
            done = deliver(tmp_path / "run" / "rank0", collector.url)
            assert done.returncode == 0, done.stderr
            found = merged(tmp_path / "c", tmp_path / "out.json")
            assert (found["first"], found["second"]) == (SPANS, SPANS)
            assert len(streams(tmp_path / "c")) == 2


def test_the_buffer_of_a_run_without_a_journal_is_delivered(tmp_path: Path) -> None:
    """It has what was written before the process was killed, and is deleted when the collector has it."""
    kill(f"ws://127.0.0.1:{free_port()}", tmp_path / "run", "x", journal=False)
    place = tmp_path / "run" / "rank0"
    with collecting(tmp_path / "c") as collector:
        done = deliver(place, collector.url)
        assert done.returncode == 0, done.stderr
        assert SPANS * 2 // 3 <= merged(tmp_path / "c", tmp_path / "out.json")["x"] <= SPANS
        assert not (place / BUFFER_DIRECTORY).exists()
        again = deliver(place, collector.url)
        assert again.returncode == 1 and said(again.stderr, "stepscope deliver", str(place))


def test_a_journal_that_has_less_than_the_collector_goes_on(tmp_path: Path) -> None:
    """It met its limit and deleted what the collector had: the rest follows, and nothing is there twice."""
    with collecting(tmp_path / "c") as collector:
        url = collector.url.replace("http", "ws")
        kill(url, tmp_path / "run", "x", limit=SMALL, confirmed="half")
        place = tmp_path / "run" / "rank0"
        assert not (place / "journal").exists()
        done = deliver(place, collector.url)
        assert done.returncode == 0, done.stderr
        assert merged(tmp_path / "c", tmp_path / "out.json")["x"] == SPANS
        assert len(streams(tmp_path / "c")) == 1


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
    """Whoever names the directory of all ranks learns where the journals are."""
    kill(f"ws://127.0.0.1:{free_port()}", tmp_path / "runs" / "one", "x")
    for place in (tmp_path / "runs", tmp_path / "runs" / "one"):
        done = deliver(place, "ws://127.0.0.1:1")
        assert done.returncode == 1 and str(tmp_path / "runs" / "one" / "rank0") in done.stderr
    assert "name a journal" in deliver(tmp_path, "ws://127.0.0.1:1").stderr
