"""The journal exporter: all its events are on the disk, whatever happens to process, disk and directory."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from pathlib import Path

import anyio
import msgspec
import pytest

from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.exporters.stream.protocol import StepSummary
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.journal import records as records
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.writer import FACTS_WAITING, JournalWriter
from stepscope.runtime.windows.window import Step, Window
from tests.support import disks
from tests.support.basics import poll
from tests.support.blocks import scattered
from tests.support.exporter_workers import ledger_of
from tests.support.journals import events_of, read_journal
from tests.support.launch import run_to_end
from tests.support.messages import refused

LARGE = ["x"] * 1000
"""Names of a batch of 64 kB."""


async def test_the_journal_and_its_directories_are_private(tmp_path: Path, output_dir: Path) -> None:
    """The journal lies in the run's directory; directories that have to be made are the owner's only, too."""
    exporter = JournalExporter()
    await exporter.open(run_in(output_dir))
    await exporter.aclose()
    assert exporter.path == output_dir / "journal"
    assert stat.S_IMODE(exporter.path.stat().st_mode) == 0o600
    exporter = JournalExporter(tmp_path / "a" / "b" / "x.journal")
    await exporter.open(run_in(tmp_path))
    await exporter.aclose()
    assert [stat.S_IMODE((tmp_path / part).stat().st_mode) for part in ("a", "a/b")] == [0o700, 0o700]


async def test_other_journals_are_left_alone(tmp_path: Path) -> None:
    """A name that is in use, by a file or a link to nowhere, is not touched; the exporter recognises its own."""
    (tmp_path / "x.journal").write_text("precious")
    (tmp_path / "x-2.journal").symlink_to(tmp_path / "nowhere")
    exporter = JournalExporter(tmp_path / "x.journal")
    await exporter.open(run_in(tmp_path))
    await exporter.export(batch_of(spans(["mine"])))
    await exporter.aclose()
    assert exporter.path == tmp_path / "x-3.journal"
    assert (tmp_path / "x.journal").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()
    assert len(events_of(exporter.path)) == 1


@pytest.mark.parametrize("fsync", ["never", "always"])
def test_a_kill_loses_nothing_exported(tmp_path: Path, fsync: str) -> None:
    """Everything that `export` returned for survives `kill -9`."""
    program = f"""
import anyio, os, signal
from pathlib import Path
from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.specimens import batch_of, run_in, spans
async def main():
    exporter = JournalExporter(fsync={fsync!r})
    await exporter.open(run_in(Path({str(tmp_path)!r})))
    for number in range(50):
        await exporter.export(batch_of(spans([f"span {{number}}"])))
    os.kill(os.getpid(), signal.SIGKILL)
anyio.run(main)
"""
    result = run_to_end([sys.executable, "-c", program])
    assert result.returncode == -signal.SIGKILL, result.stderr
    with JournalReader(tmp_path / "journal") as reader:
        items = list(reader)
        assert reader.end is None
        assert not reader.damage
        assert reader.metadata == {"model": "résumé", "nested": {"list": [1, 2.5, None, True]}}
    assert sum(len(item) for item in items if isinstance(item, EventBatch)) == 50


@pytest.mark.checklist("F11")
async def test_the_size_limit_holds_and_is_reported(tmp_path: Path) -> None:
    """At its limit, which leaves room for the names of all tests before, the journal stops, with markers and counts; windows
    and the end are still written."""
    exporter = JournalExporter(tmp_path / "journal", max_bytes=1 << 22)
    await exporter.open(run_in(tmp_path))
    for _ in range(400):
        await exporter.export(scattered(batch_of(spans(LARGE))))
    await exporter.close_window(window_of(0, batch_of(spans(LARGE))))
    await exporter.export(batch_of(spans(["small"]), window=1))
    await exporter.aclose()
    with JournalReader(exporter.path) as reader:
        items = list(reader)
        assert not reader.damage
    written = sum(len(item) for item in items if isinstance(item, EventBatch))
    caps = [item for item in items if isinstance(item, records.CapRecord)]
    assert exporter.path.stat().st_size <= 1 << 22
    assert 0 < written < 400_000
    assert exporter.dropped_cap == 400_001 - written
    assert caps[0].dropped == 1000
    assert caps[-1] == records.CapRecord(1 << 22, 400_000 - written)
    assert len(caps) < 10
    assert [item.index for item in items if isinstance(item, Window)] == [0]
    assert reader.end is not None
    counted = msgspec.structs.replace(reader.end, index=0)
    assert counted == records.EndRecord(events=written, windows=1, dropped=exporter.dropped_cap)


async def test_a_window_that_does_not_fit_loses_its_steps_first(tmp_path: Path) -> None:
    """Near the limit a window is written without its steps; if even that does not fit, the end counts it."""
    exporter = JournalExporter(tmp_path / "journal", max_bytes=1 << 16)
    await exporter.open(run_in(tmp_path))
    batch = batch_of(spans(["x"]))
    steps = tuple(Step(number, number, number + 1) for number in range(10_000))
    large = msgspec.structs.replace(window_of(0, batch), steps=steps)
    await exporter.close_window(large)
    for index in range(1, 1000):
        await exporter.close_window(window_of(index, batch))
    await exporter.aclose()
    with JournalReader(exporter.path) as reader:
        windows = [item for item in reader if isinstance(item, Window)]
    assert windows[0].steps == ()
    assert windows[0].diagnostics[-1] == "10000 steps and the metadata did not fit the journal"
    assert windows[1].steps != ()
    assert reader.end is not None
    assert reader.end.windows == 1000
    assert reader.end.records_left_out > 1000 - len(windows)
    assert exporter.path.stat().st_size <= 1 << 16


def test_facts_of_steps_that_are_left_out_count(tmp_path: Path) -> None:
    """More of them come before the next events than wait; the end says how many were left out."""
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    for number in range(FACTS_WAITING + 6):
        writer.add_facts(StepSummary(number, 0, 0, [], b""))
    writer.close()
    with JournalReader(writer.path) as reader:
        *_, end = reader
    assert isinstance(end, records.EndRecord) and end.records_left_out == writer.facts_left_out == 6


def test_a_million_steps_fit(tmp_path: Path) -> None:
    """A window of very many steps comes back whole."""
    window = window_of(0, batch_of(spans(["x"])))
    steps = tuple(Step(number, number * 1000, number * 1000 + 1000) for number in range(1_000_000))
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    writer.write_window(msgspec.structs.replace(window, steps=steps))
    writer.close()
    items, damage = read_journal(writer.path)
    (found,) = (item for item in items if isinstance(item, Window))
    assert not damage
    assert found.steps == steps


async def test_a_full_disk_is_an_error_and_leaves_no_half_frame(tmp_path: Path) -> None:
    """A batch that does not fit the disk raises, written frames stay readable, and later batches fit when there is room."""
    # The names of all tests before are in the first frames, and must fit.
    with disks.small_disk(tmp_path / "disk", 32 << 20) as small_disk:
        await fill(small_disk, ballast_bytes=24 << 20)


async def fill(small_disk: Path, ballast_bytes: int) -> None:
    """Writes a journal until the disk is full, makes room, and goes on."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(ballast_bytes))
    exporter = JournalExporter(small_disk / "journal")
    await exporter.open(run_in(small_disk))
    written = 0
    with refused(OutputError, "No space left on device", "journal"):
        for _ in range(1000):
            await exporter.export(scattered(batch_of(spans(LARGE))))
            written += 1
    ballast.unlink()
    await exporter.export(batch_of(spans(["after"])))
    await exporter.aclose()
    with JournalReader(exporter.path) as reader:
        items = list(reader)
        assert not reader.damage
        assert reader.end is not None
        assert msgspec.structs.replace(reader.end, index=0) == records.EndRecord(events=written * 1000 + 1)
    assert sum(len(item) for item in items if isinstance(item, EventBatch)) == written * 1000 + 1
    assert written > 0


