"""The memory exporter stores events and misbehaves on demand; the console exporter shows progress and never raises."""

from __future__ import annotations

import io
import os
import pty
from pathlib import Path

import anyio
import msgspec
import numpy as np
import pytest

from stepscope.build import trace
from stepscope.exporters.console import ConsoleExporter, ConsoleStatistics
from stepscope.exporters.memory import MemoryExporter
from stepscope.exporters.specimens import ODD_NAMES, batch_of, every_kind, run_in, spans, window_of
from stepscope.runtime.accounting.ledger import Ledger, OutputLedger, SourceLedger
from stepscope.runtime.errors import ClosedError, OutputError
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Kind, empty_block
from tests.support.journals import batch_with_arguments
from tests.support.messages import refused


async def test_memory_keeps_everything(tmp_path: Path) -> None:
    """Batches, windows and calls can be asked for, whole or by window and kind."""
    exporter = MemoryExporter()
    await exporter.open(run_in(tmp_path))
    first = batch_with_arguments(["a", "b"], [{"x": 1}, {}])
    await exporter.export(first)
    await exporter.export(batch_of(spans(["c"]), window=1))
    await exporter.close_window(window_of(0, first))
    await exporter.aclose()
    assert exporter.names() == ["a", "b", "c"]
    assert exporter.names(window=1) == ["c"]
    assert exporter.names(kind=Kind.COUNTER) == []
    assert exporter.arguments(window=0) == [{"x": 1}, {}]
    assert [window.index for window in exporter.windows] == [0]
    assert exporter.calls == ["open", "export", "export", "close_window", "aclose"]
    assert len(exporter) == 3
    assert exporter.events(window=0).tobytes() == first.events.tobytes()
    assert exporter.run is not None


async def test_memory_joins_blocks_as_they_are(tmp_path: Path) -> None:
    """Counters keep their values when blocks are joined: value and self time share their bytes."""
    exporter = MemoryExporter()
    await exporter.open(run_in(tmp_path))
    for _ in range(2):
        await exporter.export(every_kind())
    values = exporter.events(kind=Kind.COUNTER)["value"]
    assert np.isinf(values).sum() == 4
    assert len(exporter.arguments()) == len(exporter)


async def test_memory_is_bounded(tmp_path: Path) -> None:
    """Events that do not fit are counted."""
    exporter = MemoryExporter(max_bytes=200)
    await exporter.open(run_in(tmp_path))
    await exporter.export(batch_of(spans(["a", "b", "c"])))
    await exporter.export(batch_of(spans(["d"])))
    assert exporter.names() == ["a", "b", "c"]
    assert exporter.dropped_cap == 1


@pytest.mark.parametrize("method", ["open", "export", "close_window", "aclose"])
async def test_memory_fails_where_it_is_made_to(tmp_path: Path, method: str) -> None:
    """Each method can be made to raise; the others go on."""
    exporter = MemoryExporter(fail={method: OutputError("on demand")})  # type: ignore[dict-item] # pyright: ignore
    batch = batch_of(spans(["x"]))
    calls = {
        "open": lambda: exporter.open(run_in(tmp_path)),
        "export": lambda: exporter.export(batch),
        "close_window": lambda: exporter.close_window(window_of(0, batch)),
        "aclose": exporter.aclose,
    }
    for name, call in calls.items():
        if name == method:
            with refused(OutputError):
                await call()
        else:
            await call()
    with pytest.raises(ClosedError):
        await exporter.export(batch)


async def test_memory_hangs_until_released(tmp_path: Path) -> None:
    """A call that hangs goes on after `release()`, or ends when it is cancelled."""
    exporter = MemoryExporter(hang_in="export")
    await exporter.open(run_in(tmp_path))
    with anyio.move_on_after(0) as scope:
        await exporter.export(batch_of(spans(["cancelled"])))
    assert scope.cancelled_caught
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exporter.export, batch_of(spans(["released"])))
        await anyio.wait_all_tasks_blocked()
        assert exporter.names() == []
        exporter.release()
    await exporter.export(batch_of(spans(["free"])))
    assert exporter.names() == ["released", "free"]


def step_marks(*marks: tuple[int, int]) -> EventBatch:
    """A batch of step marks: (number, time in ns)."""
    block = empty_block(len(marks))
    block["kind"] = int(Kind.STEP)
    block["step"] = [number for number, _ in marks]
    block["ts"] = [at for _, at in marks]
    return batch_of(block)


def gap(lost: int) -> EventBatch:
    """A batch that says that events were dropped."""
    block = empty_block(2)
    block["kind"] = int(Kind.GAP)
    block["name"] = [strings.intern("dropped"), strings.intern("paused")]
    block["id"] = [lost, 0]
    return batch_of(block)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_console_shows_progress_at_intervals(tmp_path: Path) -> None:
    """One line per interval has step, pace, events and drops; the last one reports the end."""
    stream, clock = io.StringIO(), Clock()
    exporter = ConsoleExporter(stream, 1.0, clock=clock)
    await exporter.open(run_in(tmp_path, "my run"))
    await exporter.export(batch_of(spans(["x"] * 5)))
    await exporter.export(step_marks((0, 0), (1, 2_000_000)))
    clock.now = 0.9
    await exporter.export(step_marks((3, 12_000_000)))
    clock.now = 1.0
    await exporter.export(gap(1234))
    await exporter.export(batch_of(spans(["x"])))
    await exporter.aclose()
    assert stream.getvalue().splitlines() == [
        "my run: no step yet, 5 events, 0 dropped",
        "my run: step 3, 5.00ms/step, 10 events, 1,234 dropped",
        "my run: 0 windows, 11 events, 1,234 dropped",
    ]
    assert exporter.statistics() == ConsoleStatistics(step=3, step_ns=5e6, events=11, dropped=1234)


