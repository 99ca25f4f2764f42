"""Which journal is a killed run's: its own and no other, whatever else wrote to its directory."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import msgspec
import pytest

from stepscope.cli.main import main
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.lifecycle.output_directory import Output
from stepscope.runtime.recovery.flight_files import name_unfinished_windows
from stepscope.runtime.recovery.journals import being_written, choose
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.recovery.sweep import KilledSession
from stepscope.runtime.session.launch import own_directory
from stepscope.runtime.session.note import SESSION_FILE, SessionNote, new_note, notes_in, read_note, replace_note
from stepscope.runtime.session.system import process_identity
from tests.support.basics import ROOT
from tests.support.killed_programs import Crash, names
from tests.support.launch import run_to_end
from tests.support.messages import check_messages

DEAD = SessionNote(directory="/nowhere", pid=7, start_time=1)
"""A note of a process that has ended."""
TWO = """
profiler.start()
for number in range(100):
    with sc.span("early"):
        pass
profiler.step()
assert profiler.flush(50)
other = sc.trace(output_dir=sys.argv[1], name="other")
other.start()
with sc.span("both"):
    pass
other.step()
other.close()
for number in range(50):
    with sc.span("late"):
        pass
die()
"""
FLIGHT = """
import os, signal, sys
import stepscope as sc
flight = sc.trace(output_dir=sys.argv[1], keep_last=50, options=sc.Options(session_dir=sys.argv[2]))
flight.start()
for number in range(30):
    with sc.span("kept"):
        pass
    flight.step()
other = sc.trace(output_dir=sys.argv[1], name="other")
other.start()
with sc.span("both"):
    pass
other.step()
other.close()
os.kill(os.getpid(), signal.SIGKILL)
"""
EXEC = """
import os, sys
import stepscope as sc
generation = int(sys.argv[3])
profiler = sc.trace(output_dir=sys.argv[1], options=sc.Options(session_dir=sys.argv[2]))
profiler.start()
for number in range(100):
    with sc.span(f"generation {generation}"):
        pass
if generation < 2:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[4], *sys.argv[1:3], str(generation + 1), sys.argv[4]])
profiler.close()
"""


def ended(path: Path, *, pid: int, id: str, name: str = "another") -> Path:
    """A journal of a run that ended in order, with one span."""
    writer = JournalWriter(path)
    writer.open(msgspec.structs.replace(run_in(path.parent, name), pid=pid, id=id))
    writer.write_batch(batch_of(spans([name])))
    writer.close()
    return writer.path


def test_two_profilers_of_one_process(crash: Crash, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal of the one that had closed is newer, and does not pass for that of the one that was killed: neither by
    `stepscope convert DIR` nor by recovery."""
    crash.execute(TWO)
    assert main(["convert", str(crash.run), str(crash.run / "trace.json")]) == 0
    check_messages(capsys.readouterr().err, "run/journal", "journal-2")
    recovery = crash.recover()
    assert recovery.source == crash.run / "journal" and recovery.events
    found = names(recovery.journal)
    assert (found["early"], found["both"], found["late"]) == (100, 1, 50)
    assert any("not used" in note and "journal-2" in note for note in recovery.notes)


def test_a_flight_recorder_and_a_profiler(tmp_path: Path) -> None:
    """It has no journal: the other's does not pass for it, and its stored steps come back whole."""
    (tmp_path / "session").mkdir()
    command = [sys.executable, "-c", FLIGHT, str(tmp_path / "run"), str(tmp_path / "session")]
    result = run_to_end(command, timeout=60, cwd=ROOT)
    assert result.returncode == -signal.SIGKILL, result.stderr
    recovery = recover(tmp_path / "run")
    assert recovery.source is None
    found = names(recovery.journal)
    assert (found["kept"], found["both"]) == (30, 1)
    assert any("not used" in note and note.endswith("journal") for note in recovery.notes)


