"""Ranks that really run, stream to a real collector, and are merged: on clocks of their own, slow, killed and restarted."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.cli.main import main
from stepscope.collector.merge.report import MergeReport
from stepscope.collector.runs.job import Job, chosen_job, error_between
from stepscope.collector.runs.recording import recordings_in
from tests.support.basics import require
from tests.support.ranks.cluster import collector, start_rank, truth
from tests.support.ranks.worker import Rank

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


def test_steps_are_chosen_by_number(cluster: Path) -> None:
    """Steps 4 to 5 lie in two windows; nothing else is written."""
    pq: Any = require("pyarrow.parquet")
    out = cluster / "steps.parquet"
    merged(cluster, "--steps", "4-5", "--out", str(out))
    rows = pq.read_table(out).to_pylist()
    spans = [row for row in rows if row["kind"] == "span"]
    steps = Counter((row["rank"], row["name"]) for row in spans if row["name"].startswith("ProfilerStep"))
    assert steps == {
        (rank, f"ProfilerStep#{step}"): 2 if (rank, step) == (3, 5) else 1 for rank in range(4) for step in (4, 5)
    }
    assert {row["step"] for row in spans} == {4, 5}


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
