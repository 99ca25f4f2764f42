"""Collection imports no framework, as each process of a run collects all tests, and finds slow tests by name."""

from __future__ import annotations

import ast
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


def test_the_list_of_slow_tests_names_tests_that_exist() -> None:
    """A test that was renamed would run every day, and its line would stay for nothing."""
    there = {
        f"{path.stem}::{node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    listed = (ROOT / "tests" / "slow_tests.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in listed if line not in there] == []
    assert listed == sorted(set(listed))
