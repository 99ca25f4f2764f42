"""Parquet files: windows are rows, and memory does not grow with their number."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepscope as sc
from stepscope.exporters.files.parquet_rows import COLUMNS
from stepscope.exporters.parquet import MOST_BYTES, MOST_PIECES, ParquetExporter
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.runtime import _core
from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.windows.window import Window
from tests.support.basics import ROOT, Deferred
from tests.support.launch import run_to_end
from tests.support.messages import refused

pq: Any = Deferred("pyarrow.parquet")
arrow: Any = Deferred("pyarrow")


def windows_in(path: Path) -> list[dict[str, Any]]:
    """The metadata of each window in a file, in its order."""
    rows = pq.read_table(path).to_pylist()
    return [{**row, "args": json.loads(row["args"])} for row in rows if row["kind"] == "window"]


def test_each_window_of_a_run_is_a_row(tmp_path: Path) -> None:
    """With its steps, its time among the events', and its ledger, which is whole; the end of the file has the run's."""
    path = tmp_path / "trace.parquet"
    cycle = sc.schedule(wait=0, warmup=0, active=2)
    with sc.trace(exporters=[ParquetExporter(path)], output_dir=tmp_path / "run", schedule=cycle) as profiler:
        for _ in range(7):
            with sc.span("work"):
                pass
            profiler.step()
    rows = windows_in(path)
    assert [row["name"] for row in rows] == [f"window {number}" for number in range(4)]
    assert [row["args"]["steps"] for row in rows] == [[0, 1], [2, 3], [4, 5], [6]]
    assert [row["args"]["complete"] for row in rows] == [True, True, True, False]
    events = [row for row in pq.read_table(path).to_pylist() if row["name"] == "work"]
    for row in rows:
        ledger = msgspec.convert(row["args"]["ledger"], Ledger)
        assert ledger.sources["recorder"].balanced() and ledger.sources["recorder"].accepted > 0
        inside = [event for event in events if event["window"] == row["window"]]
        assert all(row["ts"] <= event["ts"] <= row["ts"] + row["dur"] for event in inside) and inside
        output = next(output for name, output in ledger.outputs.items() if name.startswith("parquet:"))
        assert output.offered == output.exported + sum(output.dropped.values()) + output.in_flight > 0
    about = json.loads(pq.read_metadata(path).metadata[b"stepscope"])
    assert about["windows"] == {"complete": 3, "incomplete": 1}
    assert msgspec.convert(about["ledger"], Ledger).sources["recorder"].accepted > 0


def _windows(count: int) -> list[Window]:
    made = window_of(0, batch_of(spans(["x"])))
    return [msgspec.structs.replace(made, index=number) for number in range(count)]


async def test_windows_do_not_stay_in_memory(tmp_path: Path) -> None:
    """Of four times as much as may wait, a part waits at any time; the reader gets all."""
    count, text = 16, "x" * (MOST_BYTES // 4)
    path = tmp_path / "trace.parquet"
    exporter = ParquetExporter(path)
    await exporter.open(run_in(tmp_path))
    most = 0
    before = arrow.total_allocated_bytes()
    tracemalloc.start()
    try:
        (made,) = _windows(1)
        for number in range(count):
            window = msgspec.structs.replace(made, index=number, metadata={"text": f"{number} {text}"})
            await exporter.close_window(window)
            del window
            most = max(most, tracemalloc.get_traced_memory()[0] + arrow.total_allocated_bytes() - before)
    finally:
        tracemalloc.stop()
    await exporter.aclose()
    assert most < 3 * MOST_BYTES < count * len(text)
    assert [row["args"]["window"] for row in windows_in(path)] == list(range(count))


async def test_many_small_pieces_become_one(tmp_path: Path) -> None:
    """Windows of one step with one event each: what waits is a few tables, not one for each window."""
    path = tmp_path / "trace.parquet"
    exporter = ParquetExporter(path)
    await exporter.open(run_in(tmp_path))
    count = 3 * MOST_PIECES // 2
    block = spans(["x"])
    before = arrow.total_allocated_bytes()
    for window in _windows(count):
        await exporter.export(batch_of(block.copy(), window=window.index))
        await exporter.close_window(window)
    assert arrow.total_allocated_bytes() - before < MOST_PIECES * 8192
    await exporter.aclose()
    assert [row["window"] for row in windows_in(path)] == list(range(count))
    kinds = pq.read_table(path, columns=["kind"]).to_pydict()["kind"]
    assert kinds.count("span") == count
    assert pq.read_metadata(path).num_row_groups == 1


async def test_arguments_outside_of_their_heap_cost_only_themselves(tmp_path: Path) -> None:
    """A backend that makes such an event gets a file of all events, before and after it."""
    path = tmp_path / "trace.parquet"
    exporter = ParquetExporter(path)
    await exporter.open(run_in(tmp_path))
    for number in range(3):
        events = spans([f"in {number}"])
        events["args_at"], events["args_len"] = 5, 100 * (number == 1)
        await exporter.export(batch_of(events, window=number))
    await exporter.aclose()
    rows = pq.read_table(path, columns=["name", "args"]).to_pylist()
    assert [(row["name"], row["args"]) for row in rows] == [
        ("in 0", None),
        ("in 1", '{"bad arguments": true}'),
        ("in 2", None),
    ]


async def test_events_of_which_no_rows_can_be_made_are_lost_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier calls have accepted them, so each later one raises, and the file is no part of them."""
    path = tmp_path / "trace.parquet"
    exporter = ParquetExporter(path)
    await exporter.open(run_in(tmp_path))
    await exporter.export(batch_of(spans(["work"])))

    def no_memory(*_: object) -> tuple[list[int], list[list[int]]]:
        raise MemoryError("of the machine")

    with monkeypatch.context() as patched:
        patched.setattr(_core, "arrow_columns", no_memory)
        with pytest.raises(OutputError, match="of the machine"):
            await exporter.export(batch_of(spans(["work"]), window=1))
    for call in (exporter.export(batch_of(spans(["work"]), window=2)), exporter.aclose()):
        with pytest.raises(OutputError, match="of the machine"):
            await call
    assert not path.exists()


