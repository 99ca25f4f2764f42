"""Recovery leaves living processes alone, believes nothing, and says what it cannot use."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.cli.main import main
from stepscope.compat.mindspore.output_layout import RAW
from stepscope.runtime.errors import FormatError, ProfilerStateError
from stepscope.runtime.recovery.flight_files import name_unfinished_windows
from stepscope.runtime.recovery.journals import Journals
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.session.job import rank_from_environment
from stepscope.runtime.session.note import SessionNote, read_note
from stepscope.runtime.session.system import is_running, process_identity
from tests.support.basics import ROOT
from tests.support.commands import python
from tests.support.killed_programs import Crash, names
from tests.support.launch import run_to_end
from tests.support.messages import refused


def test_a_living_process_is_left_alone(tmp_path: Path) -> None:
    """Recovery of a run that goes on is refused, unless it is forced; another process of that number does not count."""
    run, session = tmp_path / "run", tmp_path / "session"
    run.mkdir()
    session.mkdir()
    identity = process_identity()
    (run / "session").write_text(json.dumps({"directory": str(session), **identity}))
    with refused(ProfilerStateError, os.getpid(), run):
        recover(run)
    assert recover(run, tmp_path / "copy", force=True).from_rings == 0
    with refused(ValueError, "out="):
        recover(run, force=True)
    (run / "session").write_text(json.dumps({"directory": str(session), **identity, "start_time": 1}))
    assert recover(run).windows == 0


def test_a_zombie_does_not_run(tmp_path: Path) -> None:
    """A killed process that its parent has not waited for records nothing any more."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        start = process_identity(process.pid)["start_time"]
        assert is_running(process.pid, start)
        assert not is_running(process.pid, start + 1)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(process.pid, start)
    assert not is_running(process.pid, start)


def test_nothing_to_recover_is_reported(tmp_path: Path) -> None:
    """A directory without anything, or with something else, is an error that says so."""
    with refused(FormatError, tmp_path):
        recover(tmp_path)
    (tmp_path / "session").write_text("{not json")
    (tmp_path / "journal").write_text("no journal, but long enough to be one: " * 5)
    with refused(FormatError, tmp_path / "session", tmp_path / "journal"):
        recover(tmp_path)


def test_links_in_the_session_are_not_followed(killed: Crash) -> None:
    """A session directory that leads elsewhere gives a note, not another file's content."""
    directory = killed.directory()
    for name in ("ring-00000", "strings"):
        (directory / name).rename(killed.run / name)
        (directory / name).symlink_to(killed.run / name)
    recovery = recover(killed.run, killed.run / "copy")
    assert len([note for note in recovery.missing if "symbolic links" in note]) >= 2
    directory.rename(killed.run / "elsewhere")
    directory.symlink_to(killed.run / "elsewhere")
    assert any("is not a session directory" in note for note in recover(killed.run, killed.run / "copy").missing)


def test_a_recovered_journal_stays(killed: Crash) -> None:
    """A journal that was completed from the rings is not cut when they are gone, and no poorer copy is made."""
    better = recover(killed.run, remove_session=True).journal
    content = better.read_bytes()
    for out in (None, better.with_name("other")):
        with refused(FormatError, better):
            recover(killed.run, out)
    assert better.read_bytes() == content and names(better)["forward"] == 40
    assert not better.with_name("other").exists()


