"""Chrome traces in the object form, as Holistic Trace Analysis reads them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stepscope.exporters.chrome import ChromeTraceExporter
from tests.support.basics import hta_python
from tests.support.viewers import hta_answers
from tests.support.viewers.scene import Scene, device_work, make_run, make_window, odd_kinds, training


async def write(directory: Path, name: str, rank: int) -> None:
    """Three steps of a rank with a device of its own."""
    exporter = ChromeTraceExporter(directory / name, form="object")
    run = make_run(directory, rank, metadata={"rank": 99})
    scene = Scene(run)
    training(scene)
    device_work(scene, rank)
    odd_kinds(scene)
    await exporter.open(run)
    await exporter.export(scene.batch())
    await exporter.close_window(make_window())
    await exporter.aclose()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """HTA's results for two ranks, one of them compressed."""
    python = hta_python()
    directory = tmp_path_factory.mktemp("ranks")
    asyncio.run(write(directory, "rank{rank}.json", 0))
    asyncio.run(write(directory, "rank{rank}.json.gz", 1))
    done = subprocess.run(
        [python, Path(hta_answers.__file__), directory], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_ranks_and_steps(answers: dict[str, Any]) -> None:
    """Both ranks are separate, with their steps and streams; HTA itself leaves the last step out."""
    assert set(answers["ranks"]) == {"0", "1"}
    assert answers["iterations"] == {"0": [7, 8], "1": [7, 8]}
    assert answers["streams"] == {"0": [-1, 7, 20], "1": [-1, 7, 20]}


def test_kernels(answers: dict[str, Any]) -> None:
    """Kernels are counted by what they do, over two ranks and two steps."""
    assert {row["kernel_type"]: row["sum"] for row in answers["kernel_types"]} == {
        "COMMUNICATION": 800,
        "COMPUTATION": 600,
        "MEMORY": 160,
    }
    assert {(row["name"], row["mean (us)"]) for row in answers["kernels"]} == {
        ("sgemm_128x64", 150),
        ("Memcpy HtoD (Pinned -> Device)", 40),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 200),
    }


def test_breakdowns(answers: dict[str, Any]) -> None:
    """Busy, idle and overlapping time, launch delays and the critical path are answered."""
    for row in answers["temporal"]:
        times = (row["idle_time(us)"], row["compute_time(us)"], row["non_compute_time(us)"])
        assert times == (750, 300, 480)
    assert [row["comp_comm_overlap_pctg"] for row in answers["overlap"]] == [0, 0]
    assert {row["idle_category"] for row in answers["idle"]} == {"host_wait", "kernel_wait", "other"}
    launch = {row["correlation"]: row["launch_delay"] for row in answers["launches"]["1"]}
    assert launch == {11: 8, 12: 148, 13: 8, 111: 8, 112: 148, 113: 8}
    assert answers["critical_path"]
