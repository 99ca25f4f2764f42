"""Which run of a directory, and which of its windows, is read."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.page.render import report_html
from stepscope.analysis.reading.recording import load
from stepscope.cli.main import main
from stepscope.runtime.errors import INCOMPLETE, FormatError, NoWindowError
from stepscope.runtime.windows.window import which_windows
from tests.integration.collector.test_merge import rank_run
from tests.support.commands import stepscope
from tests.support.messages import check_messages
from tests.support.ranks.streams import write_stream
from tests.support.viewers.scene import Scene, make_window, training


def record(place: Path, name: str, steps: int = 25) -> Path:
    """A run whose steps have one span."""
    with sc.trace(output_dir=place) as profiler:
        for _ in range(steps):
            with sc.span(name):
                time.sleep(0.001)
            profiler.step()
    return place


def ranks(place: Path, monkeypatch: pytest.MonkeyPatch, steps: int = 25) -> Path:
    """Two ranks of one job, in the directory that they share."""
    for rank in "01":
        with monkeypatch.context() as context:
            context.setenv("RANK", rank)
            context.setenv("WORLD_SIZE", "2")
            record(place, f"rank {rank}", steps)
    return place


def test_of_unrelated_runs_the_newest_is_read(tmp_path: Path) -> None:
    """The others are not mixed into it; each can be named."""
    record(tmp_path / "runs" / "b", "first", 30)
    record(tmp_path / "runs" / "a", "second")
    recording = sc.load(tmp_path / "runs")
    assert recording.path == tmp_path / "runs" / "a" and [len(rank.steps) for rank in recording.ranks] == [25]
    assert recording.notes == [
        f"{tmp_path / 'runs'} has 2 runs, of which this is the newest: name another one to read it"
    ]
    assert [len(rank.steps) for rank in sc.load(tmp_path / "runs" / "b").ranks] == [30]
    done = stepscope("explain", "runs", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == "reading the newest run in runs: runs/a\n"
    assert done.stdout.startswith("runs/a   25 steps")


def test_a_damaged_run_that_may_be_the_newest_is_named(tmp_path: Path) -> None:
    """One that was written before the newest began is none that anybody looks for."""
    older, newer = (tmp_path / "runs" / name / "journal" for name in ("older", "newer"))
    for place in (older, *(tmp_path / "runs" / name / "journal" for name in "ab"), newer):
        if place in (older, newer):
            place.parent.mkdir(parents=True)
            place.write_bytes(b"no journal")
        else:
            record(place.parent, "span")
    recording = sc.load(tmp_path / "runs")
    assert recording.path == tmp_path / "runs" / "b" and [len(rank.steps) for rank in recording.ranks] == [25]
    (text,) = recording.unreadable
    assert str(newer) in text and text in recording.notes
    done = stepscope("explain", "runs", cwd=tmp_path)
    assert done.returncode == INCOMPLETE
    check_messages(done.stderr, "not read", "newer/journal")


def test_ranks_of_one_job_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other runs as well, of which one has the same ranks."""
    ranks(tmp_path / "runs" / "first", monkeypatch, 30)
    record(tmp_path / "runs" / "alone", "one")
    place = ranks(tmp_path / "runs" / "second", monkeypatch)
    for asked in (place, tmp_path / "runs"):
        recording = sc.load(asked)
        assert recording.path == place and [rank.rank for rank in recording.ranks] == [0, 1]
        assert [len(rank.steps) for rank in recording.ranks] == [25, 25]
    assert not sc.load(place).notes and "3 runs" in sc.load(tmp_path / "runs").notes[0]


