"""Merged traces as their readers understand them: HTA, the TensorBoard plugin, Perfetto, DuckDB."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.collector.merge.outputs import write_merged
from stepscope.collector.merge.plan import Selection
from tests.support.basics import hta_python, require
from tests.support.clocks import START as CLOCK_START
from tests.support.clocks import Network, TrueClock, round_trips
from tests.support.ranks.streams import write_stream
from tests.support.viewers import hta_answers, perfetto
from tests.support.viewers.perfetto import PROBLEMS, SLICES
from tests.support.viewers.scene import START, Scene, device_work, make_run, make_window, odd_kinds, training
from tests.support.viewers.tensorboard import load_run


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks with a device each; their clocks differ from the collector's by seconds, and run a little fast or slow."""
    directory = tmp_path_factory.mktemp("collected")
    for rank, (ahead, drift) in enumerate(((4_000_000_000, 20.0), (4_000_000_000, -20.0))):
        run = msgspec.structs.replace(make_run(directory, rank), job="viewed", host=f"host{rank}", pid=4242)
        scene = Scene(run)
        training(scene)
        device_work(scene, rank)
        odd_kinds(scene)
        clock = TrueClock(ahead_ns=ahead, drift_ppm=drift)
        times = [CLOCK_START + second * 10**9 for second in range(-5, 30)]
        shift = CLOCK_START - START
        syncs = [
            msgspec.structs.replace(sync, sent=sync.sent - shift, returned=sync.returned - shift)
            for sync in round_trips(clock, Network(jitter_ns=100), times, random.Random(rank))
        ]
        write_stream(directory, run, [scene.batch()], [make_window()], syncs)
    return directory


def merge(collected: Path, target: Path, format: str | None = None) -> None:
    """Window 0 of all ranks."""
    asyncio.run(write_merged([collected], target, format=format, selection=Selection(window=0)))


def test_hta_loads_all_ranks(collected: Path, tmp_path: Path) -> None:
    """Both ranks are told apart, aligned, with their steps, kernels and streams."""
    merge(collected, tmp_path / "ranks", "hta")
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == ["rank_0.json", "rank_1.json"]
    first, second = (json.loads((tmp_path / "ranks" / f"rank_{rank}.json").read_text()) for rank in (0, 1))
    assert first["baseTimeNanoseconds"] == second["baseTimeNanoseconds"]
    assert [one["distributedInfo"]["rank"] for one in (first, second)] == [0, 1]
    done = subprocess.run(
        [hta_python(), Path(hta_answers.__file__), tmp_path / "ranks"],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert set(answers["ranks"]) == {"0", "1"}
    assert answers["iterations"] == {"0": [7, 8], "1": [7, 8]}
    assert answers["streams"] == {"0": [-1, 7, 20], "1": [-1, 7, 20]}
    assert {row["kernel_type"] for row in answers["kernel_types"]} == {"COMMUNICATION", "COMPUTATION", "MEMORY"}


def test_the_plugin_compares_the_ranks(collected: Path, tmp_path: Path) -> None:
    """One directory a window, one worker a rank; the Distributed view has both hosts."""
    merge(collected, tmp_path / "tb", "tensorboard")
    run = load_run(tmp_path / "tb" / "window_0")
    assert run.workers == ["All", "host0_0", "host1_1"]
    assert "Distributed" in [view.display_name for view in run.views]
    waiting = run.get_profile("All", "default" if run.get_spans("host0_0") == ["default"] else "1")
    assert set(waiting.steps_to_wait["data"]["all"]) == {"host0_0", "host1_1"}


@pytest.mark.parametrize("suffix", [".json.gz", ".pftrace"])
def test_perfetto_loads_the_merged_trace(collected: Path, tmp_path: Path, suffix: str) -> None:
    """Every slice on the rows of its rank, none refused, flows within ranks only."""
    trace = tmp_path / f"merged{suffix}"
    merge(collected, trace)
    flows = """
        select a.name as source, pa.name as from_process, pb.name as to_process
        from flow f join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id
        join thread_track ta on a.track_id = ta.id join thread ha on ha.utid = ta.utid join process pa on pa.upid = ha.upid
        join thread_track tb on b.track_id = tb.id join thread hb on hb.utid = tb.utid join process pb on pb.upid = hb.upid"""
    on_devices = """
        select distinct coalesce(pa.name, pb.name) as process from slice s
        left join thread_track tt on s.track_id = tt.id left join thread t using (utid) left join process pa on pa.upid = t.upid
        left join process_track pt on s.track_id = pt.id left join process pb on pb.upid = pt.upid
        where s.name = 'sgemm_128x64'"""
    problems, slices, joined, kernels = perfetto.query(trace, PROBLEMS, SLICES, flows, on_devices)
    assert problems == []
    steps = [(row["process"], row["name"]) for row in slices if row["name"].startswith("ProfilerStep#")]
    assert sorted(steps) == [(f"rank {rank}: trainer", f"ProfilerStep#{n}") for rank in (0, 1) for n in (7, 8, 9)]
    assert len(joined) == 6
    assert all(row["from_process"] == row["to_process"] for row in joined)
    assert {row["process"] for row in kernels} == {"rank 0: device 0", "rank 1: device 1"}


def test_duckdb_reads_the_table(collected: Path, tmp_path: Path) -> None:
    """Names, ranks, arguments and bounds by SQL; the file says whose it is."""
    duckdb: Any = require("duckdb")
    parquet: Any = require("pyarrow.parquet")
    table = tmp_path / "merged.parquet"
    merge(collected, table)
    rows = duckdb.sql(
        f"""select rank, host, count(*), min(error_ns) > 0, max(error_ns) < 1000000
        from '{table}' where kind = 'span' and name like 'ProfilerStep#%' group by all order by rank"""
    ).fetchall()
    assert rows == [(0, "host0", 3, True, True), (1, "host1", 3, True, True)]
    device = duckdb.sql(
        f"""select distinct rank, cast(args::json->>'device' as int), process from '{table}'
        where category = 'kernel' order by all"""
    ).fetchall()
    assert device == [(0, 0, "rank 0: device 0"), (1, 1, "rank 1: device 1")]
    values = duckdb.sql(
        f"select distinct value from '{table}' where name = 'loss' and value < 10 order by 1"
    ).fetchall()
    assert values == [(0.0,), (1.5,), (3.0,)]
    about = json.loads(parquet.read_metadata(table).metadata[b"stepscope"])
    assert [member["rank"] for member in about["metadata"]["merged"]["members"]] == [0, 1]
    assert str(parquet.read_schema(table).field("name").type).startswith("dictionary<values=string")
