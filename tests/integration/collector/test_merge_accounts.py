"""What ranks lost shows in the accounts of a merged trace."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepscope.collector.merge.merge import Merge, ledger_of
from stepscope.collector.merge.outputs import write_merged
from stepscope.collector.merge.plan import Selection, plan
from stepscope.collector.runs.job import Job, Member, chosen_job
from stepscope.collector.runs.recording import recordings_in
from stepscope.exporters.memory import MemoryExporter
from stepscope.runtime.accounting.ledger import MAX_COUNT, Ledger, OutputLedger, SourceLedger, sum_ledgers
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.windows.window import Window
from tests.integration.collector.test_merge import merged, rank_run, syncs_of
from tests.support.ranks.streams import write_stream
from tests.support.viewers.scene import Scene, make_window, training


def add_rank(directory: Path, rank: int, *windows: Window) -> None:
    """A stream of these windows, which does not say what became of the run."""
    described = rank_run(directory, rank)
    scene = Scene(described)
    training(scene)
    write_stream(directory, described, [scene.batch()], windows, syncs_of(0))


def lost(overflow: int, queue: int, in_flight: int = 0) -> Ledger:
    """The accounts of 100 events."""
    accepted = 100 - overflow
    return Ledger(
        {"recorder": SourceLedger(100, accepted, {"overflow": overflow})},
        {"journal": OutputLedger(accepted, accepted - queue - in_flight, {"queue": queue}, in_flight)},
        {"names_cut": 1},
        windows_left_out=3,
    )


def test_what_each_rank_lost_is_reported(tmp_path: Path) -> None:
    """By rank, source, output and reason, in the window and in the run; nothing is mixed, nothing is left out."""
    for rank in (0, 1):
        add_rank(tmp_path, rank, make_window(ledger=lost(2 + 3 * rank, 7 * rank, rank)))
    exporter, _ = merged(tmp_path)
    (window,) = exporter.windows
    assert exporter.run is not None
    for ledger in (window.ledger, exporter.run.ledger()):
        assert {name: source.dropped for name, source in ledger.sources.items()} == {
            "rank 0: recorder": {"overflow": 2},
            "rank 1: recorder": {"overflow": 5},
        }
        assert ledger.dropped() == 7
        assert ledger.outputs["rank 1: journal"] == OutputLedger(95, 87, {"queue": 7}, 1)
        assert ledger.outputs["rank 0: journal"] == OutputLedger(98, 98, {"queue": 0}, 0)
        assert ledger.cut == {"names_cut": 2}
        assert ledger.windows_left_out == 6


def test_the_accounts_are_in_what_is_written(tmp_path: Path) -> None:
    """Of a Chrome trace and of a journal: of the window, and of the run."""
    for rank in (0, 1):
        add_rank(tmp_path / "in", rank, make_window(ledger=lost(1, 2)))
    asyncio.run(write_merged([tmp_path / "in"], tmp_path / "trace.json"))
    rows: list[dict[str, Any]] = json.loads((tmp_path / "trace.json").read_text())
    said = [row["args"]["ledger"] for row in rows if row["name"] in ("window 0", "stepscope")]
    assert [msgspec.convert(one, Ledger).dropped() for one in said] == [2, 2]
    asyncio.run(write_merged([tmp_path / "in"], tmp_path / "out.journal"))
    with JournalReader(tmp_path / "out.journal") as reader:
        items = list(reader)
    found = [item.ledger if isinstance(item, Window) else item for item in items if isinstance(item, Ledger | Window)]
    assert [ledger.dropped() for ledger in found] == [2, 2]


@pytest.mark.parametrize("windows", [1, 3])
def test_each_rank_alone_has_its_own_accounts(tmp_path: Path, windows: int) -> None:
    """One file for each rank: names are as the rank has them, for there is no other."""
    made = [make_window(index, (7 + 3 * index,), ledger=lost(1 + index, 0)) for index in range(windows)]
    for rank in (0, 1):
        add_rank(tmp_path, rank, *made)
    job = Job(*chosen_job(recordings_in([tmp_path])[0], None))
    outputs: dict[int | None, MemoryExporter] = {}

    def exporter_for(rank: int | None, _: Member) -> MemoryExporter:
        return outputs.setdefault(rank, MemoryExporter())

    asyncio.run(Merge(job, plan(job, Selection()), tmp_path).apart(exporter_for))
    for output in outputs.values():
        assert [window.ledger for window in output.windows] == [window.ledger for window in made]
        assert output.run is not None
        assert output.run.ledger().dropped() == sum(1 + index for index in range(windows))
    assert sorted(outputs, key=str) == [0, 1]


def test_what_journals_claim_stays_writable() -> None:
    """Counts that no run has: the sum still fits into a file, whatever it is of."""
    huge = Ledger(
        {"x": SourceLedger(MAX_COUNT, MAX_COUNT, {"y": MAX_COUNT}, MAX_COUNT, MAX_COUNT)},
        {"o": OutputLedger(MAX_COUNT, MAX_COUNT, {}, MAX_COUNT)},
    )
    added = sum_ledgers([huge, huge])
    assert added.sources["x"] == huge.sources["x"] and added.outputs == huge.outputs
    assert ledger_of([("a", huge), ("b", huge)]).sources.keys() == {"a: x", "b: x"}
    assert ledger_of([("pid 1", lost(1, 0)), ("pid 1", lost(2, 0))]).sources["pid 1: recorder"].dropped == {
        "overflow": 3
    }