def test_a_full_disk(killed: Crash, small_disk: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is left there, what there was stays, and the way out is named and works."""
    run = small_disk / "run"
    shutil.copytree(killed.run, run)
    before = sorted(path.name for path in run.iterdir())
    with (small_disk / "filling").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    assert main(["recover", str(run)]) == 1
    assert "No space left on device; --out FILE writes elsewhere" in capfd.readouterr().err
    assert sorted(path.name for path in run.iterdir()) == before
    assert main(["recover", str(run), "--out", str(tmp_path / "out.journal")]) == 0
    assert names(tmp_path / "out.journal")["forward"] == 40


FEW_FILES = """
import resource, sys
from stepscope.cli.main import main
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
sys.exit(main(["recover", sys.argv[1]]))
"""


def test_more_processes_than_there_are_descriptors(killed: Crash) -> None:
    """Each process that had joined has a directory, which is open only while it is read."""
    for number in range(1, 101):
        joined = killed.directory() / f"{number}-1"
        joined.mkdir(mode=0o700)
        for name in ("strings", "tracks", "stacks"):
            (joined / name).touch()
    done = python("-c", FEW_FILES, killed.run, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert names(killed.run / "journal")["forward"] == 40


def test_digits_that_are_no_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`str.isdigit` takes a superscript for one, `int` does not."""
    (tmp_path / "windows").mkdir()
    (tmp_path / "windows" / "²²²²²²x.journal").touch()
    (tmp_path / "windows" / "000007-x.journal").touch()
    assert name_unfinished_windows(tmp_path, SessionNote(directory="/nowhere", pid=1, start_time=1), set())[0] == 8
    monkeypatch.setenv("RANK", "²")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_from_environment()[1] == 4


@pytest.mark.parametrize("at", [-1, 1 << 62, 1 << 80])
def test_a_time_that_no_calendar_has(tmp_path: Path, at: int) -> None:
    """Such a note is not believed."""
    swept = {"at_ns": at, "events": 1, "why": "x"}
    note = {"directory": "/nowhere", "pid": 1, "start_time": 1, "swept": swept}
    (tmp_path / "session").write_text(json.dumps(note))
    problems: list[str] = []
    assert read_note(tmp_path / "session", problems) is None and problems
    with pytest.raises(FormatError):
        recover(tmp_path)


def test_a_file_of_somebody_else_whose_name_begins_like_a_journals(tmp_path: Path) -> None:
    """It is no problem of the run."""
    with sc.trace(output_dir=tmp_path), sc.span("x"):
        pass
    (tmp_path / "journal.notes").write_text("mine")
    found = Journals.of(tmp_path)
    assert [path.name for path, _ in found.found] == ["journal"] and not found.unusable
    (tmp_path / "journal-2").write_text("mine")
    assert len(Journals.of(tmp_path).unusable) == 1


def test_a_journal_that_is_a_link(tmp_path: Path) -> None:
    """It may lead out of the run's directory, so it is not followed unless it is named itself."""
    with sc.trace(output_dir=tmp_path / "run"), sc.span("x"):
        pass
    place = tmp_path / "place"
    place.mkdir()
    (place / "journal").symlink_to(tmp_path / "run" / "journal")
    found = Journals.of(place)
    assert not found.found and "symbolic link" in found.unusable[0]
    with refused(FormatError, tmp_path, "journal"):
        recover(place)


OFFLINE = """
import sys
from pathlib import Path
from stepscope.mindspore import Profiler
analysis = Profiler.offline_analyse(Path(sys.argv[1]).parent, data_simplification=False)
print(*analysis.rejected, file=sys.stderr)
sys.exit(not analysis.complete)
"""
COMMAND = """
import sys
from stepscope.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
WITHOUT_CAPABILITIES = """
import ctypes
version_3 = (ctypes.c_uint32 * 2)(0x20080522, 0)
assert ctypes.CDLL(None).capset(version_3, (ctypes.c_uint32 * 6)()) == 0
"""
"""Then root, too, can read only what the rights of a file allow."""


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A run's directory in the place of a window of MindSpore; nobody can read its journal."""
    window = tmp_path / "host_1_2_cpu_ms" / RAW
    with sc.trace(output_dir=window), sc.span("work"):
        pass
    (window / "journal").chmod(0)
    return window


@pytest.mark.parametrize("what", ["offline", "convert", "recover", "merge"])
def test_an_unreadable_journal(what: str, raw: Path) -> None:
    """The text has the file and the reason."""
    program, arguments = {
        "offline": (OFFLINE, [str(raw)]),
        "convert": (COMMAND, ["convert", str(raw), str(raw / "trace.json")]),
        "recover": (COMMAND, ["recover", str(raw)]),
        "merge": (COMMAND, ["merge", str(raw), "--out", str(raw / "trace.json")]),
    }[what]
    done = run_to_end([sys.executable, "-c", WITHOUT_CAPABILITIES + program, *arguments], timeout=60, cwd=ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Permission denied" in done.stderr and str(raw / "journal") in done.stderr
    for untrue in ("no journal:", "no journal,", "has no journal", "Errno"):
        assert untrue not in done.stderr, done.stderr
