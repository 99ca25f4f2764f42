"""Collection imports no framework: each process of a run collects all tests, and most of them need none."""

from __future__ import annotations

import subprocess
import sys

from tests.support.basics import ROOT

HEAVY = {
    "accelerate",
    "keras",
    "lightning",
    "pandas",
    "playwright",
    "pyarrow",
    "scipy",
    "sklearn",
    "tensorboard",
    "torch",
    "transformers",
}
PROGRAM = f"""
import sys
import pytest
code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider"])
print("imported:", *sorted({HEAVY!r} & set(sys.modules)))
sys.exit(code)
"""


def test_collection_imports_no_framework() -> None:
    """They are imported at their first use, or in programs."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split() == ["imported:"]
