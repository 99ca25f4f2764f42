"""The ledger: produced = exported + dropped + in flight, whatever happens, compared with what truly happened."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.basics import ROOT
from tests.support.random_runs import Process, RunPlan, execute, processes, run_plans


@pytest.fixture(autouse=True)
def nothing_of_other_tests() -> None:
    """Spans that nobody holds any more, in circles of tasks, would be recorded when they are collected."""
    gc.collect()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(plan=run_plans)
def test_accounts_balance_in_any_run(plan: RunPlan) -> None:
    """Random production, schedules, pauses, exporters that misbehave, devices that are late and lose, small queues."""
    with tempfile.TemporaryDirectory() as directory:
        assert execute(plan, "drop_newest", 65_536, 1 << 28, Path(directory)) == []


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(process=processes)
def test_accounts_balance_with_any_rings(process: Process) -> None:
    """The same where rings are small, under every policy."""
    command = [sys.executable, "-P", "-W", "error", "-c", f"import sys; sys.path.append({str(ROOT)!r}); "
               "from tests.support.random_runs import main; main()"]  # fmt: skip
    done = subprocess.run(command, input=msgspec.json.encode(process), capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert msgspec.json.decode(done.stdout) == []
