"""Programs of people who do not know how a profiler works, each in a process of its own; each judges itself."""

from __future__ import annotations

import sys

import pytest

from tests.support.basics import ROOT
from tests.support.launch import run_to_end

NOT_HERE = 77
"""Exit status of a program that this machine lacks something for."""


@pytest.mark.parametrize(
    "name",
    [
        "alarms",
        "ascii_terminal",
        "collections_and_finalizers",
        "copied_and_pickled",
        "daemon",
        "devices_as_outputs",
        "interpreters",
        "log_handler_that_records",
        "optimised_bytecode",
        "two_jobs_one_place",
        "warnings_are_errors",
    ],
)
def test_program(name: str) -> None:
    """It says `ok` and what is right."""
    command = [sys.executable, str(ROOT / "tests" / "support" / "programs" / f"{name}.py")]
    done = run_to_end(command, timeout=200)
    if done.returncode == NOT_HERE:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0 and done.stdout.splitlines()[-1].startswith("ok"), done.stdout + done.stderr
