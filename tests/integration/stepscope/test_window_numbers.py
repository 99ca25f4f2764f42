"""Numbers of windows and steps: each has one, from 0, wherever it is shown."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.cli.main import main
from tests.support.chrome_traces import events_of

FIRST = 1000
"""Step at which the training goes on."""
SCHEDULE = sc.schedule(skip_first=FIRST + 2, wait=1, warmup=1, active=25, repeat=2)
WINDOWS = {0: (1004, 1028), 1: (1031, 1055)}
"""First and last step of each window."""


def record(directory: Path) -> str:
    """Records a training that goes on; what the console shows of it."""
    shown = io.StringIO()
    exporters: list[sc.exporters.Exporter] = [
        sc.ChromeTraceExporter(directory / "window-{window}.json"),
        sc.exporters.ConsoleExporter(shown, interval=0.0),
    ]
    with sc.trace(schedule=SCHEDULE, exporters=exporters, output_dir=directory, start=False) as profiler:
        profiler.step_num = FIRST
        profiler.start()
        for _ in range(70):
            with sc.span("work"):
                pass
            profiler.step()
    return shown.getvalue()


def steps_of(path: Path) -> list[int]:
    """Numbers of the steps in a Chrome trace."""
    names = [event["name"] for event in events_of(path) if event["ph"] == "X"]
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#"))


def as_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The JSON that a command prints."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_training_that_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plan, console, file names, traces, `windows`, `convert`, `explain` and `merge` have the same numbers."""
    run = tmp_path / "run"
    console = record(run)
    plan = str(SCHEDULE.plan(70, first=FIRST))
    listed = {line["window"]: (line["first_step"], line["last_step"]) for line in as_json(capsys, "windows", run)}
    assert listed == WINDOWS
    assert main(["windows", str(run)]) == 0
    table = capsys.readouterr().out
    for window, (first, last) in WINDOWS.items():
        steps = list(range(first, last + 1))
        assert re.search(rf"steps {first}-{last} +record, window {window}$", plan, re.MULTILINE)
        assert re.search(rf"^ +{window} .* {first} to {last} ", table, re.MULTILINE)
        assert f"window {window} ended: 25 steps" in console
        assert steps_of(run / f"window-{window}.json") == steps
        assert main(["convert", str(run), str(tmp_path / "one.json"), "--window", str(window)]) == 0
        assert steps_of(tmp_path / "one.json") == steps
        (rank,) = as_json(capsys, "explain", run, "--window", window)["ranks"]
        assert first <= rank["statistics"]["slowest"] <= last
        merged = as_json(capsys, "merge", run, "-o", tmp_path / "merged.json", "--window", window)
        assert merged["windows"] == [window] and steps_of(tmp_path / "merged.json") == steps
    shown = {int(number) for number in re.findall(r": step (\d+)", console)}
    assert shown <= {step for first, last in WINDOWS.values() for step in range(first, last + 1)}


def test_windows_that_a_flight_recorder_saved(tmp_path: Path) -> None:
    """The number in a file's name is the one that `convert --window` takes with the run's directory."""
    run = tmp_path / "run"
    flight = sc.FlightRecorder(steps=3, triggers=(), cooldown=0.01, keep_newest=2, keep_slowest=0)
    with sc.trace(keep_last=flight, output_dir=run) as profiler:
        for number in range(3):
            for _ in range(4):
                profiler.step()
            profiler.save(f"reason {number}")
            profiler.flush()
    names = [path.name for path in profiler.saved()]
    assert [name.partition("-")[0] for name in names] == ["000001", "000002"]
    for name in names:
        saved = int(re.findall(r"-step(\d+)-", name)[0])
        assert main(["convert", str(run), str(tmp_path / "out.json"), "--window", name[:6].lstrip("0")]) == 0
        assert saved in steps_of(tmp_path / "out.json")
    assert main(["convert", str(run), str(tmp_path / "none.json"), "--window", "7"]) == 1
