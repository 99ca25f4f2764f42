"""The limit of the disk with what real exporters send: each scenario in a process of its own, like a training run.

An exporter sends the names of its process, and those of all tests before would fill the limit.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import rotation
from tests.support.basics import ROOT
from tests.support.launch import run_to_end

SCENARIOS = sorted(name for name in vars(rotation) if name.startswith("test_"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rotation(scenario: str, tmp_path: Path) -> None:
    """The scenario holds."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    case = f"{Path(rotation.__file__).relative_to(ROOT)}::{scenario}[asyncio]"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "t"), case]
    done = run_to_end(command, timeout=280, cwd=ROOT, environment=environment, server=None)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-5000:] + done.stderr[-1000:]