async def test_misuse_is_reported(tmp_path: Path) -> None:
    """Wrong arguments and calls out of order raise; closing what was never opened does not."""
    with refused(ValueError, "max_bytes", "65536", "10"):
        JournalExporter(max_bytes=10)
    with refused(ValueError, "fsync", "never", "window", "always", "sometimes"):
        JournalExporter(fsync="sometimes")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    exporter = JournalExporter(tmp_path / "journal")
    await exporter.aclose()
    with pytest.raises(ClosedError):
        await exporter.export(batch_of(spans(["x"])))
    await exporter.open(run_in(tmp_path))
    await exporter.aclose()
    with pytest.raises(ClosedError):
        await exporter.export(batch_of(spans(["x"])))


async def test_metadata_added_later_is_not_lost_by_a_crash(tmp_path: Path) -> None:
    """Metadata goes into the journal with the next batch, not only at a window's end."""
    metadata: dict[str, object] = {"a": 1}
    exporter = JournalExporter(tmp_path / "journal")
    await exporter.open(msgspec.structs.replace(run_in(tmp_path), metadata=lambda: metadata))
    await exporter.export(batch_of(spans(["x"])))
    metadata["b"] = 2
    await exporter.export(batch_of(spans(["x"])))
    await exporter.export(batch_of(spans(["x"])))
    items, _ = read_journal(exporter.path)
    await exporter.aclose()
    assert [item.values for item in items if isinstance(item, records.MetadataRecord)] == [{"a": 1}, {"a": 1, "b": 2}]


async def test_a_slow_disk_holds_up_the_journal_only(tmp_path: Path) -> None:
    """While the kernel does not take the bytes, everything else goes on: here it is this loop that lets it take them."""
    place = tmp_path / "journal"
    worker = ExporterWorker(JournalExporter(place), run_in(tmp_path), 1 << 26)
    worker.start()
    await poll(place.exists)
    await worker.drained()
    descriptor = next(int(name) for name in os.listdir("/proc/self/fd") if _target(name) == str(place.resolve()))
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    # A pipe takes the place of the file: a write of more than it holds waits until somebody reads.
    os.dup2(write_end, descriptor)
    os.close(write_end)
    worker.offer(scattered(batch_of(spans(["x"] * 20_000))))
    worker.finish()
    size = 0
    with anyio.fail_after(30):
        while not worker.ended:
            await anyio.sleep(0.001)
            with contextlib.suppress(BlockingIOError):
                size += len(os.read(read_end, 1 << 16))
    size += len(os.read(read_end, 1 << 16))  # the rest in the pipe
    assert size > 4 * (1 << 16)
    assert ledger_of(worker).exported == 20_000
    os.close(read_end)


def _target(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""
