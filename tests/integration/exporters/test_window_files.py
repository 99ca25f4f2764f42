"""What a file of one window shows lies in that window, and rows are called as they are."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.exporters.files.chrome_file import NOTES
from stepscope.runtime.windows.window import Window
from tests.support import pftrace
from tests.support.viewers import perfetto

NAME = "Lauf 日本 é"


class Windows:
    """Keeps the windows of a run."""

    def __init__(self) -> None:
        self.found: list[Window] = []

    def __call__(self, window: Window) -> None:
        self.found.append(window)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Window]]]:
    """Two windows, long after the run's begin and far apart, through every exporter of trace files."""
    directory = tmp_path_factory.mktemp("windows")
    windows = Windows()
    names = ("t.json", "t-{window}.json", "t-{window}.json.gz", "t.pftrace", "t-{window}.pftrace", "o-{window}.json")
    exporters: list[sc.exporters.Exporter] = [
        sc.PerfettoExporter(directory / name)
        if "pftrace" in name
        else sc.ChromeTraceExporter(directory / name, form="object" if name.startswith("o") else "array")
        for name in names
    ]
    exporters.append(sc.tensorboard_trace_handler(directory / "tb"))
    cycle = sc.schedule(wait=200, warmup=0, active=2, repeat=2)
    with sc.trace(
        name=NAME, schedule=cycle, exporters=exporters, output_dir=directory / "run", on_trace_ready=windows
    ) as profiler:
        for _ in range(404):
            with sc.span("work ü"):
                sum(range(1000))
            profiler.step()
    yield directory, windows.found


def chrome(path: Path) -> list[dict[str, Any]]:
    """Its events."""
    data = path.read_bytes()
    found: Any = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    events: list[dict[str, Any]] = found["traceEvents"] if data.lstrip()[:1] == b"{" else found
    return events


@pytest.mark.parametrize("name", ["t-{}.json", "t-{}.json.gz", "o-{}.json", "tb"])
def test_a_chrome_file_of_one_window_has_its_bounds(recorded: tuple[Path, list[Window]], name: str) -> None:
    """Nothing is earlier than the window's begin or later than its end; rows and names have no time at all."""
    directory, windows = recorded
    files = sorted((directory / "tb").iterdir()) if name == "tb" else [directory / name.format(n) for n in (0, 1)]
    assert len(files) == len(windows) == 2
    for path, window in zip(files, windows, strict=True):
        events = chrome(path)
        times = [(event["ts"], event["ts"] + event.get("dur", 0)) for event in events if "ts" in event]
        first, last = min(begin for begin, _ in times), max(end for _, end in times)
        assert abs((last - first) * 1000 - (window.end_ns - window.start_ns)) < 10
        assert {event["ph"] for event in events if "ts" not in event} == {"M"}


def test_a_file_of_the_run_begins_with_its_first_event(recorded: tuple[Path, list[Window]]) -> None:
    """Whatever went by before."""
    directory, windows = recorded
    times = [event["ts"] for event in chrome(directory / "t.json") if "ts" in event]
    assert abs((max(times) - min(times)) * 1000 - (windows[1].end_ns - windows[0].start_ns)) < 10
    stamps = [said.ts for said in pftrace.load(directory / "t.pftrace").sorted()]
    assert (min(stamps), max(stamps)) == (windows[0].start_ns, windows[1].end_ns)


def test_a_native_file_of_one_window_has_its_bounds(recorded: tuple[Path, list[Window]]) -> None:
    """Its clock snapshot included."""
    directory, windows = recorded
    for number, window in enumerate(windows):
        stamps = [said.ts for said in pftrace.load(directory / f"t-{number}.pftrace").sorted()]
        assert (min(stamps), max(stamps)) == (window.start_ns, window.end_ns)


def test_viewers_show_names_and_bounds(recorded: tuple[Path, list[Window]]) -> None:
    """Perfetto's own reader: bounds, the process's name, and one row for what is said of the run."""
    directory, windows = recorded
    for name in ("t-1.json", "t-1.pftrace"):
        problems, (bounds,), processes, notes = perfetto.query(
            directory / name,
            perfetto.PROBLEMS,
            "select end_ts - start_ts as length from trace_bounds",
            "select name from process where pid > 0",
            "select distinct coalesce(t.name, k.name) as row from slice s join track k on s.track_id = k.id "
            "left join thread_track tt on s.track_id = tt.id left join thread t using (utid) where s.category = 'stepscope'",
        )
        assert problems == []
        assert abs(bounds["length"] - (windows[1].end_ns - windows[1].start_ns)) < 10
        assert [row["name"] for row in processes] == [NAME]
        assert [row["row"] for row in notes] == [NOTES]