def test_a_rank_that_the_newest_run_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of an earlier run in the same directory, and not mixed into the newest, whatever the first runs of ranks were."""
    for rank in "02":
        with monkeypatch.context() as context:
            context.setenv("RANK", rank)
            context.setenv("WORLD_SIZE", "3")
            record(tmp_path, f"rank {rank}", 30)
    recording = sc.load(ranks(tmp_path, monkeypatch))
    assert [(rank.rank, len(rank.steps)) for rank in recording.ranks] == [(0, 25), (1, 25)]
    assert [note.split()[0] for note in recording.notes] == [str(tmp_path / f"rank{rank}/journal") for rank in (2, 0)]


def test_without_a_path(tmp_path: Path) -> None:
    """It is the newest run of the working directory; where there is none, that is reported."""
    done = stepscope("explain", cwd=tmp_path)
    assert done.returncode == 2 and "there is no ./stepscope_runs" in done.stderr
    record(tmp_path / "stepscope_runs" / "one", "work", 30)
    record(tmp_path / "stepscope_runs" / "two", "work")
    done = stepscope("explain", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "reading the newest run in stepscope_runs: stepscope_runs/two\n"
    assert done.stdout.startswith("stepscope_runs/two   25 steps")


def run_of_spans(place: Path) -> Path:
    """Three windows of 25 steps, each with spans of a name of its own."""
    with sc.trace(schedule=sc.schedule(wait=5, warmup=0, active=25, repeat=3), output_dir=place) as profiler:
        for step in range(90):
            with sc.span(f"part {step // 30}"):
                pass
            profiler.step()
    return place


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three windows."""
    return run_of_spans(tmp_path / "run")


