"""A disk that fills up: the accounts say exactly which events are in the file, and which are lost."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import stepscope as sc
from stepscope.exporters.journal import WindowJournalsExporter
from stepscope.runtime.accounting.ledger import OutputLedger
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Flag, Kind, empty_block
from stepscope.runtime.export.exporter import Lost
from stepscope.runtime.journal.reader import JournalReader
from tests.support import disks, pftrace
from tests.support.blocks import scattered
from tests.support.exporter_workers import batch, closed, run_facts, running
from tests.support.messages import refused

EVENTS = 100_000


def in_journal(path: Path) -> int:
    """Events of a journal."""
    with JournalReader(path) as reader:
        return sum(len(item) for item in reader if isinstance(item, EventBatch))


def in_chrome(path: Path) -> int:
    """Events of a trace, whole or cut, plain or gzip; not those that the exporter adds."""
    data = path.read_bytes()
    if path.name.endswith((".gz", ".gz.part")):
        data = zlib.decompressobj(wbits=31).decompress(data)
    lines = [line.rstrip(b",") for line in data.split(b"\n") if b'"ph"' in line]
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return sum(event["ph"] != "M" and event.get("cat") != "stepscope" for event in events)


def in_perfetto(path: Path) -> int:
    """Instants of a trace, not those that the exporter adds."""
    return sum(event.category != "stepscope" for event in pftrace.Trace(path.read_bytes()).of(pftrace.INSTANT))


CASES: dict[str, tuple[Callable[[Path], Any], Callable[[Path], int]]] = {
    "t.json": (sc.ChromeTraceExporter, in_chrome),
    "t.json.gz": (sc.ChromeTraceExporter, in_chrome),
    "closed.json": (lambda path: sc.ChromeTraceExporter(path, closed=True), in_chrome),
    "t.kineto.json": (lambda path: sc.ChromeTraceExporter(path, form="object"), in_chrome),
    "t{window}.json": (sc.ChromeTraceExporter, in_chrome),
    "tb": (lambda path: sc.tensorboard_trace_handler(str(path)), in_chrome),
    "t.pftrace": (sc.PerfettoExporter, in_perfetto),
    "t.journal": (sc.exporters.JournalExporter, in_journal),
    "windows": (lambda path: WindowJournalsExporter(), in_journal),
}


def in_files(place: Path, count: Callable[[Path], int]) -> int:
    """Events of all files below a directory, a filler apart."""
    return sum(count(path) for path in place.rglob("*") if path.is_file() and path.name != "filler")


def leave_bytes(place: Path, size: int) -> None:
    """Fills a disk but for so many bytes."""
    about = os.statvfs(place)
    with (place / "filler").open("ab", buffering=0) as file:
        file.write(os.urandom(max(about.f_bavail * about.f_frsize - size, 0)))


@pytest.mark.parametrize("name", CASES)
async def test_events_that_reached_a_full_disk_are_exported(tmp_path: Path, name: str) -> None:
    """Of a batch that was written in part, that part counts as exported, and the rest as dropped."""
    make, count = CASES[name]
    with disks.small_disk(tmp_path / "disk", 5 << 20) as disk:
        if name not in (
            "t.json",
            "closed.json",
            "t.kineto.json",
            "t{window}.json",
            "tb",
        ):  # little room is enough for all events
            leave_bytes(disk, (64 if "gz" in name else 1000 if "pftrace" in name else 2000) << 10)
        exporter = make(disk / name)
        async with running(exporter, disk, 1 << 30) as worker:
            for window in range(2):
                worker.offer(scattered(batch(window, EVENTS)))
                worker.close_window(closed(window))
        found = in_files(disk, count)
    ledger: OutputLedger = worker.statistics().ledger
    assert 0 < ledger.exported == found < 2 * EVENTS and ledger.in_flight == 0
    assert ledger.dropped == {"error": 2 * EVENTS - ledger.exported}
    assert "No space left on device" in worker.statistics().first_error


async def test_begins_that_could_not_be_written_are_lost(small_disk: Path) -> None:
    """A span of `.pftrace` whose begin waited for what encloses it is in no reader's trace: it is not called exported."""
    exporter = sc.PerfettoExporter(small_disk / "t.pftrace")
    spans = empty_block(200)
    spans["kind"], spans["flags"], spans["parent"] = int(Kind.SPAN), int(Flag.CLIPPED), 1
    spans["ts"], spans["dur"] = 1_000 + np.arange(200) * 10, 5
    spans["name"] = [strings.intern(f"a name as long as this one, so that they need pages, {n}") for n in range(200)]
    await exporter.open(run_facts(small_disk))
    await exporter.export(EventBatch("recorder", 0, spans, b""))
    assert exporter.written == 200 and exporter.take_lost() == []
    with contextlib.suppress(OSError):
        leave_bytes(small_disk, 0)
    with refused(sc.errors.OutputError, "No space left", "t.pftrace"):
        await exporter.aclose()
    (lost,) = exporter.take_lost()
    begins = pftrace.Trace((small_disk / "t.pftrace").read_bytes()).of(pftrace.BEGIN)
    assert lost == Lost(200 - len(begins), "error") and lost.events > 0 and exporter.take_lost() == []


async def test_an_object_whose_end_could_not_be_written_keeps_its_temporary_name(small_disk: Path) -> None:
    """JSON that is not whole does not get the name of a trace, whatever is tried afterwards."""
    exporter = sc.ChromeTraceExporter(small_disk / "t{window}.json", form="object")
    async with running(exporter, small_disk, 1 << 30) as worker:
        worker.offer(batch(0, 1000))
        worker.close_window(closed(0))
        await worker.drained()
        worker.offer(batch(1, 1000))
        await worker.drained()
        with contextlib.suppress(OSError):
            leave_bytes(small_disk, 0)
        diagnostics = tuple(f"something to say, at some length: {n}" for n in range(1000))
        worker.close_window(msgspec.structs.replace(closed(1), diagnostics=diagnostics))
    json.loads((small_disk / "t0.json").read_text())
    assert not (small_disk / "t1.json").exists() and (small_disk / "t1.json.part").exists()
    assert worker.statistics().ledger.exported == 2000 and worker.statistics().errors
