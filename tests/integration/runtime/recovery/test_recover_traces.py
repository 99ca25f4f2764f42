"""`stepscope recover` writes the traces of killed runs anew from the journal, wherever they are, and touches nothing else."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepscope as sc
from stepscope.cli.main import main
from stepscope.runtime.session.note import notes_in, replace_note
from tests.support import pftrace
from tests.support.killed_programs import Crash
from tests.support.launch import run_to_end
from tests.support.messages import check_messages

KILLED = """
import os, signal, sys, time
import stepscope as sc
os.chdir(sys.argv[1])
exporters = [sc.ChromeTraceExporter("trace.json"), sc.ChromeTraceExporter("trace.json.gz"),
             sc.ChromeTraceExporter("hta/whole.json", form="object"), sc.ChromeTraceExporter("closed.json", closed=True),
             sc.ChromeTraceExporter("notes/rank{rank}-{window}.txt"), sc.tensorboard_trace_handler("tb"),
             sc.PerfettoExporter("run/trace.pftrace"), sc.PerfettoExporter("trace.pftrace.gz"),
             sc.ChromeTraceExporter("small/t.json", max_bytes=1 << 16),
             sc.exporters.JournalExporter("own/events.journal")][: int(sys.argv[2])]
options = sc.Options(session_dir="session", journal=False)
with sc.trace(output_dir="run", exporters=exporters, options=options) as profiler:
    for step in range(20):
        with sc.span("enclosing"):
            for _ in range(100):
                with sc.span("work", step=step):
                    pass
        profiler.step()
        profiler.flush()
    while not os.path.exists("notes/rank0-0.txt"):
        time.sleep(0.01)
    with sc.span("last"):
        pass
    with sc.span("open"):
        os.kill(os.getpid(), signal.SIGKILL)
"""

WRITTEN = {"work": 2000, "enclosing": 20, "last": 1, "open": 1}


def kill(place: Path, exporters: int = 100) -> Path:
    """A run whose traces are not in its directory, and which is killed; so many of its exporters are used."""
    (place / "session").mkdir()
    run_to_end([sys.executable, "-c", KILLED, str(place), str(exporters)])
    return place


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where such a run was killed."""
    return kill(tmp_path_factory.mktemp("killed"))


