"""Sessions of killed runs are removed when nobody needs them or there is no room, and recovery reports it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.runtime.errors import FormatError, ProfilerStateError
from stepscope.runtime.options import Options
from stepscope.runtime.recovery import sweep as sweeping
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.recovery.sweep import DAY, WEEK, is_scarce, sweep
from stepscope.runtime.session.directory import in_use, make_session
from stepscope.runtime.session.file_lock import lock
from stepscope.runtime.session.note import SessionNote, new_note, read_note
from stepscope.runtime.session.system import process_identity
from tests.support.killed_programs import names
from tests.support.launch import run_to_end
from tests.support.messages import check_messages, refused

START = """
import os, signal, sys
import stepscope as sc
options = sc.Options(session_dir=sys.argv[2], drain_interval=1000.0)
with sc.trace(output_dir=sys.argv[1], exporters=[], options=options) as profiler:
    profiler.flush()
    for number in range(100):
        with sc.span("x"):
            pass
    END
"""


def start(run: Path, session: Path, end: str = "os.kill(os.getpid(), signal.SIGKILL)") -> None:
    """Runs a program that is killed, or carries out a command."""
    command = [sys.executable, "-c", START.replace("END", end), str(run), str(session)]
    run_to_end(command, cwd=session.parent, check=end == "pass")


class Left:
    """Copies of a killed run, each with a session of its own in one place."""

    def __init__(self, place: Path, killed_session: Path) -> None:
        self.sessions = place / "sessions"
        self.sessions.mkdir()
        self._place = place
        self._killed_session = killed_session

    def run(self, name: str, age: float) -> tuple[Path, Path]:
        """A run whose session was written to so many seconds ago: its directory, and that of the session."""
        run = self._place / name
        shutil.copytree(self._killed_session / "run", run)
        (old,) = (self._killed_session / "session").iterdir()
        session = self.sessions / f"stepscope-{name}"
        shutil.copytree(old, session)
        note = json.loads((run / "session").read_text())
        (run / "session").write_text(json.dumps(note | {"directory": str(session), "outputs": []}))
        (session / f"run-{note['profiler']}").write_text(str(run / "session"))
        at = time.time() - age
        for path in (*session.iterdir(), session):
            os.utime(path, (at, at))
        return run, session


@pytest.fixture
def left(tmp_path: Path, killed_session: Path) -> Left:
    """Killed runs."""
    return Left(tmp_path, killed_session)


def test_many_ranks_that_are_killed_and_start_again(tmp_path: Path) -> None:
    """However many there were, each of them can be recovered after that."""
    (tmp_path / "session").mkdir()
    for number in range(4):
        start(tmp_path / f"run{number}", tmp_path / "session")
    start(tmp_path / "again", tmp_path / "session", "pass")
    for number in range(4):
        recovery = recover(tmp_path / f"run{number}")
        assert (names(recovery.journal)["x"], recovery.missing) == (100, ())


def test_the_same_directory_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that begins where others were killed leaves their notes alone, and all are recovered."""
    run, session = tmp_path / "run", tmp_path / "session"
    session.mkdir()
    start(run, session)
    start(run, session)
    start(run, session, "pass")
    assert sorted(path.name for path in run.iterdir()) == ["journal", "journal-2", "journal-3", "session", "session-2"]
    assert main(["recover", str(run)]) == 0
    assert capsys.readouterr().out.count("completed ") == 2
    assert names(run / "journal")["x"] == names(run / "journal-2")["x"] == 100
    start(run, session)
    assert (run / "session-3").exists()
    assert main(["recover", "--remove-session", str(run)]) == 0
    start(run, session)
    assert (run / "session").exists() and recover(run).journal == run / "journal-5"


