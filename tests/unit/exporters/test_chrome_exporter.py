"""The exporter of Chrome traces: forms, windows, limits, broken disks and cut files; and files that are complete after every piece."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from stepscope.exporters.base import Exporter
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.files.chrome_file import NOTES_TID
from stepscope.runtime.errors import OutputError
from stepscope.runtime.events.record import EventBatch, Kind
from tests.support.blocks import instant_block
from tests.support.chrome_traces import events_of
from tests.support.messages import refused
from tests.support.viewers.scene import PID, Scene, make_run, make_window, training


def read(path: Path) -> Any:
    """The JSON of a file, decompressed if need be."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)


def listing(directory: Path) -> list[str]:
    """Names of the files in a directory."""
    return sorted(entry.name for entry in directory.iterdir())


def spans(events: list[dict[str, Any]]) -> list[str]:
    """Names of the complete events."""
    return [event["name"] for event in events if event["ph"] == "X"]


def named(events: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Arguments of the only event of this name."""
    (found,) = (event for event in events if event["name"] == name)
    args: dict[str, Any] = found["args"]
    return args


def many(directory: Path, count: int = 5000) -> EventBatch:
    """A batch of spans `n0`, `n1` and so on."""
    scene = Scene(make_run(directory))
    for n in range(count):
        scene.span(f"n{n}", n, 1, number=n)
    return scene.batch()


async def write(
    exporter: Exporter, directory: Path, *batches: EventBatch, metadata: dict[str, Any] | None = None
) -> None:
    """A whole life of an exporter, all batches in window 0."""
    await exporter.open(make_run(directory, metadata=metadata))
    for batch in batches:
        await exporter.export(batch)
    await exporter.close_window(make_window())
    await exporter.aclose()


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
async def test_array(tmp_path: Path, name: str) -> None:
    """The default is an array of events, with rows, metadata, windows and their ledgers among them."""
    scene = Scene(make_run(tmp_path))
    training(scene)
    path = tmp_path / "deep" / "er" / name
    await write(ChromeTraceExporter(path), tmp_path, scene.batch(), metadata={"lr": float("nan"), "who": "\ud800"})
    events = read(path)
    assert spans(events).count("aten::linear") == 3
    names = {event["name"]: event["args"] for event in events if event["ph"] == "M" and "name" in event["args"]}
    assert names["process_name"] == {"name": "scene"}
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert rows == {PID: "MainThread", PID + 1000: "pin memory", NOTES_TID: "run and windows"}
    assert named(events, "run")["baseTimeNanoseconds"] == 1_699_999_999_000_000_000
    window = named(events, "window 0")
    assert window["steps"] == [7, 8, 9]
    assert window["ledger"]["sources"]["recorder"]["dropped"] == {"overflow": 2}
    assert named(events, "stepscope")["metadata"] == {"lr": "nan", "who": "\\ud800"}


async def test_object(tmp_path: Path) -> None:
    """The object form appears complete: the rank first, in the only spelling that HTA reads, and the events last."""
    path = tmp_path / "rank{rank}.{pid}.json"
    exporter = ChromeTraceExporter(path, form="object")
    metadata = {
        "model": "tiny",
        "traceEvents": 1,
        "distributedInfo": {"backend": "nccl", "rank": 5},
        "deviceProperties": [{"id": 0}],
    }
    await exporter.open(make_run(tmp_path, rank=1, metadata=metadata))
    await exporter.export(many(tmp_path, 10))
    await exporter.close_window(make_window())
    target = tmp_path / f"rank1.{PID + 1}.json"
    assert not target.exists()
    await exporter.aclose()
    assert listing(tmp_path) == [target.name]
    text = target.read_text()
    assert text.startswith('{\n"distributedInfo": {"rank": 1, "world_size": 2, "backend": "nccl"},\n')
    made = json.loads(text)
    assert list(made)[-1] == "traceEvents"
    assert (made["model"], made["deviceProperties"], made["displayTimeUnit"]) == ("tiny", [{"id": 0}], "ms")
    assert len(spans(made["traceEvents"])) == 10


async def test_a_file_per_window(tmp_path: Path) -> None:
    """With `{window}` in its name every window has a file, complete when the window is, empty or not."""
    exporter = ChromeTraceExporter(tmp_path / "w{window}.json.gz", form="object")
    await exporter.open(make_run(tmp_path))
    first, second = many(tmp_path, 3), many(tmp_path, 4)
    await exporter.export(EventBatch("recorder", 0, first.events, first.args))
    await exporter.export(EventBatch("recorder", 1, second.events, second.args))
    await exporter.close_window(make_window(0))
    assert len(spans(events_of(tmp_path / "w0.json.gz"))) == 3
    assert not (tmp_path / "w1.json.gz").exists()
    await exporter.close_window(make_window(2, (), diagnostics=("no step was recorded",)))
    assert named(events_of(tmp_path / "w2.json.gz"), "stepscope")["diagnostics"] == ["no step was recorded"]
    await exporter.aclose()
    assert len(spans(events_of(tmp_path / "w1.json.gz"))) == 4


async def test_rows_are_named_when_they_appear(tmp_path: Path) -> None:
    """A track is named once, before its first event."""
    exporter = ChromeTraceExporter(tmp_path / "t.json")
    await exporter.open(make_run(tmp_path))
    scene = Scene(make_run(tmp_path))
    scene.span("a", 0, 1)
    await exporter.export(scene.batch())
    scene.span("b", 1, 1)
    scene.span("c", 2, 1, track=scene.other)
    await exporter.export(scene.batch())
    await exporter.aclose()
    order = [event["args"]["name"] if event["ph"] == "M" else event["name"]
             for event in read(tmp_path / "t.json") if event["name"] in ("thread_name", "a", "b", "c")]  # fmt: skip
    assert order == ["run and windows", "MainThread", "a", "pin memory", "b", "c"]


async def test_every_cut_can_be_read(tmp_path: Path) -> None:
    """Each event has a line of its own, so that of a trace in array form that is cut anywhere all whole events are read."""
    source = tmp_path / "t.json"
    await write(ChromeTraceExporter(source), tmp_path, many(tmp_path, 20))
    data = source.read_bytes()
    found: set[int] = set()
    for size in range(0, len(data), 7):
        lines = data[:size].rpartition(b"\n")[0].rstrip(b"],\n")
        events: list[dict[str, Any]] = json.loads(lines + b"]") if lines.startswith(b"[\n") else []
        assert spans(events) == [f"n{n}" for n in range(len(spans(events)))]
        found.add(len(spans(events)))
    assert found == set(range(21))


async def test_counters_as_mxnet_names_them(tmp_path: Path) -> None:
    """With the dialect `mxnet` a counter's value has the counter's name; all else is as it is without."""
    scene = Scene(make_run(tmp_path))
    for name in ("loss", 'a "quoted\\" name', "value", "é\n"):
        scene.add(Kind.COUNTER, name, 1, value=1.5)
    scene.add(Kind.COUNTER, "odd", 1, value=float("nan"))
    scene.add(Kind.SPAN, 'span "ph":"C"', 1, dur=5)
    found: dict[str, list[Any]] = {}
    batch = scene.batch()
    for dialect in ("kineto", "mxnet"):
        path = tmp_path / f"{dialect}.json"
        await write(ChromeTraceExporter(path, dialect=dialect), tmp_path, batch)
        found[dialect] = [event for event in read(path) if event["ph"] != "M" and event.get("cat") != "stepscope"]
    for event in found["kineto"]:
        if event["ph"] == "C":
            event["args"] = {event["name"]: event["args"]["value"]}
    assert found["mxnet"] == found["kineto"] and len(found["mxnet"]) == 6


async def test_two_exporters_do_not_share_a_file(tmp_path: Path) -> None:
    """The second is refused while the first writes, and may follow it."""
    first, second = ChromeTraceExporter(tmp_path / "t.json"), ChromeTraceExporter(tmp_path / "t.json")
    batch = EventBatch("recorder", 0, instant_block(1, 2), b"")
    await first.open(make_run(tmp_path))
    await first.export(batch)
    with refused(OutputError, "t.json"):
        await second.open(make_run(tmp_path))
    await first.aclose()
    third = ChromeTraceExporter(tmp_path / "t.json")
    await third.open(make_run(tmp_path))
    await third.export(batch)
    await third.aclose()
    assert json.loads((tmp_path / "t.json").read_text())


Form = Literal["array", "object"]
FORMS: list[tuple[Form, str]] = [
    ("array", "trace.json"), ("object", "trace.json"), ("array", "trace.json.gz"), ("object", "trace.json.gz"),
]  # fmt: skip


def traces(directory: Path) -> list[Path]:
    """The traces in a directory, and whatever else exporters leave there."""
    return sorted(path for path in directory.iterdir() if "trace" in path.name)


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
    await write(ChromeTraceExporter(tmp_path / "other" / name, form=form), tmp_path, batch, batch, batch)
    assert [event["name"] for event in closed] == [event["name"] for event in events_of(tmp_path / "other" / name)]


async def test_a_shorter_end_leaves_no_bytes_of_the_former_one(tmp_path: Path) -> None:
    """No bytes of the former end follow."""
    run = make_run(tmp_path, metadata={})
    long = msgspec.structs.replace(run, name="x" * 5000)
    path = tmp_path / "trace.json"
    exporter = ChromeTraceExporter(path, closed=True)
    await exporter.open(long)
    await exporter.aclose()
    assert events_of(path)[-1]["name"] == "stepscope"
