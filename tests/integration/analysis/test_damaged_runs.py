"""Runs that are not as they should be: all that is known is reported, and what was left out; the rest is refused with a reason.

Names with markup, one step and runs that are not there are in `test_explain.py`, traces of torch.profiler in `test_torch_traces.py`.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.findings import Answer
from stepscope.analysis.page.render import report_html
from stepscope.analysis.reading.recording import load
from stepscope.analysis.tables.rank_summary import RankSummary
from stepscope.exporters.specimens import run_in
from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Block, EventBatch, Kind, empty_block, join_blocks
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.observers import task_runs
from stepscope.runtime.windows.window import Step, Window
from tests.support.basics import html_of
from tests.support.commands import stepscope
from tests.support.journals import frame_borders
from tests.support.launch import launched

MS = 1_000_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def steps_of(count: int, step_ns: int = 10 * MS, waits: float = 0.8) -> Block:
    """Steps that wait for data for a part of their time; the last mark ends the last of them."""
    block: Any = empty_block(2 * count + 1)
    begins = 1_000 * MS + np.arange(count + 1) * step_ns
    block["track"] = tracks.new(tracks.TrackKind.THREAD, 1234, 1, "MainThread")
    block["kind"][: count + 1], block["ts"][: count + 1], block["step"][: count + 1] = (
        Kind.STEP,
        begins,
        range(count + 1),
    )
    block["kind"][count + 1 :], block["ts"][count + 1 :] = Kind.SPAN, begins[:-1] + 1
    block["dur"][count + 1 :] = round(waits * step_ns)
    block["name"][count + 1 :] = strings.intern(LOADER)
    block["id"] = range(1, len(block) + 1)
    return block[np.argsort(block["ts"], kind="stable")]  # type: ignore[no-any-return]


def write(directory: Path, *blocks: Block, args: bytes = b"", rank: int | None = None, ended: bool = True) -> Path:
    """A journal of these events; of a run that died, if it did not end."""
    directory.mkdir(parents=True, exist_ok=True)
    writer = JournalWriter(directory / "journal")
    writer.open(msgspec.structs.replace(run_in(directory), rank=rank, world_size=None if rank is None else 2, job="j"))
    for block in blocks:
        writer.write_batch(EventBatch("recorder", 0, block, args))
    if ended:
        if blocks:
            writer.write_window(Window(index=0, profiler="one", start_ns=0, end_ns=0, steps=(), complete=True))
        writer.close()
    return directory


def answered(run: Path) -> Answer:
    """The answer, which can be shown everywhere; the page can be made as well."""
    answer = explain(run)
    assert str(answer).strip() and answer.verdict and html_of(answer) and "</html>" in report_html(run)
    json.loads(msgspec.json.encode(answer))
    return answer


def count_of(answer: Answer, rank: int = 0) -> int:
    """Steps of a rank."""
    statistics = answer.ranks[rank].statistics
    return 0 if statistics is None else statistics.steps


def test_a_process_that_records(tmp_path: Path) -> None:
    """While it runs, and when it was killed: the part on the disk is explained, and the missing end is reported."""
    program = """
        import sys, time
        import stepscope as sc

        with sc.trace(output_dir=sys.argv[1]) as profiler:
            while True:
                with sc.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                    time.sleep(0.002)
                profiler.step()
    """
    run = tmp_path / "run"
    answer: dict[str, Any] = {"findings": ()}
    with launched([sys.executable, "-P", "-c", textwrap.dedent(program), str(run)]) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            done = stepscope("explain", run, "--json", cwd=tmp_path) if (run / "journal").exists() else None
            if done is not None and done.returncode == 0:
                answer = json.loads(done.stdout)
            if answer["findings"]:
                break
            time.sleep(0.2)
        assert answer["findings"][0]["id"] == "input-bound-in-process" and "still run" in answer["trust"]
        process.kill()
        process.wait()
    late = answered(run)
    assert late.findings[0].id == "input-bound-in-process" and "did not end in order" in late.trust
    assert count_of(late) >= answer["ranks"][0]["statistics"]["steps"] >= 20


def test_nothing_was_recorded(tmp_path: Path) -> None:
    """No event at all, and no step: each says what to do."""
    nothing = answered(write(tmp_path / "nothing"))
    assert nothing.refused.startswith("Nothing was recorded") and "stepscope run" in nothing.refused
    spans = steps_of(30)
    stepless = answered(write(tmp_path / "stepless", spans[spans["kind"] == Kind.SPAN]))
    assert "Steps are missing" in stepless.refused and "profiler.step()" in stepless.refused


def test_a_cut_journal(tmp_path: Path) -> None:
    """Wherever it ends it is read as far as it is; a file whose first frame is cut is no recording."""
    whole = write(tmp_path / "whole", *np.array_split(steps_of(60), 6))
    data = (whole / "journal").read_bytes()
    borders = frame_borders(data)
    counts: list[int] = []
    for number, end in enumerate(sorted({*borders[2:], *(border + 7 for border in borders[2:-1])})):
        cut = tmp_path / str(number)
        cut.mkdir()
        (cut / "journal").write_bytes(data[:end])
        counts.append(count_of(answered(cut)))
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 60
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "journal").write_bytes(data[: borders[0] + 5])
    with pytest.raises(FormatError, match="no recording"):
        explain(tmp_path / "first")


def test_a_damaged_journal(tmp_path: Path) -> None:
    """Frames that do not fit their checksum are left out, and the answer says so."""
    run = write(tmp_path / "run", *np.array_split(steps_of(120), 6))
    data = bytearray((run / "journal").read_bytes())
    middle = frame_borders(bytes(data))[-6] + 100
    data[middle] ^= 0xFF
    (run / "journal").write_bytes(data)
    answer = answered(run)
    assert 60 < count_of(answer) < 120 and "damaged" in answer.trust and "lost frames: 1" in answer.trust
    (note,) = [note for note in RankSummary(load(run).ranks[0]).notes if "missing" in note]
    assert note.startswith("20 steps missing")
    statistics = answer.ranks[0].statistics
    assert statistics is not None and statistics.slowest_ns < 20 * MS  # no step has the time of those that are missing


def test_a_journal_whose_last_steps_are_damaged(tmp_path: Path) -> None:
    """The last step that is there does not last until the window's end."""
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    for block in np.array_split(steps_of(60), 3):
        writer.write_batch(EventBatch("recorder", 0, block, b""))
    size = (tmp_path / "journal").stat().st_size
    steps = tuple(Step(number, (1_000 + 10 * number) * MS, (1_010 + 10 * number) * MS) for number in range(60))
    writer.write_window(
        Window(index=0, profiler="one", start_ns=0, end_ns=steps[-1].end_ns, steps=steps, complete=True)
    )
    writer.close()
    data = bytearray((tmp_path / "journal").read_bytes())
    data[size - 10] ^= 0xFF
    (tmp_path / "journal").write_bytes(data)
    answer = answered(tmp_path)
    statistics = answer.ranks[0].statistics
    assert "lost frames: 1" in answer.trust and statistics is not None
    assert 30 < statistics.steps < 60 and statistics.slowest_ns < 20 * MS