def test_unneeded_sessions_go_after_a_day(left: Left, caplog: pytest.LogCaptureFixture) -> None:
    """A run that was recovered, or whose directory is gone, needs its session no more."""
    needed, recovered, gone = (left.run(name, 2 * DAY) for name in ("needed", "recovered", "gone"))
    young = left.run("young", DAY / 2)
    for run, _ in (recovered, young):
        recover(run)
    shutil.rmtree(gone[0])
    with caplog.at_level(logging.INFO, "stepscope"):
        sweep(left.sessions, 60.0)
    assert [path.exists() for _, path in (needed, recovered, gone, young)] == [True, False, False, True]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_a_note_that_is_not_of_the_session_needs_it_not(left: Left, tmp_path: Path) -> None:
    """A session's file is not trusted alone: the note must name the same session, and only such a note is changed."""
    run, session = left.run("run", 2 * DAY)
    other = tmp_path / "other"
    shutil.copytree(run, other)
    (other / "session").write_text(json.dumps({"directory": "/elsewhere", "pid": 1, "start_time": 1}))
    (run / "session").unlink()
    before = (other / "session").read_bytes()
    for name, path in {
        "run-7": other / "session",
        "run-8": tmp_path / "missing" / "session",
        "run-9": "../session",
    }.items():
        (session / name).write_text(str(path))
    (session / "run-10").symlink_to(other / "session")
    os.utime(session, (0, 0))
    for path in session.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    sweep(left.sessions, 60.0)
    assert not session.exists()
    assert (other / "session").read_bytes() == before


def test_a_session_that_was_not_recovered_goes_after_a_week(left: Left, caplog: pytest.LogCaptureFixture) -> None:
    """The run's note and the log say so."""
    old, young = left.run("old", WEEK + DAY), left.run("young", WEEK - DAY)
    sweep(left.sessions, 60.0)
    assert [path.exists() for _, path in (old, young)] == [False, True]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    note = read_note(old[0] / "session", [])
    assert note is not None and note.swept is not None