def test_a_container_that_starts_again(crash: Crash) -> None:
    """Its processes have the same numbers: a later run that ended in order is not the one that was killed."""
    crash.execute(
        'profiler.start()\nfor _ in range(100):\n    with sc.span("x"): pass\nassert profiler.flush(50)\ndie()'
    )
    note = read_note(crash.run / SESSION_FILE, [])
    assert note is not None and note.run
    later = ended(crash.run / "journal", pid=note.pid, id="0" * 32)
    assert later.name == "journal-2"
    recovery = crash.recover()
    assert recovery.source == crash.run / "journal"
    assert names(recovery.journal)["x"] == 100 and not names(recovery.journal)["another"]
    with JournalReader(recovery.journal) as reader:
        assert reader.run is not None and reader.run.id == note.run


def test_programs_that_became_another_by_exec(tmp_path: Path) -> None:
    """Process, start time and directory are the same; each of those that exec() ended is brought back by itself."""
    (tmp_path / "session").mkdir()
    run = tmp_path / "run"
    command = [sys.executable, "-c", EXEC, str(run), str(tmp_path / "session"), "0", EXEC]
    run_to_end(command, timeout=60, cwd=ROOT, check=True)
    for generation, note in enumerate(("session", "session-2")):
        found = names(recover(run / note).journal)
        spans_of = {name: count for name, count in found.items() if name.startswith("generation")}
        assert spans_of == {f"generation {generation}": 100}


def test_default_directories_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of runs of one process that begin in the same second, and where a directory is there already."""
    monkeypatch.chdir(tmp_path)
    paths = {Output.choose(None, "x", rank).path for _ in range(10) for rank in (None, 0)}
    assert len(paths) == 20
    (tmp_path / "there").mkdir()
    assert own_directory(tmp_path / "there", None).name == "there-2"


@pytest.mark.parametrize("named", ["run", "../{}/run"])
def test_a_journal_whose_first_frame_is_damaged(tmp_path: Path, named: str) -> None:
    """Its id cannot be read: the one that the note names counts, by whatever name the directory is opened."""
    place = tmp_path / "run"
    first, second = (ended(place / "journal", pid=7, id="1" * 32, name=name) for name in ("one", "two"))
    for path in (first, second):
        content = bytearray(path.read_bytes())
        content[40] ^= 0xFF
        path.write_bytes(content)
    note = msgspec.structs.replace(DEAD, run="1" * 32, outputs=(str(first), str(tmp_path / "trace.json")))
    new_note(place, note)
    choice = choose(tmp_path / named.format(tmp_path.name), force=False)
    assert choice.journal is not None and choice.journal.samefile(first)
    assert choice.notes == ("not used, name one to recover it: journal-2",)


def test_an_empty_journal_is_not_chosen(crash: Crash) -> None:
    """Without a note the newest journal that was begun is recovered, though an empty one is newer."""
    crash.execute("profiler.start(); profiler.flush(); die()")
    for path in crash.run.glob("session*"):
        path.unlink()
    (crash.run / "journal-2").touch()
    assert recover(crash.run).source == crash.run / "journal"


def test_a_copy_next_to_the_journal(tmp_path: Path) -> None:
    """It bears the same id: the one that the note names is used, else the original."""
    original = ended(tmp_path / "journal", pid=7, id="1" * 32)
    (tmp_path / "journal.copy").write_bytes(original.read_bytes())
    note = msgspec.structs.replace(DEAD, run="1" * 32)
    path = new_note(tmp_path, note)
    assert choose(tmp_path, force=False).journal == original
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(note, outputs=(f"{original}.copy",))))
    assert choose(tmp_path, force=False).journal == Path(f"{original}.copy")


def test_another_run_that_is_named(crash: Crash) -> None:
    """The session of the killed run is needed as before."""
    crash.execute("profiler.start(); profiler.flush(); die()")
    other = ended(crash.run / "journal", pid=7, id="1" * 32)
    choice = choose(other, force=False)
    assert (choice.note, choice.journal) == (None, other)
    left = KilledSession.of(crash.directory())
    assert left is not None and left.unrecovered
    recover(crash.run)
    left = KilledSession.of(crash.directory())
    assert left is not None and not left.unrecovered


def test_a_living_run_is_recognised_behind_a_link(tmp_path: Path) -> None:
    """Its note has the real name; a directory that is named by a link is the same one."""
    (tmp_path / "run" / "windows").mkdir(parents=True)
    part = tmp_path / "run" / "windows" / "000000.journal.part"
    part.touch()
    living = msgspec.structs.replace(DEAD, outputs=(str(part),), **process_identity())
    new_note(tmp_path / "run", living)
    dead = msgspec.structs.replace(DEAD, outputs=(str(part),))
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert name_unfinished_windows(tmp_path / "link", dead, being_written(tmp_path / "link")) == (1, [])
    assert name_unfinished_windows(tmp_path / "link", living, set()) == (1, [])
    assert name_unfinished_windows(tmp_path / "link", DEAD, set()) == (1, []), "no note names it"
    assert part.exists()


BOTH = """
import pathlib, time
profiler.start()
other = sc.trace(output_dir=OTHER, name="other")
other.start()
def begun():
    journals = {path for place in (sys.argv[1], OTHER) for path in pathlib.Path(place).glob("journal*")}
    return sum(path.stat().st_size > 100 for path in journals)
