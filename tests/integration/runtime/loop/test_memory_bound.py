"""`Options.memory_bytes` bounds what a process holds, whatever comes and whoever does not take it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.basics import ROOT
from tests.support.launch import run_to_end

PROGRAM = ROOT / "tests" / "support" / "programs" / "floods.py"
MEMORY = 64 << 20
MARGIN = 64 << 20
"""Memory in addition to `memory_bytes`; it grows neither with that nor with the run:

- 12 MiB: six threads have a ring of 4 MiB each, where four fit `ring_bytes`, and one for step marks.
- 24 MiB: spans of the two sources by track, by which they nest, at most 10 MiB each, and facts of steps.
- 28 MiB: what exporters work on, names, byte code, and pages that the allocator has not given back: it keeps some for each of the
  program's and our threads. Most of this depends on chance; 0 to 40 MiB in all were measured on top.
"""


@pytest.mark.parametrize("journal", ["journal", "none"])
def test_a_flood_stays_below_memory_bytes(tmp_path: Path, journal: str) -> None:
    """Four threads record, a backend delivers, one exporter hangs and one is slow. Each event is exported or counted."""
    command = [sys.executable, str(PROGRAM), str(tmp_path / "run"), str(MEMORY), "300000", journal]
    report = json.loads(run_to_end(command, check=True, server=None).stdout)
    assert sum(report["peak"]) - sum(report["before"]) <= MEMORY + MARGIN, report
    assert not report["audit"]
    sources = report["sources"]
    assert sources["device"][0] == report["delivered"]
    assert sources["recorder"][0] >= report["recorded"]
    for produced, accepted, dropped in sources.values():
        assert produced == accepted + sum(dropped.values())
    assert sources["recorder"][2] or sources["device"][2], "it was no flood"
    for offered, exported, dropped in report["outputs"].values():
        assert offered == exported + sum(dropped.values())
    assert report["outputs"]["hangs"][2] and report["outputs"]["slow"][2]
