"""Chrome traces that are complete after every piece: `ChromeTraceExporter(closed=True)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.runtime.errors import OutputError
from stepscope.runtime.events.record import EventBatch
from tests.support.viewers.scene import make_run, make_window
from tests.unit.exporters.test_chrome_exporter import many, read, spans

Form = Literal["array", "object"]
FORMS: list[tuple[Form, str]] = [
    ("array", "trace.json"), ("object", "trace.json"), ("array", "trace.json.gz"), ("object", "trace.json.gz"),
]  # fmt: skip


def traces(directory: Path) -> list[Path]:
    """The traces in a directory, and whatever else exporters leave there."""
    return sorted(path for path in directory.iterdir() if "trace" in path.name)


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a file of either form, which must be valid now."""
    found: Any = read(path)
    events: list[dict[str, Any]] = found["traceEvents"] if "traceEvents" in found else found
    return events


@pytest.mark.checklist("E6")
@pytest.mark.parametrize(("form", "name"), FORMS)
async def test_valid_after_every_piece(tmp_path: Path, form: Form, name: str) -> None:
    """From the first on, at its own place; the file is the same in the end as one that was not."""
    path = tmp_path / name
    exporter = ChromeTraceExporter(path, form=form, closed=True)
    batch = many(tmp_path, 500)
    await exporter.open(make_run(tmp_path))
    assert spans(events_of(path)) == []
    for number in range(1, 4):
        await exporter.export(batch)
        assert len(spans(events_of(path))) == 500 * number
        assert events_of(path)[-1]["name"] == "process_name"
    await exporter.close_window(make_window())
    assert [event["name"] for event in events_of(path)][-2:] == ["window 0", "process_name"]
    await exporter.aclose()
    closed = events_of(path)
    assert closed[-1]["name"] == "stepscope" and traces(tmp_path) == [path]
    other = ChromeTraceExporter(tmp_path / "other" / name, form=form)
    await other.open(make_run(tmp_path))
    for _ in range(3):
        await other.export(batch)
    await other.close_window(make_window())
    await other.aclose()
    assert [event["name"] for event in closed] == [event["name"] for event in events_of(tmp_path / "other" / name)]


@pytest.mark.parametrize("form", ["array", "object"])
async def test_rotation(tmp_path: Path, form: Form) -> None:
    """No file exceeds its size, end included, and each is valid."""
    exporter = ChromeTraceExporter(tmp_path / "trace.json", form=form, closed=True, max_bytes=1 << 17)
    await exporter.open(make_run(tmp_path))
    await exporter.export(many(tmp_path))
    files = traces(tmp_path)
    assert len(files) > 1 and all(path.stat().st_size <= 1 << 17 for path in files)
    assert sum(len(spans(events_of(path))) for path in files) == 5000
    await exporter.aclose()
    assert sum(len(spans(events_of(path))) for path in traces(tmp_path)) == 5000
    assert exporter.dropped_cap == 0


async def test_a_full_disk(small_disk: Path) -> None:
    """The piece that does not fit is left out, and the file is as valid as before."""
    path = small_disk / "trace.json"
    exporter = ChromeTraceExporter(path, form="object", closed=True)
    await exporter.open(make_run(small_disk))
    batch: EventBatch = many(small_disk)
    kept = 0
    with pytest.raises(OutputError):
        for _ in range(50):
            await exporter.export(batch)
            kept += 5000
    assert kept <= len(spans(events_of(path))) < kept + 5000
    with pytest.raises(OutputError):
        for _ in range(50):
            await exporter.export(batch)
    assert len(spans(events_of(path))) >= kept
    await exporter.aclose()


async def test_an_end_that_is_shorter_than_what_ended_it_before(tmp_path: Path) -> None:
    """Nothing of the former end is left behind it."""
    run = make_run(tmp_path, metadata={})
    long = msgspec.structs.replace(run, name="x" * 5000)
    path = tmp_path / "trace.json"
    exporter = ChromeTraceExporter(path, closed=True)
    await exporter.open(long)
    await exporter.aclose()
    assert events_of(path)[-1]["name"] == "stepscope"