@pytest.fixture
def killed(ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; the current directory is another."""
    Crash.copy(ended, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def names(path: Path) -> Counter[str]:
    """How often the names of WRITTEN are in Chrome JSON, which must be whole."""
    data = gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes()
    made: Any = json.loads(data)
    events: list[dict[str, Any]] = made if data.startswith(b"[") else made["traceEvents"]
    return Counter(event["name"] for event in events if event["name"] in WRITTEN)


def all_below(place: Path) -> dict[str, bytes]:
    """Every file and what is in it, but for the sessions."""
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_relative_to(place / "session")]
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


def test_traces_in_other_places(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is complete afterwards, under its name, with what was in memory when the process was killed; so is one of the journal. A
    second recovery writes the same."""
    ((_, note),) = notes_in(killed / "run", [])
    assert {str(killed / name) for name in ("trace.json", "hta/whole.json.part", "own/events.journal")} <= {
        *note.outputs
    }
    assert main(["recover", str(killed / "run")]) == 0
    output = capsys.readouterr().out
    assert f"from {killed / 'own' / 'events.journal'}" in output and "left as it is" not in output
    (board,) = (killed / "tb").glob("*.json")
    for path in ("trace.json", "trace.json.gz", "hta/whole.json", "closed.json", "notes/rank0-0.txt", board):
        assert names(killed / path) == WRITTEN, path
    assert main(["convert", str(killed / "own" / "events.journal"), str(killed / "all.pftrace")]) == 0
    for name in ("run/trace.pftrace", "trace.pftrace.gz", "all.pftrace"):
        slices = Counter(made.name for made in pftrace.Trace((killed / name).read_bytes()).slices())
        assert {made: slices[made] for made in WRITTEN} == WRITTEN
    series = sorted((killed / "small").iterdir())
    assert len(series) > 3 and sum((names(path) for path in series), Counter[str]()) == WRITTEN
    assert not [*killed.rglob("*.part"), *killed.rglob(".*")]
    files = all_below(killed).keys()
    assert main(["recover", os.path.relpath(killed / "run"), "--remove-session"]) == 0
    assert all_below(killed).keys() == files - {"run/session"} and names(killed / "trace.json") == WRITTEN


def test_files_of_the_user_are_left_alone(killed: Path) -> None:
    """Only files that the note names are replaced: others stay, whatever is in them and wherever they are."""
    mine = {
        "labels.json": "[]".encode("utf-16"),
        "data/settings.json": '{"a": 1}'.encode("utf-16"),
        "data/blob.json": os.urandom(10_240),
        "data/empty.json": b"",
        "data/cut.json": b'[\n{"ph": "M", "name": "process_name", "pid": 1',
        "data/x.json.part": b"{",
        "data/x.pftrace": b"\n\x05",
        "trace.1.json": b"mine",
    }
    for name, data in mine.items():
        (killed / "run" / name).parent.mkdir(exist_ok=True)
        (killed / "run" / name).write_bytes(data)
        (killed / name).parent.mkdir(exist_ok=True)
        (killed / name).write_bytes(data)
    assert main(["recover", str(killed / "run")]) == 0
    for name, data in mine.items():
        assert (killed / "run" / name).read_bytes() == data == (killed / name).read_bytes()


def test_a_moved_run(killed: Path, tmp_path: Path) -> None:
    """Traces in the run's directory are found there, wherever it is now."""
    (killed / "run").rename(tmp_path / "moved")
    (killed / "own" / "events.journal").rename(tmp_path / "moved" / "journal")
    main(["recover", str(tmp_path / "moved")])
    slices = Counter(made.name for made in pftrace.Trace((tmp_path / "moved" / "trace.pftrace").read_bytes()).slices())
    assert {made: slices[made] for made in WRITTEN} == WRITTEN


def test_without_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The session has fewer events than were written: the traces stay as they are, and recovery reports it."""
    kill(tmp_path, 9)
    before = all_below(tmp_path)
    assert main(["recover", str(tmp_path / "run")]) == 3
    output = capsys.readouterr()
    assert output.out.count("the run kept no journal") == 9 and "not all could be brought back" in output.err
    after = all_below(tmp_path)
    assert {name for name in before if after[name] != before[name]} == {"run/session"}
    cut = json.loads((tmp_path / "trace.json").read_bytes().rstrip(b",\n") + b"]")
    assert sum(event["name"] == "work" for event in cut) == 2000


def test_a_journal_that_has_less(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the session, a journal that was cut holds less than the traces: these stay."""
    journal = killed / "own" / "events.journal"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
    ((path, note),) = notes_in(killed / "run", [])
    replace_note(path, msgspec.structs.replace(note, directory=str(killed / "gone")))
    before = all_below(killed)
    assert main(["recover", str(killed / "run")]) == 3
    output = capsys.readouterr().out
    assert output.count("has events that the journal lacks") == 9
    after = all_below(killed)
    assert {name for name in before if after[name] != before[name]} == {"run/session", "own/events.journal"}


def test_a_later_run_has_written_the_files(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The killed run's files do not replace those that a later run has written under these names."""
    exporters = [sc.ChromeTraceExporter(killed / "trace.json"), sc.PerfettoExporter(killed / "trace.pftrace.gz")]
    with sc.trace(output_dir=killed / "later", exporters=exporters), sc.span("later"):
        pass
    later = (killed / "trace.json").read_bytes(), (killed / "trace.pftrace.gz").read_bytes()
    (killed / "hta" / "whole.json.part").unlink()
    assert main(["recover", str(killed / "run")]) == 3
    output = capsys.readouterr().out
    assert output.count("is not the file that this run wrote") == 2 and output.count("is not there any more") == 1
    assert later == ((killed / "trace.json").read_bytes(), (killed / "trace.pftrace.gz").read_bytes())
    assert not (killed / "hta" / "whole.json").exists() and names(killed / "closed.json") == WRITTEN


def test_a_trace_that_is_named_alone_is_not_changed(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is named alone is not touched; a message says what to do."""
    before = (killed / "trace.json").read_bytes()
    assert main(["recover", str(killed / "run" / "trace.pftrace")]) == 1
    errors = capsys.readouterr().err
    assert "Perfetto opens it as it is" in errors and "stepscope recover ../run" in errors
    assert main(["recover", str(killed / "trace.json")]) == 1
    check_messages(capsys.readouterr().err, "stepscope recover RUN")
    (killed / "random.json").write_bytes(os.urandom(1 << 20))
    assert main(["recover", str(killed / "random.json")]) == 1
    assert (killed / "random.json").stat().st_size == 1 << 20 and (killed / "trace.json").read_bytes() == before


def test_files_that_the_note_may_not_name(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links, pipes and files of others are not replaced, and the exit code says that something is cut still."""
    torn = (killed / "trace.json").read_bytes()
    precious = killed / "precious.json"
    (killed / "trace.json").rename(precious)
    (killed / "trace.json").symlink_to(precious)
    (killed / "hta" / "whole.json.part").unlink()
    os.mkfifo(killed / "hta" / "whole.json.part")
    if os.geteuid() == 0:
        os.chown(killed / "notes" / "rank0-0.txt", 65534, 65534)
    assert main(["recover", str(killed / "run")]) == 3
    output = capsys.readouterr()
    assert output.out.count("is no regular file of this user's") == (3 if os.geteuid() == 0 else 2)
    assert "not all could be brought back" in output.err
    assert precious.read_bytes() == torn


@pytest.mark.parametrize("content", [b"a thesis", b"PAR1 of another run PAR1"])
def test_a_file_that_is_no_parquet_trace_of_the_run(
    killed: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """A note can call any file a Parquet trace; one that is none stays."""
    ((path, note),) = notes_in(killed / "run", [])
    thesis = killed / "thesis.txt"
    thesis.write_bytes(content)
    trace = msgspec.structs.replace(note.traces[0], first=str(thesis), file=str(thesis), format="parquet", arguments={})
    replace_note(path, msgspec.structs.replace(note, traces=(trace,)))
    assert main(["recover", str(killed / "run")]) == 3
    assert "is not the file that this run wrote" in capsys.readouterr().out
    assert thesis.read_bytes() == content


def test_a_note_with_unknown_arguments_of_exporters_is_reported(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is reported, and the file stays."""
    ((path, note),) = notes_in(killed / "run", [])
    strange = [msgspec.structs.replace(trace, arguments={"form": "list"}) for trace in note.traces]
    replace_note(
        path, msgspec.structs.replace(note, traces=(*strange[:2], msgspec.structs.replace(strange[2], format="x")))
    )
    before = all_below(killed)
    assert main(["recover", str(killed / "run")]) == 3
    assert capsys.readouterr().out.count("cannot be written anew") == 3
    after = all_below(killed)
    assert {name for name in before if after[name] != before[name]} == {"run/session", "own/events.journal"}


def test_a_place_that_cannot_be_written(killed: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a full disk the cut file stays, and no other file is left."""
    ((path, note),) = notes_in(killed / "run", [])
    cut = small_disk / "trace.json"
    cut.write_bytes((killed / "trace.json").read_bytes())
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize - 8192))
    trace = msgspec.structs.replace(note.traces[0], first=str(cut), file=str(cut))
    replace_note(path, msgspec.structs.replace(note, traces=(trace,)))
    before = cut.read_bytes()
    assert main(["recover", str(killed / "run")]) == 3
    assert "No space left" in capsys.readouterr().out
    assert cut.read_bytes() == before and {found.name for found in small_disk.iterdir()} == {"trace.json", "filler"}


def test_the_hint_says_how_to_see_it(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the trace that was just written; where there is none, the journal."""
    main(["recover", str(killed / "run")])
    *output, hint = capsys.readouterr().out.splitlines()
    first = next(line.removeprefix("written anew: ") for line in output if line.startswith("written anew: "))
    assert hint.startswith("see it: ") and hint.endswith(f" view {first}, or drag it into https://ui.perfetto.dev")
    ((_, note),) = notes_in(killed / "run", [])
    for trace in note.traces:
        (killed / "run" / trace.first).unlink()
    main(["recover", str(killed / "run")])
    *_, hint = capsys.readouterr().out.splitlines()
    assert hint.startswith("see it: ") and Path(hint.partition(" view ")[2]).is_file()


def test_a_run_that_goes_on_in_the_same_directory(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of the living run are left alone, while the one that was killed there is recovered."""
    run = killed / "run"
    exporters = [sc.ChromeTraceExporter(run / "living.json"), sc.ChromeTraceExporter(killed / "trace.json")]
    with sc.trace(output_dir=run, exporters=exporters) as profiler:
        with sc.span("alive"):
            pass
        profiler.flush()
        inode = (run / "living.json").stat().st_ino
        assert main(["recover", str(run)]) == 0
        output = capsys.readouterr().out
        assert "goes on writing" in output and "trace.json is still being written" in output
        assert (run / "living.json").stat().st_ino == inode
        assert main(["recover", str(run / "living.json")]) == 1
        assert len(notes_in(run, [])) == 2
    assert "alive" in (run / "living.json").read_text()
    profiler.raise_errors()


def test_a_flight_recorder_keeps_its_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recovered journal has its last steps, and not what was saved before: the trace of that stays as it is."""
    program = """
import os, signal, sys
import stepscope as sc
with sc.trace(output_dir=sys.argv[1], keep_last=5, exporters=[sc.ChromeTraceExporter(sys.argv[1] + "/t.json")],
              options=sc.Options(session_dir=sys.argv[2])) as profiler:
    for step in range(30):
        with sc.span("saved" if step < 10 else "later"):
            pass
        profiler.step()
        if step == 8:
            profiler.save("now")
            profiler.flush()
    profiler.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "session").mkdir()
    run_to_end([sys.executable, "-c", program, str(tmp_path / "run"), str(tmp_path / "session")])
    before = (tmp_path / "run" / "t.json").read_bytes()
    assert b'"saved"' in before
    assert main(["recover", str(tmp_path / "run")]) == 3
    assert "flight recorder" in capsys.readouterr().out
    assert (tmp_path / "run" / "t.json").read_bytes() == before


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
        assert {trace.file for trace in note.traces} == {Path(name).name for name in note.outputs} - {"journal"}
    assert notes_in(tmp_path, []) == []
