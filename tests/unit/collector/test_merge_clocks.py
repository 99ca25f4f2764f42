"""Streams with round trips to collectors' clocks; processes that read one clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stepscope.collector.merge.report import MemberReport
from stepscope.collector.runs.recording import recordings_in
from stepscope.runtime.journal.records import ClockSync
from tests.integration.collector.test_merge import add_rank, merged, rank_run
from tests.support.ranks.streams import write_stream
from tests.support.viewers.scene import Scene, make_window, training

OURS = "c" * 32


def named(syncs: list[Any], clock: str) -> list[ClockSync]:
    """The same round trips with another clock."""
    return [msgspec.structs.replace(sync, clock=clock) for sync in syncs]


def add(directory: Path, rank: int, syncs: list[ClockSync], **run: Any) -> None:
    """A rank with these round trips."""
    described = rank_run(directory, rank, **run)
    scene = Scene(described)
    training(scene)
    write_stream(directory, described, [scene.batch()], [make_window()], syncs)


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