OPEN = """
import os, signal, sys
import stepscope as sc
with sc.trace(schedule=sc.schedule(wait=0, warmup=0, active=1000), output_dir="open") as profiler:
    for step in range(2_500):
        with sc.span("work"):
            pass
        profiler.step()
    profiler.flush()
    print("recorded", flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_window_without_an_end(tmp_path: Path) -> None:
    """The list says whether it is still being recorded. Nothing is cut, however narrow the terminal is."""
    with Popen([sys.executable, "-c", OPEN], stdin=PIPE, stdout=PIPE, text=True, cwd=tmp_path) as program:
        assert program.stdout is not None and program.stdout.readline() == "recorded\n"
        rows = stepscope("windows", "open", cwd=tmp_path, env={"COLUMNS": "40"}).stdout.splitlines()
        program.communicate("")
    assert "1000 to 1999" in rows[3] and rows[4].endswith("still open"), rows
    assert all(row == row.rstrip() for row in rows)
    killed = json.loads(stepscope("windows", "open", "--json", cwd=tmp_path).stdout)
    assert [each["state"] for each in killed] == ["", "", "no end"]


def test_one_window_is_judged(run: Path) -> None:
    """Nothing of another one is in the answer, the page or the arrays."""
    recording = load(run)
    recording.select(1)
    (rank,) = recording.ranks
    assert list(rank.windows) == [1] and rank.steps["step"].tolist() == list(range(35, 60))
    names = set(rank.names(rank.events()["name"]))
    assert "part 1" in names and not {"part 0", "part 2"} & names
    statistics = explain(run, 2).ranks[0].statistics
    assert statistics is not None and statistics.steps == 25
    assert stepscope("explain", run, "--window", "0", cwd=run).stdout != stepscope("explain", run, cwd=run).stdout
    assert "part 0" not in report_html(run, 1)


def test_a_window_that_is_not_there(run: Path) -> None:
    """The error says which there are."""
    with pytest.raises(NoWindowError, match="has no window 7; it has 3 windows, from 0 to 2"):
        explain(run, 7)
    for command in (("explain", run), ("report", run, "-o", run / "page.html"), ("convert", run, "x.json")):
        done = stepscope(*command, "--window", "7", cwd=run)
        assert done.returncode == 4 and "from 0 to 2" in done.stderr
    assert "Step 0" not in stepscope("windows", run, cwd=run).stdout, "only a run that an optimizer steps has a startup"
    assert which_windows([0, 1]) == "it has windows 0 and 1" and which_windows([4]) == "it has only window 4"


def test_a_trace_is_refused_with_the_directory_of_its_run(run: Path, tmp_path: Path) -> None:
    """One that stepscope wrote is not read: its run is, and the error says from where; nor does `convert` take a trace."""
    assert stepscope("convert", run, run / "trace.json", cwd=run).returncode == 0
    done = stepscope("explain", run / "trace.json", cwd=run)
    assert done.returncode == 1 and f"name the directory of its run: {run}" in done.stderr
    done = stepscope("convert", "trace.json", "other.json", cwd=run)
    assert done.returncode == 1 and "is a trace, and not a journal" in done.stderr
    (run / "trace.json").rename(tmp_path / "trace.json")
    done = stepscope("explain", tmp_path / "trace.json", cwd=tmp_path)
    assert done.returncode == 1 and "if stepscope wrote it, name the directory of its run" in done.stderr


def test_the_windows_that_a_flight_recorder_saved_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a file of its own, with an index."""
    recorder = sc.FlightRecorder(steps=3, cooldown=0.0, triggers=())
    with sc.trace(output_dir=tmp_path, keep_last=recorder) as profiler:
        for number in range(12):
            with sc.span("work"):
                pass
            profiler.step()
            if number % 4 == 3:
                profiler.save("now")
                profiler.flush()
    assert main(["windows", str(tmp_path), "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)
    assert [line["window"] for line in lines] == [0, 1, 2]
    assert all(line["events"] > 3 for line in lines)


def test_of_a_collectors_directory_one_job_and_the_newest_starts_are_read(tmp_path: Path) -> None:
    """A rank that was started again is one rank. Which job is read is reported, and another one can be named."""
    for job, starts in (("old", [0]), ("restarted", [0, 5])):
        for pid, window in enumerate(starts):
            described = rank_run(tmp_path, 0, job=job, id=f"{job} {pid}", pid=pid)
            scene = Scene(described)
            training(scene)
            write_stream(tmp_path, described, [scene.batch(window)], [make_window(window)])
    write_stream(tmp_path, rank_run(tmp_path, 0, job="restarted", id="restarted 9", pid=9), [], [make_window(9, ())])
    recording = sc.load(tmp_path)
    assert [list(rank.windows) for rank in recording.ranks] == [[5]]
    assert any("2 jobs, of which 'restarted' is the newest" in note for note in recording.notes)
    assert "ranks were started again: of each rank the newest run that recorded something is read" in recording.notes
    assert [list(rank.windows) for rank in load(tmp_path, job="old").ranks] == [[0]]
    with pytest.raises(FormatError, match="'old', 'restarted'"):
        load(tmp_path, job="other")


def test_ranks_that_a_smaller_start_does_not_have_are_not_read(tmp_path: Path) -> None:
    """As of an elastic job that has lost a host: nobody waited for them."""
    for size, window in ((3, 0), (2, 5)):
        for rank in range(size):
            described = rank_run(tmp_path, rank, id=f"{rank} {window}", pid=window + rank, world_size=size)
            scene = Scene(described)
            training(scene)
            write_stream(tmp_path, described, [scene.batch(window)], [make_window(window)])
    assert [(rank.rank, list(rank.windows)) for rank in sc.load(tmp_path).ranks] == [(0, [5]), (1, [5])]


def test_a_merge_of_ranks_is_not_judged(tmp_path: Path) -> None:
    """Its steps are those of all ranks in one process; the answer says what to name instead."""
    for rank in (0, 1):
        described = rank_run(tmp_path, rank)
        scene = Scene(described)
        training(scene, steps=tuple(range(40)))
        write_stream(tmp_path, described, [scene.batch()], [make_window(steps=tuple(range(40)))])
    assert main(["merge", str(tmp_path), "--out", str(tmp_path / "x.journal")]) == 0
    assert "name the directory that was merged" in explain(tmp_path / "x.journal").refused


def test_a_run_whose_metadata_speaks_of_a_merge_is_judged(tmp_path: Path) -> None:
    """Its keys are the program's own."""
    with sc.trace(output_dir=tmp_path / "run", metadata={"merged": "adapters"}) as profiler:
        for _ in range(25):
            profiler.step()
    assert explain(tmp_path / "run").refused == ""
