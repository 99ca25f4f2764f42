"""Formats are found by name and ending, and a journal can be played into any exporter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.runtime.errors import OutputError
from stepscope.runtime.events.record import Kind, empty_block, join_blocks
from stepscope.runtime.export.formats import exporter_for, known, register
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.replay import replay_into, run_of
from stepscope.runtime.journal.writer import JournalWriter
from tests.support.journals import write_journal
from tests.support.messages import refused


def test_the_longest_ending_decides(tmp_path: Path) -> None:
    """`.pt.trace.json` is not just any `.json`, in capitals or not; a name overrules the ending."""
    made: list[tuple[str, Path]] = []

    def factory(name: str) -> Callable[[Path], MemoryExporter]:
        def make(path: Path) -> MemoryExporter:
            made.append((name, path))
            return MemoryExporter(name=name)

        return make

    register("test-short", (".testjson",), factory("short"))
    register("test-long", (".special.testjson", ".other"), factory("long"))
    assert exporter_for(tmp_path / "a.testjson").name == "short"
    assert exporter_for(tmp_path / "A.Special.TestJson").name == "long"
    assert exporter_for(str(tmp_path / "x.testjson"), "test-long").name == "long"
    assert made[-1] == ("long", tmp_path / "x.testjson")
    assert {"test-short", "test-long"} <= {format.name for format in known()}


def test_unknown_formats_are_named(tmp_path: Path) -> None:
    """The error lists what is known."""
    register("test-named", (".testnamed",), lambda path: MemoryExporter())
    # Formats that other tests have registered are known, too.
    with refused(ValueError, "x.xyz", ".testnamed (test-named)", snapshot=False):
        exporter_for(tmp_path / "x.xyz")
    with refused(ValueError, "xyz", "test-named", snapshot=False):
        exporter_for(tmp_path / "x.testnamed", "xyz")
    with refused(ValueError, "json"):
        register("test-bad", ("json",), lambda path: MemoryExporter())


async def test_a_journal_is_played_whole(tmp_path: Path) -> None:
    """The exporter sees the whole life of a run: its facts, batches, windows and metadata."""
    batches = [batch_of(spans([f"w{window}", "x"]), window=window) for window in (0, 1, 0)]
    exporter = MemoryExporter()
    with JournalReader(write_journal(tmp_path / "journal", batches)) as reader:
        replayed = await replay_into(reader, exporter, run_of(reader, tmp_path))
    assert exporter.names() == ["w0", "x", "w1", "x", "w0", "x"]
    assert [window.index for window in exporter.windows] == [1, 0]
    assert exporter.calls == ["open", "export", "export", "close_window", "export", "close_window", "aclose"]
    assert (replayed.events, replayed.windows, replayed.unfinished) == (6, 2, 0)
    assert not replayed.damage
    assert exporter.run is not None
    assert exporter.run.name == "conformance"
    assert exporter.run.metadata() == {"model": "résumé"}


async def test_one_window_is_played_any_number_of_times(tmp_path: Path) -> None:
    """A live window is exported as it is, in place of the journal's; events of other windows are not."""
    batches = [batch_of(spans([f"w{window}"]), window=window) for window in (0, 1, 2)]
    path = write_journal(tmp_path / "journal", batches)
    live = window_of(1, batches[1])
    for window in (live, 1, live):
        exporter = MemoryExporter()
        with JournalReader(path) as reader:
            replayed = await replay_into(reader, exporter, run_in(tmp_path), window)
        assert exporter.names() == ["w1"]
        assert replayed.windows == 1
        assert (exporter.windows[0] is live) == (window is live)


async def test_windows_without_an_end_are_closed(tmp_path: Path) -> None:
    """Of a run that goes on, or was killed, steps and times are derived from its events."""
    marks = empty_block(3)
    marks["kind"], marks["step"], marks["ts"] = int(Kind.STEP), [7, 8, 9], [1000, 2000, 3000]
    events = spans(["x"], start_ns=1500)
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    writer.write_batch(batch_of(join_blocks([marks, events])))
    for window in (None, window_of(0, batch_of(events))):
        exporter = MemoryExporter()
        with JournalReader(writer.path) as reader:
            replayed = await replay_into(reader, exporter, run_of(reader, tmp_path), window)
        assert replayed.unfinished == 1
        (closed,) = exporter.windows
        if window is not None:
            assert closed is window
            continue
        assert not closed.complete
        assert (closed.start_ns, closed.end_ns) == (1000, 3000)
        assert [(step.number, step.start_ns, step.end_ns) for step in closed.steps] == [
            (7, 1000, 2000),
            (8, 2000, 3000),
            (9, 3000, 3000),
        ]
        assert "interrupted, or goes on" in closed.diagnostics[0]
    writer.close()


@pytest.mark.parametrize("method", ["open", "export", "close_window", "aclose"])
async def test_errors_pass_and_the_exporter_is_closed(tmp_path: Path, method: str) -> None:
    """The exporter's exception reaches the caller; it is closed, unless it never opened."""
    path = write_journal(tmp_path / "journal", [batch_of(spans(["x"]))])
    exporter = MemoryExporter(fail={method: OutputError("full")})  # type: ignore[dict-item] # pyright: ignore
    with JournalReader(path) as reader, pytest.raises(OutputError, match="full"):
        await replay_into(reader, exporter, run_in(tmp_path))
    assert exporter.closed == (method != "open")
