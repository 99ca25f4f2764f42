"""Recordings of planted programs, as small as rules need them: what a `RankSummary` has, and not the events it is made of.

python -m tests.planted.recordings RUNS   packs runs that `tests.planted.live --out RUNS` left
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np

from stepscope.analysis import explain
from stepscope.analysis.findings import Answer, DeviceAnswer
from stepscope.analysis.reading.recording import Rank, Recording, load
from stepscope.analysis.tables.allocations import MemoryTable
from stepscope.analysis.tables.collectives import CollectiveTable
from stepscope.analysis.tables.data_pipeline import DataPipeline
from stepscope.analysis.tables.flops import FlopsTable
from stepscope.analysis.tables.rank_summary import (
    Call,
    Collection,
    Fetch,
    RankSummary,
    Row,
    Sample,
    TaskRun,
    judged_steps_of,
)
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, Device, Facts, Phase
from tests.planted.live import Outcome, Program, programs

PLACE = Path(__file__).parent / "recordings"
Series = dict[str, list[tuple[int, float]]]


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A recording of one rank. Facts are stored by the names of their columns: a column that is added later is empty."""

    rank: int | None
    name: str
    host: str
    facts: dict[str, list[float]]
    samples: list[Sample]
    loaders: list[dict[str, Any]]
    loader_starts: list[int] = []
    worker_starts: list[int] = []
    compilations: list[Call] = []
    collections: list[Collection]
    tasks: list[TaskRun]
    callbacks: list[TaskRun] = []
    suspended: list[tuple[list[int], list[int], list[int]]]
    calls: dict[Phase, list[Call]] = {}
    fetches: list[Fetch] = []
    not_finite: dict[str, int]
    queue: list[float]
    thread_cpu: Series
    queues: Series
    task_waits: Series = {}
    pipelines: tuple[DataPipeline, ...] = ()
    counter_means: dict[str, float] = {}
    demand: Series
    rows: list[Row]
    devices: tuple[DeviceAnswer, ...]
    events: int
    from_torchs_engine: bool = False


PLAIN = [name for name in Stored.__struct_fields__ if name not in ("rank", "name", "host", "facts", "suspended")]


def stored(summary: RankSummary) -> Stored:
    """Packs the summary of a rank."""
    return Stored(
        rank=summary.rank,
        name=summary.name,
        host=summary.recorded.host,
        facts=_columns(summary.facts),
        suspended=[cast(Any, tuple(part.tolist() for part in each)) for each in summary.suspended],
        **{name: getattr(summary, name) for name in PLAIN},
    )


def summary_of(stored_rank: Stored) -> RankSummary:
    """Unpacks the summary of a rank, as rules read it."""
    summary = RankSummary.__new__(RankSummary)
    summary.recorded = cast(
        Rank,
        SimpleNamespace(
            host=stored_rank.host,
            rank=stored_rank.rank,
            world_size=None,
            name=stored_rank.name,
            dropped={},
            missing={},
            ended=True,
            foreign=False,
            startup_ns=0,
            shutdown_ns=0,
            metadata={},
            windows={},
        ),
    )
    summary.flops, summary.memory, summary.collectives = FlopsTable(), MemoryTable(), CollectiveTable()
    summary.rank, summary.name, summary.notes = stored_rank.rank, stored_rank.name, ()
    for name in PLAIN:
        setattr(summary, name, getattr(stored_rank, name))
    summary.calls = {phase: stored_rank.calls.get(phase, []) for phase in Phase}
    summary.suspended = [cast(Any, tuple(np.array(part, np.int64) for part in each)) for each in stored_rank.suspended]
    count = max(map(len, stored_rank.facts.values()), default=0)
    summary.facts = np.zeros(count, FACTS_DTYPE)
    for name, into in _fields(summary.facts).items():
        if name in stored_rank.facts:
            into[:] = stored_rank.facts[name]
    summary.judged_steps = judged_steps_of(summary.facts)
    return summary


def answer_of(summaries: list[RankSummary]) -> Answer:
    """The answer on a recording."""
    return explain.judge(Recording(Path("recorded"), [summary.recorded for summary in summaries], []), summaries)


def recordings() -> dict[str, tuple[Program, bool, Path]]:
    """The recordings there are, by name: the program, whether it is cured, and the file."""
    found: dict[str, tuple[Program, bool, Path]] = {}
    for program in programs():
        for cured in (False, True):
            path = PLACE / f"{program.name}{'-cured' if cured else ''}.msgpack.xz"
            if path.exists():
                found[path.name.partition(".")[0]] = program, cured, path
    return found


def ranks_of(path: Path) -> list[Stored]:
    """The ranks of one recording."""
    return msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=list[Stored])


def judge(program: Program, cured: bool, path: Path) -> Outcome:
    """Judges one recording."""
    return Outcome(program, cured, answer_of([summary_of(rank) for rank in ranks_of(path)]), 0.0)


def _columns(facts: Facts) -> dict[str, list[float]]:
    return {name: column.tolist() for name, column in _fields(facts).items() if column.any()}


def _fields(facts: Any) -> dict[str, Any]:
    columns = {name: facts[name] for name in FACTS_DTYPE.names or () if facts[name].ndim == 1}
    columns |= {f"phase {phase.name}": facts["phases"][:, phase] for phase in Phase}
    return columns | {f"device {device.name}": facts["device"][:, device] for device in Device}


def main() -> None:
    """Packs runs."""
    PLACE.mkdir(exist_ok=True)
    for path in sorted(Path(sys.argv[1]).iterdir()):
        name, _, number = path.name.rpartition("-")
        if number != "0":
            continue
        summaries = [RankSummary(rank) for rank in load(path).ranks]
        packed = lzma.compress(msgspec.msgpack.encode([stored(summary) for summary in summaries]), preset=9)
        (PLACE / f"{name}.msgpack.xz").write_bytes(packed)
        print(f"{name}: {len(packed):,} bytes")


if __name__ == "__main__":
    main()
