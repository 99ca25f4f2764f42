"""The demonstration of a cluster: real ranks, a slow one, a killed one, a killed collector, and every span in the end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT, require


def test_nothing_is_lost_and_the_slow_rank_is_named(tmp_path: Path) -> None:
    require("torch")
    done = subprocess.run(
        [sys.executable, "-m", "stepscope.demo.cluster", "--dir", str(tmp_path / "demo")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a rank has died" in done.stdout and "the collector is killed" in done.stdout
    assert "was killed: what it left is delivered" in done.stdout
    made, kept = re.findall(r"(\d+) spans were made, (\d+) are kept; lost: 0, twice: 0", done.stdout)[0]
    assert made == kept and int(made) > 700
    assert "slow, as the page has it: ranks [2" in done.stdout
