"""The demonstration of a cluster: real ranks, a slow one, a killed one, a killed collector, and every span in the end."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.basics import ROOT, chromium, require
from tests.support.viewers import perfetto
from tests.support.viewers.perfetto import PROBLEMS
from tests.support.viewers.tensorboard import load_run

SPANS = """
select p.name as process, extract_arg(s.arg_set_id, 'debug.step') as step, s.dur from slice s
join thread_track tt on s.track_id = tt.id join thread using (utid) join process p using (upid)
where s.name = 'forward and backward' and extract_arg(s.arg_set_id, 'debug.had not ended') is null"""


class Done(NamedTuple):
    """A demonstration that has ended."""

    place: Path
    output: str


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """It runs once, with a browser that looks on."""
    require("torch")
    require("playwright.sync_api")
    place = tmp_path_factory.mktemp("cluster") / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo_cluster", "--dir", str(place), "--picture", str(place / "page.png")],
        cwd=ROOT,
        env={**os.environ, "STEPSCOPE_CHROMIUM": str(chromium())},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Done(place, done.stdout)


@pytest.mark.timeout(500)
def test_nothing_is_lost_and_the_slow_rank_is_named(demo: Done) -> None:
    """In the files, and in what they are merged into; times have a bound."""
    assert "a rank has died" in demo.output and "the collector is killed" in demo.output
    assert "was killed: what it left is delivered" in demo.output
    for what in ("kept", "merged"):
        ((made, there),) = re.findall(rf"(\d+) spans were made, (\d+) are {what}; lost: 0, twice: 0", demo.output)
        assert made == there and int(made) > 700
    assert "slow, as the page has it: ranks [2" in demo.output
    assert re.search(r"of 8 processes, their times within [\d,]+ us", demo.output)


@pytest.mark.timeout(500)
def test_the_page_has_a_picture(demo: Done) -> None:
    """Taken when it named the slow rank, before anything was killed."""
    light, dark = ((demo.place / name).read_bytes() for name in ("page.png", "page-dark.png"))
    for picture in (light, dark):
        assert picture.startswith(b"\x89PNG\r\n\x1a\n") and picture[16:24] == struct.pack(">II", 1280, 900)
        assert len(set(picture)) > 200 and len(picture) > 30_000
    assert light != dark
    assert demo.output.index("the page's picture") < demo.output.index("the collector is killed")


@pytest.mark.timeout(500)
def test_the_merged_trace_has_every_span_once(demo: Done) -> None:
    """As Perfetto's trace processor reads it: each rank's starts are processes of their own, with what their diaries say."""
    problems, slices = perfetto.query(demo.place / "merged.pftrace", PROBLEMS, SPANS)
    assert problems == []
    found = Counter((row["process"].partition(":")[0], int(row["step"])) for row in slices)
    made: Counter[tuple[str, int]] = Counter()
    for path in demo.place.glob("diary-*"):
        _, rank, attempt = path.name.split("-")
        name = f"rank {rank}" if attempt == "0" else f"rank {rank} (start {int(attempt) + 1})"
        made.update((name, int(step)) for step in path.read_text().split())
    assert found == made and set(made.values()) == {1}
    assert all(row["dur"] > 0 for row in slices)


@pytest.mark.timeout(500)
def test_tensorboard_has_all_ranks(demo: Done) -> None:
    """In each window of the second half, which all ranks have done."""
    run = load_run(demo.place / "tensorboard" / "window_9")
    assert [worker.rpartition("_")[2] for worker in run.workers if worker != "All"] == ["0", "1", "2", "3"]