def test_no_room(
    left: Left, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Where there is none for a new run even young ones go, and their runs say so: how many events, when and why."""
    run, session = left.run("run", 60.0)
    monkeypatch.setattr(sweeping, "FREE_BYTES", 1 << 62)
    monkeypatch.setattr(sweeping, "FREE_SHARE", 2.0)
    sweep(left.sessions, 0.0)
    assert not session.exists()
    check_messages(caplog.records, run, snapshot=False)  # how many events it had is the machine's
    note = read_note(run / "session", [])
    assert note is not None and note.swept is not None and note.swept.events > 80
    assert main(["recover", str(run)]) == 3
    output = capsys.readouterr()
    assert "MISSING: its session was swept by a later run at 20" in output.out
    assert f"at most {note.swept.events:,} events that no journal has" in output.out
    assert "not all could be brought back" in output.err
    assert names(run / "journal")["forward"] == 21


def test_a_start_sweeps_for_a_moment(left: Left, tmp_path: Path) -> None:
    """Then training goes on, and whoever starts next sees to the rest; with the program's random numbers untouched."""
    _, session = left.run("run", 2 * WEEK)
    before = random.getstate()
    sweep(left.sessions, 0.0)
    assert session.exists()
    start(tmp_path / "next", left.sessions, "pass")
    assert not session.exists()
    sweep(tmp_path / "missing")
    assert random.getstate() == before


AGAIN = """
import os, sys
import stepscope as sc
place, old, kept = sys.argv[1:]
def record(number):
    with sc.trace(output_dir=f"{place}/{number}", exporters=[], options=sc.Options(session_dir=f"{place}/sessions")):
        pass
record(1)
os.rename(old, kept)
record(2)
assert os.path.exists(kept)
"""


def test_a_process_sweeps_once(left: Left, tmp_path: Path) -> None:
    """Not again with each profiler that it starts."""
    _, session = left.run("run", 2 * WEEK)
    session.rename(tmp_path / "elsewhere")
    run_to_end([sys.executable, "-c", AGAIN, str(tmp_path), str(tmp_path / "elsewhere"), str(session)], check=True)


def test_a_place_with_many_files_of_others_is_swept(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that it takes to list them leaves time for sessions."""
    _, session = left.run("run", 2 * WEEK)
    glob = Path.glob

    def slow_glob(self: Path, pattern: str) -> Iterator[Path]:
        time.sleep(2 * sweeping.TIME_LIMIT_S)
        return glob(self, pattern)

    monkeypatch.setattr(Path, "glob", slow_glob)
    sweep(left.sessions)
    assert not session.exists()


def test_memory_is_room(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the place is in memory, it is full when the memory is, whatever its own limit."""
    disk = os.statvfs(left.sessions)
    enough = 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    monkeypatch.setattr(sweeping, "FREE_BYTES", enough)
    monkeypatch.setattr(sweeping, "FREE_SHARE", 1 << 30)
    assert is_scarce(left.sessions) == (disk.f_bavail * disk.f_frsize < enough)
    monkeypatch.setattr(sweeping, "MEMORY", left.sessions)
    assert is_scarce(left.sessions)


def test_a_session_in_use_stays(left: Left) -> None:
    """Its process id does not matter: that of another container means nothing. A recovery that reads it does not lose it."""
    _, session = left.run("run", 9 * DAY)
    for name in (".", "process.json"):
        descriptor = lock(session / name)
        sweep(left.sessions, 60.0)
        assert session.exists()
        os.close(descriptor)
    sweep(left.sessions, 60.0)
    assert not session.exists()


def test_a_session_is_in_use_while_its_process_lives(tmp_path: Path) -> None:
    """Also while children that it forked go on after its end, it counts as left."""
    program = """
import os, signal, sys
import stepscope as sc
profiler = sc.trace(output_dir=sys.argv[1], options=sc.Options(session_dir=sys.argv[2]))
profiler.start()
if os.fork() == 0:
    os.close(1)
    signal.pause()
os.write(1, b"up")
os.close(1)
signal.pause()
"""
    (tmp_path / "session").mkdir()
    command = [sys.executable, "-c", program, str(tmp_path / "run"), str(tmp_path / "session")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None and process.stdout.read() == b"up"
            (session,) = (tmp_path / "session").iterdir()
            assert in_use(session)
            note = tmp_path / "run" / "session"
            text = note.read_text().replace(f'"pid":{process.pid}', '"pid":1')
            assert f'"pid":{process.pid}' not in text
            note.write_text(text)  # as another container sees it
            with refused(ProfilerStateError, "process 1"):
                recover(tmp_path / "run")
            process.kill()
            process.wait()
            assert not in_use(session)
            assert recover(tmp_path / "run").missing == ()
        finally:
            os.killpg(process.pid, 9)


def test_two_recoveries(left: Left) -> None:
    """One does not delete what another is reading."""
    run, session = left.run("run", 60.0)
    descriptor = lock(session)
    recovery = recover(run, remove_session=True)
    assert any("is in use" in note for note in recovery.notes)
    assert session.exists() and (run / "session").exists()
    os.close(descriptor)
    assert recover(run, remove_session=True).notes == ()
    assert not session.exists()


def test_a_full_place_is_left_for_another(small_disk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where not even the first files fit, the next place is used, and no file is left."""
    filling = os.open(small_disk / "filling", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(filling, b"x" * 4096):
            pass
    os.close(filling)

    def places(wanted: str | None) -> list[str]:
        return [str(small_disk), str(tmp_path)]

    monkeypatch.setattr("stepscope.runtime.session.directory.places", places)
    session = make_session(Options())
    assert session.parent == tmp_path
    assert [path.name for path in small_disk.iterdir()] == ["filling"]


def test_notes_have_names_of_their_own(tmp_path: Path) -> None:
    """None takes another's name, or that of a link."""
    note = SessionNote(directory="/x", pid=1, start_time=process_identity()["start_time"])
    (tmp_path / "session").write_text("another's")
    (tmp_path / "session-2").write_text("another's")
    (tmp_path / "session-3").symlink_to(tmp_path / "session-2")
    assert new_note(tmp_path, note).name == "session-3"
    assert (tmp_path / "session-2").read_text() == "another's"
    assert not (tmp_path / "session-3").is_symlink()
    with refused(FormatError, "session-2", "/x", "Options.session_dir"):
        recover(tmp_path)