def test_console_shows_the_table_of_a_window(tmp_path: Path) -> None:
    """At a window's end the top of the table appears, if the window is alive."""
    from stepscope import span

    stream = io.StringIO()
    with trace(exporters=[ConsoleExporter(stream, top=1)], output_dir=tmp_path, name="run") as profiler:
        for _ in range(3):
            with span("forward"), span("inner"):
                pass
            profiler.step()
    text = stream.getvalue()
    assert "run: window 0 ended: 3 steps in " in text
    assert "Steps %" in text and "not covered by any span" in text
    assert "2 of 3 rows are not shown" in text
    assert text.splitlines()[-1].startswith("run: 1 window, ")


async def test_console_says_why_a_window_is_incomplete(tmp_path: Path) -> None:
    """Reasons are shown, safe for a terminal."""
    stream = io.StringIO()
    exporter = ConsoleExporter(stream)
    await exporter.open(run_in(tmp_path, ODD_NAMES[3]))
    batch = batch_of(spans(["x"]))
    window = window_of(0, batch)
    await exporter.close_window(msgspec.structs.replace(window, complete=False, diagnostics=("stopped \x1b[2J early",)))
    account = "1 of 4 events; dropped: 3 of recorder (overflow)\n  memory: 1 of 1 events\n  cut: 1 names cut"
    assert f"ended: 1 step in 1.00us, incomplete\n  {account}\n  stopped \\x1b[2J early\n" in stream.getvalue()
    assert "\x07" not in stream.getvalue()


async def test_the_console_prints_the_account_of_each_output(tmp_path: Path) -> None:
    """Of a window and of the run: what each output was offered, what it dropped and what is in flight."""
    stream = io.StringIO()
    exporter = ConsoleExporter(stream)
    ledger = Ledger(
        {"recorder": SourceLedger(120, 98, {"overflow": 2}, outside=19, superseded=1)},
        {"journal": OutputLedger(98, 90, {"queue": 3}, 5)},
        windows_left_out=7,
    )
    await exporter.open(msgspec.structs.replace(run_in(tmp_path), ledger=lambda: ledger))
    await exporter.close_window(msgspec.structs.replace(window_of(0, batch_of(spans(["x"]))), ledger=ledger))
    await exporter.aclose()
    await exporter.aclose()
    text = (
        "  98 of 120 events; dropped: 2 of recorder (overflow), 3 at journal (queue)\n"
        "  recorder: of 120 events, 19 in no window, 1 written as open ones before\n"
        "  journal: 90 of 98 events, 3 dropped (queue), 5 not written yet\n"
        "  left out: 7 windows, which began faster than they could be sorted\n"
    )
    assert stream.getvalue().count(text) == 2
    assert stream.getvalue().endswith("1 window, 0 events, 0 dropped\n")


async def test_console_writes_one_line_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal the progress line takes its own place."""
    main, secondary = pty.openpty()
    with os.fdopen(secondary, "w", encoding="ascii") as stream:
        exporter = ConsoleExporter(stream, 0)
        await exporter.open(run_in(tmp_path, "é"))
        await exporter.export(batch_of(spans(["x"])))
        await exporter.export(batch_of(spans(["x"])))
        await exporter.aclose()
        shown = ""
        while not shown.endswith("\n"):  # a terminal gives what it has
            shown += os.read(main, 4096).decode()
    os.close(main)
    line = "\r\x1b[K\\xe9: {}, {} events, 0 dropped"
    progress = line.format("no step yet", 1) + line.format("no step yet", 2)
    assert shown == progress + line.format("0 windows", 2) + "\r\n"


async def test_console_survives_its_terminal(tmp_path: Path) -> None:
    """A terminal that is closed, or a pipe that nobody reads any more, is counted once and left alone."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w", buffering=1)
    broken = ConsoleExporter(stream, 0)
    gone = io.StringIO()
    closed = ConsoleExporter(gone, 0)
    gone.close()
    for exporter in (broken, closed):
        await exporter.open(run_in(tmp_path))
        for _ in range(3):
            await exporter.export(batch_of(spans(["x"])))
        await exporter.close_window(window_of(0, batch_of(spans(["x"]))))
        await exporter.aclose()
        assert exporter.write_errors == 1
    # The text in the stream's buffer cannot be written: closing its descriptor first keeps that quiet.
    os.close(write_end)
    with pytest.raises(OSError, match="Bad file descriptor|Broken pipe"):
        stream.close()


async def test_console_uses_the_error_stream_of_the_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a stream it is stderr, as it is when the run opens."""
    exporter = ConsoleExporter(interval=0)
    await exporter.open(run_in(tmp_path))
    await exporter.export(batch_of(spans(["x"])))
    await exporter.aclose()
    assert "1 events" in capsys.readouterr().err


def test_console_refuses_nonsense() -> None:
    """A negative interval is named."""
    with refused(ValueError, "interval", "-1"):
        ConsoleExporter(interval=-1)
