"""`stepscope recover` completes the traces of killed runs wherever they are, and leaves alone what is not the user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.cli.main import main
from stepscope.runtime.session_note import notes_in

KILLED = """
import os, signal, sys, time
import stepscope as sc
os.chdir(sys.argv[1])
exporters = [sc.ChromeTraceExporter("trace.json"), sc.ChromeTraceExporter("hta/whole.json", form="object"),
             sc.ChromeTraceExporter("notes/rank{rank}-{window}.txt"), sc.tensorboard_trace_handler("tb"),
             sc.JournalExporter("own/events.journal")]
options = sc.Options(session_dir="session", journal=False)
with sc.trace(output_dir="run", exporters=exporters, options=options) as profiler:
    with sc.span("work"):
        pass
    profiler.step()
    profiler.flush()
    while not os.path.exists("notes/rank0-0.txt"):
        time.sleep(0.01)
    profiler.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a run was killed whose traces are not in its directory; the current one is another."""
    (tmp_path / "session").mkdir()
    (tmp_path / "elsewhere").mkdir()
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def outputs(place: Path) -> list[Path]:
    """What the note says."""
    ((_, note),) = notes_in(place / "run", [])
    return [Path(output) for output in note.outputs]


def test_traces_in_other_places(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is complete afterwards, under its name; the journal that the run kept elsewhere is used."""
    noted = {str(path.relative_to(killed)) for path in outputs(killed)}
    assert {"trace.json", "hta/whole.json.part", "notes/rank0-0.txt", "own/events.journal"} <= noted
    assert main(["recover", str(killed / "run")]) == 0
    said = capsys.readouterr().out
    assert said.count("completed ") == 4
    assert f"from {killed / 'own' / 'events.journal'}" in said
    for name in ("trace.json", "hta/whole.json", "notes/rank0-0.txt"):
        assert "work" in json.dumps(json.loads((killed / name).read_text()))
    (board,) = (killed / "tb").glob("*.json")
    json.loads(board.read_text())


def test_one_trace(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be named alone; where its run left more, that is said."""
    (killed / "trace.json").rename(killed / "run" / "moved.json")
    (killed / "run" / "moved.json").rename(killed / "trace.json")
    assert main(["recover", str(killed / "trace.json")]) == 0
    assert "completed" in capsys.readouterr().out
    json.loads((killed / "trace.json").read_text())
    assert main(["recover", str(killed / "trace.json")]) == 0
    assert "is complete" in capsys.readouterr().out
    (killed / "torn").write_bytes((killed / "hta" / "whole.json.part").read_bytes())
    assert main(["recover", str(killed / "torn")]) == 0
    json.loads((killed / "torn").read_text())
    (killed / "foreign.json").write_text('{"name": 1}')
    assert main(["recover", str(killed / "foreign.json")]) == 1


def test_files_that_the_note_may_not_name(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links, pipes and files of others are not repaired, and the exit code says that something is torn still."""
    torn = (killed / "trace.json").read_bytes()
    precious = killed / "precious.json"
    (killed / "trace.json").rename(precious)
    (killed / "trace.json").symlink_to(precious)
    (killed / "hta" / "whole.json.part").unlink()
    os.mkfifo(killed / "hta" / "whole.json.part")
    if os.geteuid() == 0:
        os.chown(killed / "notes" / "rank0-0.txt", 65534, 65534)
    assert main(["recover", str(killed / "run")]) == 3
    said = capsys.readouterr()
    assert said.out.count("is no regular file of this user's") == (3 if os.geteuid() == 0 else 2)
    assert "not all could be brought back" in said.err
    assert precious.read_bytes() == torn


def test_the_hint_names_no_file_that_is_there(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it would write is not what somebody has."""
    Path("trace.json").write_text("mine")
    main(["recover", str(killed / "run")])
    hint = capsys.readouterr().out.splitlines()[-1]
    assert hint.startswith("see it: ") and " recovered.json, then open" in hint


def test_a_run_that_goes_on_in_the_same_directory(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it writes is left alone, while the one that was killed there is recovered."""
    run = killed / "run"
    exporters = [sc.ChromeTraceExporter(run / "living.json"), sc.ChromeTraceExporter(killed / "far.json")]
    with sc.trace(output_dir=run, exporters=exporters) as profiler:
        with sc.span("alive"):
            pass
        profiler.flush()
        inode = (run / "living.json").stat().st_ino
        assert main(["recover", str(run)]) == 0
        said = capsys.readouterr().out
        assert "goes on writing" in said and f"{run / 'living.json'} is still being written" in said
        assert (run / "living.json").stat().st_ino == inode
        assert main(["recover", str(run / "living.json")]) == main(["recover", str(killed / "far.json")]) == 1
        assert capsys.readouterr().err.count("still writes") == 2
        assert len(notes_in(run, [])) == 2
    assert "alive" in (run / "living.json").read_text() and (run / "journal.recovered").exists()
    profiler.raise_errors()


def test_a_run_that_ends_leaves_no_note(tmp_path: Path) -> None:
    """While it goes on the note has the files that are not complete, and no others."""
    schedule = sc.schedule(wait=0, warmup=0, active=1, repeat=0)
    trace = tmp_path / "w{window}.json"
    with sc.trace(output_dir=tmp_path, schedule=schedule, exporters=[sc.ChromeTraceExporter(trace)]) as profiler:
        for _ in range(20):
            with sc.span("x"):
                pass
            profiler.step()
        profiler.flush()
        assert {path.name for path in tmp_path.glob("w*.json")} >= {"w0.json", "w18.json"}
        ((_, note),) = notes_in(tmp_path, [])
        assert len(note.outputs) <= 2 and str(tmp_path / "journal") in note.outputs
    assert notes_in(tmp_path, []) == []
