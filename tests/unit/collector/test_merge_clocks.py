"""Wrong clock samples of a stream change neither the times of others nor their bounds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.collector.app import Collector
from stepscope.collector.clocks import server_clock
from stepscope.collector.merge.report import MemberReport
from stepscope.collector.runs.recording import recordings_in
from stepscope.collector.settings import CollectorSettings
from stepscope.runtime.journal.records import ClockSync
from tests.integration.collector.test_merge import add_rank, merged, rank_run, syncs_of
from tests.support.ranks.streams import write_stream
from tests.support.viewers.scene import Scene, make_window, training

OURS, NOBODYS = "c" * 32, "f" * 32


def named(syncs: list[Any], clock: str) -> list[ClockSync]:
    """The same round trips with another clock."""
    return [msgspec.structs.replace(sync, clock=clock) for sync in syncs]


def add(directory: Path, rank: int, syncs: list[ClockSync], **run: Any) -> None:
    """A rank with these round trips."""
    described = rank_run(directory, rank, **run)
    scene = Scene(described)
    training(scene)
    write_stream(directory, described, [scene.batch()], [make_window()], syncs)


def aligned(directory: Path) -> dict[int | None, tuple[int, float | None]]:
    """By rank: what was added to its wall clock, and the bound."""
    _, report = merged(directory)
    return {member.rank: (member.offset_ns, member.bound_ns) for member in report.members}


async def test_a_collector_names_its_clocks(tmp_path: Path) -> None:
    """Each start adds one, and streams of that directory are believed about these."""
    assert server_clock.read_clock_names(tmp_path) is None
    ids = set[str]()
    for _ in range(3):
        collector = Collector(CollectorSettings(directory=tmp_path, port=0))
        async with collector.serving():
            ids.add(collector.clock.id)
    assert server_clock.read_clock_names(tmp_path) == frozenset(ids) and len(ids) == 3
    assert (tmp_path / server_clock.CLOCK_NAMES).stat().st_mode & 0o777 == 0o600


def test_a_name_that_was_cut_costs_itself(tmp_path: Path) -> None:
    """As by a full disk: the next start has a line of its own."""
    (tmp_path / server_clock.CLOCK_NAMES).write_text(f"{OURS}\n{NOBODYS[:7]}")
    server_clock.add_clock_name(tmp_path, "d" * 32)
    assert server_clock.read_clock_names(tmp_path) == frozenset({OURS, "d" * 32})


def test_a_clock_that_no_collector_had_does_not_count(tmp_path: Path) -> None:
    """A stream with ten times the round trips of all others, to a clock of its own, is not what all are measured by."""
    for rank in (0, 1):
        add(tmp_path, rank, named(syncs_of(rank * 1_000_000), OURS))
    server_clock.add_clock_name(tmp_path, OURS)
    before = aligned(tmp_path)
    assert all(bound is not None for _, bound in before.values())
    trips = [sync for shift in range(10) for sync in _later(syncs_of(10**12), shift)]
    add(tmp_path, 2, named(trips, NOBODYS))
    after = aligned(tmp_path)
    assert {rank: after[rank] for rank in (0, 1)} == before
    assert after[2][1] is None, "nothing is known of its own clock"
    _, report = merged(tmp_path)
    assert report.clock == OURS
    assert any("name a clock that none of these collectors had" in note for note in report.notes)


def test_the_clocks_of_a_directory_whose_copies_are_left_out_count(tmp_path: Path) -> None:
    """A collector that takes a stream over has it with round trips to the clock of the one before."""
    add(tmp_path / "before", 0, named(syncs_of(0), OURS))
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    server_clock.add_clock_name(tmp_path / "before", OURS)
    server_clock.add_clock_name(tmp_path / "after", NOBODYS)
    _, report = merged(tmp_path / "after", None, None, tmp_path / "before")
    assert [member.round_trips for member in report.members] == [10] and report.notes == []


def test_collectors_that_do_not_name_theirs_are_believed(tmp_path: Path) -> None:
    """Directories of another origin, together with one that does; a collector that shared the job has clocks of its own."""
    add(tmp_path / "a", 0, [*named(syncs_of(0), OURS), *named(_later(syncs_of(0), 1), "e" * 32)])
    add(tmp_path / "b", 1, named(syncs_of(5), "e" * 32))
    server_clock.add_clock_name(tmp_path / "a", OURS)
    _, report = merged(tmp_path / "a", None, None, tmp_path / "b")
    assert [member.round_trips for member in report.members] == [20, 10]
    assert report.notes == []


@pytest.mark.parametrize("liars", [1, 2])
def test_a_stream_with_the_clock_of_another_harms_itself_only(tmp_path: Path, liars: int) -> None:
    """Round trips that cannot be of the clock that a stream names are those of another, whoever is read first."""
    for rank in (0, 1, 2):
        add_rank(tmp_path, rank, clock="machine")
    before = aligned(tmp_path)
    for rank in range(3, 3 + liars):
        add_rank(tmp_path, rank, ahead_ns=rank * 10**9, clock="machine")
    after = aligned(tmp_path)
    assert {rank: after[rank] for rank in before} == before
    shifts = {rank: after[rank][0] - before[0][0] for rank in range(3, 3 + liars)}
    assert all(abs(shift - rank * 10**9) < 10**6 for rank, shift in shifts.items())


def test_processes_of_one_clock_stay_together(tmp_path: Path) -> None:
    """Small differences, as scheduling and rounding make them, do not take a clock apart."""
    for rank in range(4):
        add_rank(tmp_path, rank, ahead_ns=rank * 20_000, clock="machine")
    recordings, _ = recordings_in([tmp_path])
    _, report = merged(tmp_path)
    assert len(recordings) == len(report.members) == 4
    assert len({_clock(member) for member in report.members}) == 1


def _clock(member: MemberReport) -> tuple[int, int]:
    return member.round_trips, member.offset_ns


def _later(syncs: list[ClockSync], seconds: int) -> list[ClockSync]:
    by = seconds * 10**9
    return [
        ClockSync(
            sent=s.sent + by, arrived=s.arrived + by, answered=s.answered + by, returned=s.returned + by, clock=s.clock
        )
        for s in syncs
    ]