async def test_times_that_no_clock_shows_are_written(tmp_path: Path) -> None:
    """A damaged journal may say anything of its windows."""
    path = tmp_path / "trace.parquet"
    exporter = ParquetExporter(path)
    await exporter.open(run_in(tmp_path))
    (made,) = _windows(1)
    await exporter.close_window(msgspec.structs.replace(made, start_ns=-(1 << 63), end_ns=(1 << 63) - 1))
    await exporter.aclose()
    assert windows_in(path)[0]["dur"] == (1 << 63) - 1
    with refused(ClosedError, "trace.parquet"):
        await exporter.close_window(made)


def test_rows_have_their_process_task_and_flags(tmp_path: Path) -> None:
    """Tasks belong to the process, which is called as the run; flags are columns; what does not apply is null."""
    path = tmp_path / "trace.parquet"

    async def child() -> None:
        with sc.span("in a task"):
            await asyncio.sleep(0)

    async def main() -> None:
        async with sc.trace(name="demo", output_dir=tmp_path / "run", exporters=[ParquetExporter(path)]) as profiler:
            await asyncio.gather(child(), child())
            with contextlib.suppress(ValueError), sc.span("fails"):
                raise ValueError
            still = sc.span("open")
            still.__enter__()
            profiler.step()
            profiler.step()

    asyncio.run(main())
    table = pq.read_table(path)
    rows = table.to_pylist()
    assert {row["process"] for row in rows} == {"demo"}
    by_name = {row["name"]: row for row in rows}
    assert by_name["fails"]["error"] and not by_name["fails"]["cut"]
    assert by_name["open"]["open"] and not by_name["open"]["error"]
    assert by_name["in a task"]["error"] is False
    steps = [row for row in rows if row["name"].startswith("ProfilerStep#")]
    assert steps and all(row["id"] is None and row["self_dur"] is None for row in steps)
    spans = [row for row in rows if row["kind"] == "span" and row not in steps]
    assert len({row["id"] for row in spans}) == len(spans) and None not in {row["self_dur"] for row in spans}
    assert all(row["cut"] is None for row in rows if row["kind"] != "span")
    assert all(field.metadata[b"description"] for field in table.schema)


def test_columns_are_documented() -> None:
    """On their page, as the file describes them."""
    page = (ROOT / "docs" / "parquet.md").read_text()
    for name, (type, text) in COLUMNS.items():
        assert f"| `{name}` | {type} | {text} |\n" in page


def test_the_process_ends_while_pyarrow_writes(tmp_path: Path) -> None:
    """The deadline of closing has passed. The exit waits for the call, so that the process neither aborts nor crashes in it."""
    command = [sys.executable, "-m", "tests.support.programs.exit_inside_pyarrow", str(tmp_path)]
    done = run_to_end(command, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "it did not end by the deadline for closing" in done.stderr, "it was not inside of pyarrow"


INTERRUPTED = """
import os, signal, sys
import stepscope as sc
profiler = sc.trace(exporters=[sc.exporters.ParquetExporter(sys.argv[1] + "/trace.parquet")], output_dir=sys.argv[1] + "/run")
profiler.start()
profiler.flush(60)
with sc.span("work"):
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupt_is_the_end_of_a_program_that_writes_parquet(tmp_path: Path) -> None:
    """As without it: pyarrow imports nothing while the interpreter ends, of which a part would hide the interrupt from it."""
    done = run_to_end([sys.executable, "-c", INTERRUPTED, str(tmp_path)], timeout=60, server=None)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert pq.read_table(tmp_path / "trace.parquet").num_rows