def test_steps_whose_numbers_jump(tmp_path: Path) -> None:
    """A training that goes on where another ended misses no step."""
    with sc.trace(output_dir=tmp_path / "run") as profiler:
        for step in range(30):
            profiler.step_num = 2 * step
            with sc.span("work"):
                time.sleep(0.001)
            profiler.step()
    answer = answered(tmp_path / "run")
    assert count_of(answer) == 30 and "missing" not in answer.trust


def test_a_full_journal(tmp_path: Path) -> None:
    """The answer and the list of windows count what the journal left out."""
    options = sc.Options(journal_max_bytes=1 << 16)
    with sc.trace(
        output_dir=tmp_path / "run", options=options, schedule=sc.schedule(wait=0, warmup=0, active=2)
    ) as profiler:
        for _ in range(4):
            for _ in range(5_000):
                sc.instant("full", text=os.urandom(8).hex())
            profiler.step()
    lost = profiler.statistics().pipeline.exporters[0].ledger.dropped["cap"]  # type: ignore[union-attr]
    assert f"{lost:,} dropped (cap {lost:,})" in answered(tmp_path / "run").trust
    listed = json.loads(stepscope("windows", tmp_path / "run", "--json", cwd=tmp_path).stdout)
    assert sum(line["dropped"] for line in listed) == lost > 0


def test_ranks_that_are_not_alike(tmp_path: Path) -> None:
    """One has half of the steps, one has died in its fifth step, one has recorded nothing."""
    write(tmp_path / "job" / "rank0", steps_of(60), rank=0)
    write(tmp_path / "job" / "rank1", steps_of(30, waits=0.1), rank=1)
    write(tmp_path / "job" / "rank2", steps_of(60)[:9], rank=2, ended=False)
    write(tmp_path / "job" / "rank3", rank=3)
    answer = answered(tmp_path / "job")
    assert [count_of(answer, rank) for rank in range(4)] == [60, 30, 4, 0]
    assert "1 rank did not end in order" in answer.trust and answer.findings and not answer.refused


