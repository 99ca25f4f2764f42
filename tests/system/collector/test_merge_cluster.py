"""Ranks that stream to a real collector and are merged, and merged traces as their readers understand them."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.cli.main import main
from stepscope.collector.merge.outputs import write_merged
from stepscope.collector.merge.plan import Selection
from stepscope.collector.merge.report import MergeReport
from stepscope.collector.runs.job import Job, chosen_job, error_between
from stepscope.collector.runs.recording import recordings_in
from tests.support.basics import hta_python, require
from tests.support.clocks import START as CLOCK_START
from tests.support.clocks import Network, TrueClock, round_trips
from tests.support.ranks.cluster import collector, start_rank, truth
from tests.support.ranks.streams import write_stream
from tests.support.ranks.worker import Rank
from tests.support.viewers import hta_answers, perfetto
from tests.support.viewers.perfetto import PROBLEMS, SLICES
from tests.support.viewers.scene import START, Scene, device_work, make_run, make_window, odd_kinds, training
from tests.support.viewers.tensorboard import load_run

RANKS = (
    Rank(rank=0),
    Rank(rank=1, ahead_seconds=5000, slow_seconds=0.2),
    Rank(rank=2, ahead_seconds=3),
    Rank(rank=3, killed_at=7),
)
AGAIN = Rank(rank=3, first_step=5)
"""After it was killed in step 7 the rank goes on from step 5, where it saved."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `collected`, and what ranks truly did."""
    directory = tmp_path_factory.mktemp("cluster")
    with collector(directory / "collected") as address:
        started = [start_rank(address, directory, rank, len(RANKS)) for rank in RANKS]
        assert [process.wait(60) for process in started] == [0, 0, 0, -9]
        assert start_rank(address, directory, AGAIN, len(RANKS)).wait(60) == 0
    return directory


def job_of(directory: Path) -> Job:
    """The only job of a directory."""
    recordings, unusable = recordings_in([directory])
    assert not unusable
    return Job(*chosen_job(recordings, None))


def merged(cluster: Path, *arguments: str) -> MergeReport:
    """Runs the command; its report."""
    report = cluster / "report.json"
    assert main(["merge", str(cluster / "collected"), "--report", str(report), *arguments]) == 0
    return msgspec.json.decode(report.read_bytes(), type=MergeReport)


def test_times_are_true_within_the_bound(cluster: Path) -> None:
    """Clocks that differ by hours come together: each collective was where the shared wall clock says, within the bound."""
    job = job_of(cluster / "collected")
    assert [(member.rank, member.start) for member in job.members] == [(0, 0), (1, 0), (2, 0), (3, 0), (3, 1)]
    pq: Any = require("pyarrow.parquet")
    out = cluster / "all.parquet"
    merged(cluster, "--out", str(out))
    rows = pq.read_table(out).to_pylist()
    spans = {(row["rank"], row["step"]): row for row in rows if row["name"] == "gloo:all_reduce"}
    found = truth(cluster)
    assert set(spans) == set(found)
    lateness: dict[int, list[int]] = {}
    for key, row in spans.items():
        # The wall clock was read inside the span.
        assert row["ts"] - row["error_ns"] <= found[key] <= row["ts"] + row["dur"] + row["error_ns"]
        lateness.setdefault(key[0], []).append(found[key] - row["ts"])
    for rank, late in lateness.items():
        bound = max(row["error_ns"] for row in spans.values() if row["rank"] == rank)
        # Of ten readings one came within a ms of the span's beginning.
        assert -bound <= min(late) < bound + 1_000_000
        assert bound < 50_000_000


def test_processes_of_one_machine_are_exactly_in_order(cluster: Path) -> None:
    """Ranks 0 and 3 read the same clock: no bound between them. The others have clocks of their own."""
    members = {(member.rank, member.start): member for member in job_of(cluster / "collected").members}
    assert members[0, 0].clock == members[3, 0].clock == members[3, 1].clock
    assert len({members[rank, 0].clock for rank in (0, 1, 2)}) == 3
    at = {key: member.recording.first_ns for key, member in members.items()}
    assert error_between(members[0, 0], at[0, 0], members[3, 1], at[3, 1]) == 0
    assert error_between(members[0, 0], at[0, 0], members[1, 0], at[1, 0]) > 0


def test_the_report_describes_each_member(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its end, and the bound of its clock."""
    report = merged(cluster, "--window", "0", "--out", str(cluster / "window0.json"))
    text = capsys.readouterr().out
    assert report.missing_ranks == ""
    assert report.clock
    states = {member.member: member for member in report.members}
    assert not states["rank 3"].ended
    assert states["rank 3 (start 2)"].ended
    assert all(member.bound_ns and member.round_trips for member in report.members)
    assert "no end: killed, or still running" in text


def test_windows_of_a_restarted_rank_follow_its_steps(cluster: Path) -> None:
    """Its first window after the start holds steps 5 to 9, and belongs to the others' second, not to their first."""
    first = merged(cluster, "--window", "0", "--out", str(cluster / "first.json"))
    second = merged(cluster, "--window", "1", "--out", str(cluster / "second.json"))

    def steps(name: str) -> dict[str, set[int]]:
        events = json.loads((cluster / name).read_text())
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        found: dict[str, set[int]] = {}
        for event in events:
            if event["name"].startswith("ProfilerStep#"):
                found.setdefault(names[event["pid"]].partition(":")[0], set()).add(int(event["name"].partition("#")[2]))
        return found

    early, late = set(range(5)), set(range(5, 10))
    assert steps("first.json") == {f"rank {rank}": early for rank in range(4)}
    assert steps("second.json") == {
        "rank 0": late, "rank 1": late, "rank 2": late, "rank 3": {5, 6}, "rank 3 (start 2)": late
    }  # fmt: skip
    assert first.events
    assert second.absent == []
    assert second.notes == ["rank 3 was started again, and did the steps 5 to 7 again"]


def test_each_process_has_numbers_of_its_own(cluster: Path) -> None:
    """No two members share a process, whatever numbers the systems gave them; flows and files stay apart."""
    out = cluster / "pids.json.gz"
    merged(cluster, "--out", str(out))
    events = json.loads(gzip.decompress(out.read_bytes()))
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    pids = [e["pid"] for e in events if e["name"] == "process_name"]
    assert len(set(pids)) == len(pids) == 6
    assert sorted(name.partition(":")[0] for name in names)[1:] == [
        "rank 0", "rank 1", "rank 2", "rank 3", "rank 3 (start 2)"
    ]  # fmt: skip
    about = next(e for e in events if e["name"] == "stepscope")["args"]["metadata"]["merged"]
    assert {member["member"] for member in about["members"]} == {name.partition(":")[0] for name in names} - {"job"}
    assert all(member["bound_ns"] > 0 for member in about["members"])


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
    """Both ranks are separate, aligned, with their steps, kernels and streams."""
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