while begun() < 2:
    time.sleep(0.01)
for number in range(100):
    with sc.span("both"):
        pass
die()
"""
"""Both journals have begun; nothing is drained: all events are in the session."""


def killed(tmp_path: Path, other: Path) -> Crash:
    """A process with two profilers that was killed; the one writes to `run`, and the other one elsewhere."""
    program = BOTH.replace("OTHER", repr(str(other)))
    return Crash(tmp_path).execute(program, drain_interval=1000.0)


@pytest.mark.parametrize("order", [("run", "other"), ("other", "run")])
def test_runs_in_two_directories(order: tuple[str, str], tmp_path: Path) -> None:
    """The recovery of the second run removes the session, and the notes of both with it."""
    crash = killed(tmp_path, tmp_path / "other")
    session = crash.directory()
    first = recover(tmp_path / order[0], remove_session=True)
    assert any("not removed" in note and str(tmp_path / order[1]) in note for note in first.notes)
    assert session.is_dir()
    last = recover(tmp_path / order[1], remove_session=True)
    assert not last.notes and not last.missing and not session.exists()
    assert names(first.journal)["both"] == names(last.journal)["both"] == 100
    assert not (tmp_path / "run" / "session").exists() and not (tmp_path / "other" / "session").exists()


def test_a_journal_that_was_created_and_not_written(tmp_path: Path) -> None:
    """A run that is killed before its note names the journal leaves an empty file, which needs no recovery."""
    killed(tmp_path, tmp_path / "other")
    other = tmp_path / "other"
    for journal in other.glob("journal*"):
        journal.unlink()
    (other / "journal").touch()
    ((path, note),) = notes_in(other, [])
    replace_note(path, msgspec.structs.replace(note, outputs=()))
    result = recover(other)
    assert not result.notes and not result.missing
    assert names(result.journal)["both"] == 100


def test_an_early_recovery_does_not_replace_a_later_one(tmp_path: Path) -> None:
    """A journal that was completed before the session was written to is not all that there is."""
    crash = killed(tmp_path, tmp_path / "other")
    recover(tmp_path / "run")
    ((path, note),) = notes_in(tmp_path / "run", [])
    replace_note(path, msgspec.structs.replace(note, recovered_ns=1))
    last = recover(tmp_path / "other", remove_session=True)
    assert any("not removed" in text for text in last.notes) and crash.directory().is_dir()


def test_runs_in_one_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command recovers both, and then removes the session."""
    crash = killed(tmp_path, tmp_path / "run")
    session = crash.directory()
    assert main(["recover", "--remove-session", str(crash.run)]) == 0
    output = capsys.readouterr().out
    assert "not removed" not in output and "cannot be used" not in output
    assert not session.exists() and not list(crash.run.glob("session*"))
    recovered = sorted(crash.run.glob("journal*"))
    assert [names(path)["both"] for path in recovered] == [100, 100]