def test_spans_that_overlap(tmp_path: Path) -> None:
    """On one thread, without one being in the other: each nanosecond counts once."""
    block = steps_of(40)
    spans = block[block["kind"] == Kind.SPAN]
    late = spans.copy()
    late["ts"] += 3 * MS  # into the next step
    late["name"] = strings.intern("aten::mm")
    late["category"] = strings.category("cpu_op")
    (rank,) = answered(write(tmp_path / "run", join_blocks((block, late, late, spans)))).ranks
    assert sum(share.share for share in rank.shares) == pytest.approx(1, abs=1e-6)
    assert min(share.ns for share in rank.shares) >= 0
    data = next(share for share in rank.shares if share.name == "data")
    assert data.share == pytest.approx(0.8, abs=0.01)


def test_clocks_that_run_backwards(tmp_path: Path) -> None:
    """Marks out of order are put in order; a step has a length; times that no clock shows are left out, and reported."""
    block = steps_of(60)
    marks = np.flatnonzero(block["kind"] == Kind.STEP)
    block["ts"][marks[30:40]] -= 50 * MS
    block["dur"][block["kind"] == Kind.SPAN][::7] *= -1
    backwards = answered(write(tmp_path / "backwards", block))
    assert count_of(backwards) > 40 and not backwards.refused
    still = steps_of(60)
    still["ts"][still["kind"] == Kind.STEP] = 1_000 * MS
    stopped = answered(write(tmp_path / "stopped", still))
    assert "Steps are missing" in stopped.refused and not stopped.findings
    far = steps_of(60)
    far["ts"][far["kind"] == Kind.SPAN] = (1 << 63) - 1
    far["dur"][-1] = 1 << 62
    wild = answered(write(tmp_path / "far", far))
    assert "60 events left out" in wild.trust and count_of(wild) == 60 and not wild.findings


NAMES = (
    LOADER, "aten::mm", "Optimizer.step", "ProfilerStep", "suspended", "loss", "cpu_ns", "resident_bytes", "run_queue_ns",
    "written_bytes", "c10d::all_reduce", "autograd::engine::x", "", "[bold]</x>\x1b", "this process", "processors",
    "child processes", "stack sample", "nccl",
)  # fmt: skip
CATEGORIES = (
    "", "cpu_op", "step", "gc", "task run", "loop callback", "task", "forced write", "loader", "thread cpu", "processor demand",
    task_runs.QUEUES, "step signal", "stack sample", "kernel", "cuda_runtime", "gpu_memcpy", "python_function",
    "checkpoint", "user_annotation", "data",
)  # fmt: skip
VALUES = (0.0, 1.0, -5.0, 1e308, float("nan"), float("inf"), float("-inf"))
HEAP = _core.encode_arguments({"stack": "a (b.py:1);c (d.py:x);", "state": 5, "other": None, "generation": 2})


def wild(seed: int) -> Block:
    """Events of any kind, name, category, time, value, nesting and arguments, some of them in order."""
    chance = np.random.default_rng(seed)
    size = int(chance.integers(1, 1_500))
    block: Any = empty_block(size)

    def some(of: Sequence[Any]) -> Any:
        return chance.choice(np.array(of), size)

    far = int(chance.choice([10, 10**4, 10**9, 1 << 59, 1 << 62]))
    low = -far if chance.random() < 0.3 else 0
    block["kind"] = some([*Kind, 1, 1, 3, 11, 11, 0, 77])
    block["name"], block["category"] = (
        some(list(map(strings.intern, NAMES))),
        some(list(map(strings.category, CATEGORIES))),
    )
    block["ts"], block["dur"] = chance.integers(low, far, size), chance.integers(low, far, size)
    counters = block["kind"] == Kind.COUNTER
    block["value"][counters] = some(VALUES)[counters]
    block["step"], block["id"], block["parent"] = (chance.integers(low, 100, size) for low in (-2, 0, 0))
    block["track"] = some([tracks.new(tracks.TrackKind.THREAD, 1, tid, f"T{tid}") for tid in (1, 2)])
    block["args_len"], block["args_at"] = some([0, len(HEAP), 5]), some([0, 3, 10**6])
    block["flags"] = chance.integers(0, 256, size)
    if chance.random() < 0.5:
        block["ts"].sort()
    return block  # type: ignore[no-any-return]


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_any_bytes_in_a_journal(tmp_path_factory: pytest.TempPathFactory, seed: int, parts: int) -> None:
    """It has an answer and a page."""
    directory = tmp_path_factory.mktemp("wild")
    answered(write(directory / "run", *np.array_split(wild(seed), parts), args=HEAP, ended=seed % 2 == 0))


def test_events_under_the_category_of_pipelines(tmp_path: Path) -> None:
    """A program may use the same word for its own events: they are no pipelines."""
    with sc.trace(output_dir=tmp_path) as profiler:
        for step in range(30):
            sc.instant("shuffled", category="data pipeline", number=step)
            sc.counter("rows", step, category="data pipeline")
            profiler.step()
    answer = explain(tmp_path)
    assert not answer.refused and "input-bound-pipeline" not in {finding.id for finding in answer.findings}
