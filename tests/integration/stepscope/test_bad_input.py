"""Bad input from end to end: a clear error, and nothing else is lost."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import stepscope as sc
from stepscope.backends.script import Deliver, Span
from stepscope.runtime.events import Kind
from stepscope.runtime.statistics import ProfilerStatistics
from tests.support.messages import refused

NAMES = {
    "quotes": 'say "x" \\ {}',
    "control characters": "a\nb\tc\x00d\x1be",
    "lone surrogate": "half \ud83d",
    "emoji": "train 🚂 größe",
    "empty": "",
}


def load(path: Path) -> list[dict[str, object]]:
    """Events of a Chrome trace; not JSON is an error, NaN included."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    events: list[dict[str, object]] = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    return events


def outputs(stats: ProfilerStatistics) -> dict[str, tuple[int, int, int]]:
    """Per exporter: offered, exported, errors."""
    assert stats.pipeline is not None
    return {
        output.name.partition(":")[0]: (output.ledger.offered, output.ledger.exported, output.errors)
        for output in stats.pipeline.exporters
    }


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_any_name_is_legal(name: str, output_dir: Path) -> None:
    """As name of spans, counters, categories and arguments, as value, and as metadata; every output stays readable."""
    memory = sc.exporters.MemoryExporter()
    chrome = sc.ChromeTraceExporter(output_dir / "trace.json")
    with sc.trace(exporters=[memory, chrome], output_dir=output_dir) as profiler:
        profiler.add_metadata(name, name)
        with sc.span(name, category=name or "c", **{name: name}):
            sc.counter(name, 1)
            sc.instant(name)
            sc.flow(name, 1, "start")
    profiler.raise_errors()
    shown = name.encode("utf-8", "backslashreplace").decode()
    assert memory.names(kind=Kind.SPAN).count(shown) == 1
    (span,) = [event for event in load(output_dir / "trace.json") if event.get("ph") == "X" and event["name"] == shown]
    assert span["args"] == {shown: shown}
    exported = memory.windows[0].export(output_dir / "again.json")
    assert any(event.get("name") == shown for event in load(exported))


