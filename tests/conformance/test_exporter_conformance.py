"""Every exporter keeps the contract's promises, and the suite finds those that do not."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import io
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepscope.exporters import conformance
from stepscope.exporters.base import EventBatch, Exporter, Run, Window
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.conformance import Factory, ReadBack, check_exporter
from stepscope.exporters.console import ConsoleExporter
from stepscope.exporters.files.scalars import StepScalarExporter
from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.parquet import ParquetExporter
from stepscope.exporters.perfetto import PerfettoExporter
from stepscope.exporters.tensorboard import TensorBoardExporter
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind
from stepscope.runtime.journal.reader import JournalReader
from tests.support import pftrace
from tests.support.basics import require
from tests.support.messages import refused


def journal_spans(exporter: Exporter, directory: Path) -> Iterable[str]:
    """Names of the spans in a journal, which must be undamaged and complete."""
    assert isinstance(exporter, JournalExporter)
    with JournalReader(exporter.path) as reader:
        batches = [item.events for item in reader if isinstance(item, EventBatch)]
        assert not reader.damage
        assert reader.end is not None
    return [strings.name_of(event) for block in batches for event in block[block["kind"] == int(Kind.SPAN)]]


def memory_spans(exporter: Exporter, directory: Path) -> Iterable[str]:
    """Names of the spans in memory."""
    assert isinstance(exporter, MemoryExporter)
    return exporter.names(kind=Kind.SPAN)


def json_spans(exporter: Exporter, directory: Path) -> Iterable[str]:
    """Names of the spans in all Chrome traces of a directory, which must be valid JSON."""
    names: list[str] = []
    for path in sorted(directory.rglob("*.json*")):
        data = path.read_bytes()
        trace: Any = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        events: list[dict[str, Any]] = trace["traceEvents"] if "traceEvents" in trace else trace
        names += [event["name"] for event in events if event["ph"] in ("X", "b")]
    # Other kinds are drawn with the same phases: gaps as slices, async events as pairs.
    return [name for name in names if name not in ("kind GAP", "kind ASYNC_BEGIN")]


def packet_spans(exporter: Exporter, directory: Path) -> Iterable[str]:
    """Names of the spans in all Perfetto traces of a directory, which must be well formed."""
    traces = [pftrace.load(path) for path in sorted(directory.rglob("*.pftrace*"))]
    drawn = [drawn for trace in traces for drawn in (*trace.slices(), *trace.pairs())]
    assert all(drawn.dur >= 0 for drawn in drawn if drawn.name != "kind ASYNC_BEGIN")
    return [drawn.name for drawn in drawn if drawn.name not in ("kind GAP", "kind ASYNC_BEGIN")]


def parquet_spans(exporter: Exporter, directory: Path) -> Iterable[str]:
    """Names of the spans in all Parquet files of a directory."""
    parquet: Any = require("pyarrow.parquet")
    names: list[str] = []
    for path in sorted(directory.rglob("*.parquet")):
        columns = parquet.read_table(path, columns=["kind", "name"]).to_pydict()
        names += [name for kind, name in zip(columns["kind"], columns["name"], strict=True) if kind == "span"]
    return names


def closed(directory: Path, form: Any, name: str) -> Exporter:
    """An exporter whose files are complete after every piece."""
    return ChromeTraceExporter(directory / name, form=form, closed=True)


CASES: dict[str, tuple[Factory, ReadBack | None, bool]] = {
    "memory": (lambda directory: MemoryExporter(), memory_spans, False),
    "console": (lambda directory: ConsoleExporter(io.StringIO(), interval=0), None, False),
    "journal": (lambda directory: JournalExporter(), journal_spans, True),
    "chrome": (lambda directory: ChromeTraceExporter(directory / "trace.json"), json_spans, True),
    "chrome-object": (
        lambda directory: ChromeTraceExporter(directory / "trace.json.gz", form="object", dialect="tensorboard"),
        json_spans,
        True,
    ),
    "chrome-windows": (lambda directory: ChromeTraceExporter(directory / "w{window}.json"), json_spans, True),
    **{
        f"chrome-closed-{form}-{name}": (partial(closed, form=form, name=name), json_spans, True)
        for form in ("array", "object")
        for name in ("trace.json", "trace.json.gz")
    },
    "perfetto": (lambda directory: PerfettoExporter(directory / "trace.pftrace"), packet_spans, True),
    "perfetto-zipped": (lambda directory: PerfettoExporter(directory / "trace.pftrace.gz"), packet_spans, True),
    "perfetto-windows": (lambda directory: PerfettoExporter(directory / "w{window}.pftrace"), packet_spans, True),
    "parquet": (lambda directory: ParquetExporter(directory / "trace.parquet"), parquet_spans, True),
    "tensorboard": (lambda directory: TensorBoardExporter(directory), json_spans, True),
    "scalars": (lambda directory: StepScalarExporter(directory), None, True),
    "journal-synced": (lambda directory: JournalExporter(directory / "x", fsync="always"), journal_spans, True),
}


@pytest.mark.parametrize("name", CASES)
async def test_exporters_keep_the_contract(name: str, tmp_path: Path) -> None:
    """The exporters that ship pass the suite that ships."""
    factory, read_back, writes_files = CASES[name]
    await check_exporter(factory, tmp_path, read_back, writes_files=writes_files)


class Careless(MemoryExporter):
    """An exporter that forgets every second batch."""

    async def export(self, batch: EventBatch) -> None:
        if len(self.batches) % 2 == 0 and not any(call == "skipped" for call in self.calls[-1:]):
            await super().export(batch)
        else:
            self.calls.append("skipped")


class Vandal(MemoryExporter):
    """An exporter that changes what it shares with others."""

    async def export(self, batch: EventBatch) -> None:
        batch.events.flags.writeable = True
        batch.events["step"] = 7
        await super().export(batch)


class Fragile(MemoryExporter):
    """An exporter that can be closed only once."""

    async def aclose(self) -> None:
        if self.closed:
            raise RuntimeError("closed twice")
        await super().aclose()


class Chatty(MemoryExporter):
    """An exporter that writes some batches twice when it is cancelled."""

    async def export(self, batch: EventBatch) -> None:
        await super().export(batch)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await super().export(batch)
            raise


class Forgetful(MemoryExporter):
    """An exporter that seems to take another run, and leaves it out."""

    async def open(self, run: Run) -> None:
        if self.run is None:
            await super().open(run)

    async def export(self, batch: EventBatch) -> None:
        if not self.closed:
            await super().export(batch)

    async def close_window(self, window: Window) -> None:
        if not self.closed:
            await super().close_window(window)


class Trusting(MemoryExporter):
    """An exporter that takes any directory for granted."""

    async def open(self, run: Run) -> None:
        await super().open(run)

    async def close_window(self, window: Window) -> None:
        await super().close_window(window)


@pytest.mark.parametrize(
    ("exporter", "fact"),
    [
        (Careless, "exports_every_event"),
        (Vandal, "leaves_batches_alone"),
        (Fragile, "closed twice"),
        (Chatty, "survives_cancellation"),
        (Forgetful, "takes_another_run_whole_or_not"),
        (Trusting, "refuses_unusable_places"),
    ],
)
async def test_the_suite_refuses_an_exporter_that_breaks_a_promise(
    exporter: Callable[[], Any], fact: str, tmp_path: Path
) -> None:
    """An exporter that breaks one promise fails, and the check that failed is named."""
    with refused((AssertionError, RuntimeError, ValueError), fact):
        await check_exporter(lambda directory: exporter(), tmp_path, memory_spans)


def test_checks_are_all_listed() -> None:
    """A check that is written is run."""
    written = {
        name
        for name, value in vars(conformance).items()
        if inspect.iscoroutinefunction(value) and not name.startswith("_") and name != "check_exporter"
    }
    assert written == {check.__name__ for check in conformance.CHECKS}