def test_a_name_of_a_megabyte_is_cut_and_counted(output_dir: Path) -> None:
    """What was cut is in the ledger of the window."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir) as profiler, sc.span("é" * (1 << 20)):
        pass
    (name,) = [name for name in memory.names(kind=Kind.SPAN) if not name.startswith("ProfilerStep")]
    assert name == "é" * 512
    assert memory.windows[0].ledger.cut["names_cut"] >= 1
    assert "names cut" in str(profiler.report())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "no number", None])
def test_counters_without_a_finite_value(value: object, output_dir: Path) -> None:
    """They are recorded as what they are, and no output becomes invalid by them."""
    memory = sc.exporters.MemoryExporter()
    chrome = sc.ChromeTraceExporter(output_dir / "trace.json")
    with sc.trace(exporters=[memory, chrome], output_dir=output_dir) as profiler:
        sc.counter("loss", value)  # type: ignore[arg-type]
        sc.counter("loss", 2.5)
    profiler.raise_errors()
    first, second = memory.events(kind=Kind.COUNTER)["value"]
    assert not np.isfinite(first)
    assert second == 2.5
    samples = [event["args"] for event in load(output_dir / "trace.json") if event.get("ph") == "C"]
    assert samples == [{"value": 2.5}]
    (counter,) = profiler.aggregates().counters
    assert counter.mean == 2.5


def test_negative_durations_become_nothing(output_dir: Path) -> None:
    """A device whose clock runs backwards cannot break a trace; the spans are kept with no duration."""
    backend = sc.backends.ScriptedBackend([Deliver([Span("back", 1000, -500), Span("forth", 1000, 500)])])
    memory = sc.exporters.MemoryExporter()
    chrome = sc.ChromeTraceExporter(output_dir / "trace.json")
    with sc.trace(backends=[backend], exporters=[memory, chrome], output_dir=output_dir) as profiler:
        profiler.step()
        profiler.flush()
        sc.instant("end")
    profiler.raise_errors()
    spans = {event["name"]: event["dur"] for event in load(output_dir / "trace.json") if event.get("ph") == "X"}
    assert spans["back"] == 0
    assert spans["forth"] == 0.5
    rows = {row.name: row for row in profiler.aggregates().rows}
    assert rows["back"].total_ns == 0


def test_a_disk_that_fills_up_costs_the_outputs_on_it_only(small_disk: Path, tmp_path: Path) -> None:
    """Training goes on, the other exporter has everything, what was lost is counted, and what was written is readable."""
    memory = sc.exporters.MemoryExporter()
    chrome = sc.ChromeTraceExporter(small_disk / "trace.json")
    journal = sc.exporters.JournalExporter(small_disk / "journal")
    with sc.trace(
        schedule=sc.schedule(wait=0, warmup=0, active=1),
        exporters=[memory, chrome, journal],
        output_dir=tmp_path / "run",
    ) as profiler:
        for _ in range(8):
            for _ in range(4000):
                sc.instant("tick")
            profiler.step()
            profiler.flush()
    accounts = outputs(profiler.statistics())
    assert accounts["memory"][0] == accounts["memory"][1] >= 32_000
    assert len(memory.windows) == 8
    for name in ("chrome", "journal"):
        offered, exported, errors = accounts[name]
        assert 0 < exported < offered
        assert errors > 0
    # How many errors there are depends on when the disk is full.
    with refused(ExceptionGroup, "stepscope", snapshot=False) as caught:
        profiler.raise_errors()
    assert any("space" in str(error) for error in caught.value.exceptions)


def test_a_directory_removed_while_it_is_written(tmp_path: Path) -> None:
    """The loop and the other exporters go on, and the directory is made again."""
    gone = tmp_path / "gone"
    memory = sc.exporters.MemoryExporter()
    with sc.trace(
        schedule=sc.schedule(wait=0, warmup=0, active=1),
        exporters=[memory, sc.tensorboard_trace_handler(gone)],
        output_dir=tmp_path / "run",
    ) as profiler:
        sc.instant("tick")
        profiler.step()
        profiler.flush()
        for path in gone.iterdir():
            path.unlink()
        gone.rmdir()
        sc.instant("tick")
        profiler.step()
    assert len(memory.windows) == 2
    assert len(list(gone.glob("*.pt.trace.json"))) == 1


@pytest.mark.parametrize(
    "argument", [object(), [object()], {1: 2}, range(10**6), "x" * 10**6, 10**400, np.float32(1.5)]
)
def test_any_argument_is_kept_or_named(argument: object, output_dir: Path) -> None:
    """Nothing that a span is given raises, and nothing large is kept whole."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir) as profiler, sc.span("work", value=argument):
        pass
    profiler.raise_errors()
    (kept,) = [arguments for arguments in memory.arguments() if "value" in arguments]
    assert len(repr(kept["value"])) < 5000


def test_wrong_options_name_the_field() -> None:
    """Unknown fields are refused where they are given."""
    with refused(TypeError, "unknown_field", "block_seconds", "worker_ring_bytes"):
        sc.Options(unknown_field=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ring_bytes", -1), ("ring_slots", 7), ("drain_interval", 0), ("drain_interval", "x"), ("overflow", "x"), ("shed", ("",)), ("shed_never", ("x" * 41,)), ("block_seconds", 0), ("small_ns", -1),
        ("queue_bytes", 0), ("close_timeout", -1), ("linger", math.nan), ("journal", "yes"),
    ],
)  # fmt: skip
def test_options_out_of_range_are_named(field: str, value: object) -> None:
    """At construction, with the field and the value."""
    with refused(ValueError, f"Options.{field}"):
        sc.Options(**{field: value})  # type: ignore[arg-type]
