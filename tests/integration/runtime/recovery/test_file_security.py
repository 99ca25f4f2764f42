"""Files are private, names never lead out of the output directory, and links are not followed."""

from __future__ import annotations

import json
import os
import resource
import stat
import struct
import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import pytest

import stepscope
from stepscope.exporters.base import Exporter
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.specimens import batch_of, run_in, spans, window_of
from stepscope.exporters.tensorboard import TensorBoardExporter
from stepscope.runtime.errors import OutputError
from stepscope.runtime.journal.ids import IdMap
from stepscope.runtime.lifecycle.output_directory import Output
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.recovery.sweep import sweep
from tests.support.killed_programs import Crash, names
from tests.support.launch import run_to_end
from tests.support.messages import refused

NASTY = (
    "../../outside", "/etc/outside", "..", ".", "nul\0byte", "x" * 5000, "🧪" * 300, "\udcff", "~", " ",
)  # fmt: skip


def rights(path: Path) -> int:
    """The permission bits of a file."""
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_are_private(umask: int, tmp_path: Path) -> None:
    """Sessions, journals and notes are their user's alone, whatever the umask; traces are as it says."""
    script = """
import os, sys, stepscope as sc
os.umask(int(sys.argv[1]))
with sc.trace(output_dir="run", exporters=[sc.ChromeTraceExporter("run/trace.json")],
              options=sc.Options(session_dir=".")) as profiler:
    with sc.span("private"):
        pass
    profiler.flush()
    os._exit(0)
"""
    run_to_end([sys.executable, "-c", script, str(umask)], cwd=tmp_path, check=True)
    (session,) = tmp_path.glob("stepscope-*")
    assert rights(session) == 0o700
    assert {rights(path) for path in session.iterdir()} == {0o600}
    assert rights(tmp_path / "run" / "journal") == rights(tmp_path / "run" / "session") == 0o600
    assert rights(tmp_path / "run" / "trace.json") == 0o666 & ~umask
    recovery = recover(tmp_path / "run")
    assert rights(recovery.journal) == 0o600


@pytest.mark.parametrize("name", NASTY)
def test_a_run_name_chooses_no_path(name: str) -> None:
    """The default directory lies below `stepscope_runs`, one level down, however the run is called."""
    path = Output.choose(None, name, None).path
    assert path.parent == Path("stepscope_runs")
    assert len(os.fsencode(path.name)) < 200
    assert "\0" not in path.name
    assert path.name not in (".", "..")


@pytest.mark.parametrize("name", NASTY)
def test_names_in_a_trace_are_text(name: str, tmp_path: Path) -> None:
    """Names of the run, its host, spans, categories and tracks make no file of their own."""
    home = tmp_path / "home"
    home.mkdir()
    run = msgspec.structs.replace(run_in(home, name or "x"), host=name)
    exporters: list[Exporter] = [ChromeTraceExporter(home / "trace.json"), TensorBoardExporter(home / "tb")]
    batch = batch_of(spans([name]))

    async def write() -> None:
        for exporter in exporters:
            await exporter.open(run)
            await exporter.export(batch)
            await exporter.close_window(window_of(0, batch))
            await exporter.aclose()

    anyio.run(write)
    assert {path.name for path in tmp_path.iterdir()} == {"home"}
    assert {path.name for path in home.iterdir()} == {"trace.json", "tb"}
    (written,) = (home / "tb").iterdir()
    json.loads(written.read_bytes())


def test_a_directory_that_is_no_name_is_an_error_of_ours(tmp_path: Path) -> None:
    """A directory with a NUL, one that is a file, and one that is too long are refused at the start."""
    (tmp_path / "file").write_text("")
    with refused(OutputError, "nul\\x00byte", snapshot=False):  # versions of Python word it differently
        stepscope.trace(output_dir="nul\0byte").start()
    for place in (tmp_path / "file", tmp_path / ("x" * 300)):
        with refused(OutputError):
            stepscope.trace(output_dir=str(place)).start()


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
async def test_links_and_pipes_are_no_outputs(name: str, tmp_path: Path) -> None:
    """A planted link is not written through, and a pipe is not waited for; both are an error that names the file."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / name).symlink_to(precious)
    with refused(OutputError, name):
        await ChromeTraceExporter(tmp_path / name).open(run_in(tmp_path))
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with refused(OutputError, name):
        await ChromeTraceExporter(tmp_path / name).open(run_in(tmp_path))
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/null")
    with refused(OutputError, name):
        await ChromeTraceExporter(tmp_path / name).open(run_in(tmp_path))
    assert precious.read_text() == "precious"


def test_links_in_the_run_are_replaced(tmp_path: Path) -> None:
    """Where a link has the name of the session's note or of the journal, its target stays as it is."""
    run = tmp_path / "run"
    run.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for name in ("session", "journal", "trace.json.part", f".session.{os.getpid()}"):
        (run / name).symlink_to(precious)
    exporter = ChromeTraceExporter(run / "trace.json", form="object")
    with stepscope.trace(output_dir=run, exporters=[exporter]) as profiler, stepscope.span("x"):
        assert not (run / "session").is_symlink()
    assert precious.read_text() == "precious"
    assert (run / "journal-2").is_file()
    with pytest.raises(ExceptionGroup):
        profiler.raise_errors()


def sessions(place: Path, count: int) -> list[Path]:
    """Sessions of processes that have ended, oldest first."""
    made: list[Path] = []
    for number in range(count):
        path = place / f"stepscope-{number}-x"
        path.mkdir(mode=0o700)
        (path / "process.json").write_text(json.dumps({"pid": 1 << 30, "start_time": number + 1}))
        (path / "ring-00000").write_text("")
        for file in (*path.iterdir(), path):
            os.utime(file, (number, number))
        made.append(path)
    return made


def test_the_sweep_deletes_only_our_sessions(tmp_path: Path) -> None:
    """Old sessions go; directories that are open to others, foreign, linked or hold something else stay."""
    old = sessions(tmp_path, 6)
    (old[0] / "thesis.tex").write_text("not a session's file")
    for path in (old[0] / "thesis.tex", old[0]):
        os.utime(path, (0, 0))
    old[1].chmod(0o755)
    (old[2] / "process.json").unlink()
    os.mkfifo(old[2] / "process.json")
    elsewhere = tmp_path / "elsewhere"
    old[3].rename(elsewhere)
    old[3].symlink_to(elsewhere)
    sweep(tmp_path)
    assert (old[0] / "thesis.tex").exists()
    assert not (old[0] / "ring-00000").exists()
    assert all((path / "ring-00000").exists() for path in (old[1], old[2], elsewhere))
    assert not old[4].exists() and not old[5].exists()


@pytest.mark.parametrize(
    "directory", ["/", "/etc", "relative", "", "/nowhere/at/all", "nul\0byte", "x" * 5000, "/proc/1"]
)
def test_a_note_that_names_another_place(killed: Crash, directory: str) -> None:
    """The note names a directory that is no session: recovery reports the note, and nothing there is changed."""
    killed.renote(directory=directory)
    recovery = recover(killed.run, remove_session=True)
    assert names(recovery.journal)["forward"] >= 20
    assert recovery.from_rings == 0
    assert Path("/etc/passwd").exists()


def test_only_the_session_that_is_meant_is_removed(killed: Crash, tmp_path: Path) -> None:
    """A note that names the session of another process does not get it deleted."""
    other = sessions(tmp_path, 1)[0]
    killed.renote(directory=str(other))
    assert any("is not the session of process" in note for note in recover(killed.run, remove_session=True).notes)
    assert (other / "ring-00000").exists()


def test_a_session_that_others_may_write_is_not_read(killed: Crash) -> None:
    """Another user who plants rings there could make us read any memory."""
    killed.directory().chmod(0o777)
    assert any("is not a session directory of this user" in note for note in recover(killed.run).missing)


def test_a_note_that_is_a_link_or_pipe_is_not_read(killed: Crash) -> None:
    """It is reported, and the journal alone is recovered."""
    note = killed.run / "session"
    note.rename(killed.run / "moved")
    note.symlink_to(killed.run / "moved")
    assert any("symbolic link" in text for text in recover(killed.run, killed.run / "copy").missing)
    note.unlink()
    os.mkfifo(note)
    assert any("no regular file" in text for text in recover(killed.run, killed.run / "copy").missing)


def hostile(path: Path, **fields: int) -> None:
    """Changes fields of a ring's header."""
    at = {"slots": (12, "<I"), "head": (64, "<Q"), "reserve": (72, "<Q"), "produced": (80, "<Q"), "tail": (128, "<Q"), "serial": (136, "<Q")}  # fmt: skip
    with path.open("r+b") as file:
        for name, value in fields.items():
            file.seek(at[name][0])
            file.write(struct.pack(at[name][1], value))


HOSTILE = (
    {"slots": 1 << 24, "head": 1 << 24},
    {"slots": 0},
    {"slots": 3},
    {"slots": (1 << 32) - 1},
    {"head": (1 << 64) - 1},
    {"head": 1 << 61},
    {"reserve": 1 << 63},
    {"produced": (1 << 64) - 1},
    {"tail": (1 << 64) - 1},
    {"serial": 1 << 40},
)


def test_absurd_rings_cost_nothing(killed_session: Path, tmp_path: Path) -> None:
    """Memory and time are bounded for any header of a ring, and the other files are used."""
    crashes = [Crash.copy(killed_session, tmp_path / str(number)) for number in range(len(HOSTILE))]
    for crash, fields in zip(crashes, HOSTILE, strict=True):
        ring = crash.directory() / "ring-00000"
        os.truncate(ring, 1 << 41)
        hostile(ring, **fields)
    script = (
        "import sys; from stepscope.runtime.recovery.recover import recover; [recover(run) for run in sys.argv[1:]]"
    )
    subprocess.run(
        [sys.executable, "-c", script, *(str(crash.run) for crash in crashes)],
        check=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)),
    )
    for crash, fields in zip(crashes, HOSTILE, strict=True):
        assert names(crash.run / "journal")["forward"] >= 20, fields


@pytest.mark.parametrize("name", ["strings", "tracks", "stacks", "ring-00000", "process.json"])
@pytest.mark.parametrize("what", ["sparse", "fifo", "device", "directory"])
def test_files_that_are_none(killed: Crash, name: str, what: str) -> None:
    """Terabytes of nothing, pipes, devices and directories in place of a session's file are survived."""
    path = killed.directory() / name
    path.unlink()
    if what == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 41)
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert recover(killed.run).windows == 1


def test_a_swapped_directory_is_not_followed(killed: Crash, tmp_path: Path) -> None:
    """Files are read in the directory that was checked, also if another takes its name meanwhile."""
    files = SessionFiles(killed.directory())
    directory = killed.directory()
    directory.rename(tmp_path / "moved")
    directory.mkdir()
    (directory / "1-1").mkdir(mode=0o700)
    assert sum(len(ring.events) for ring in files.rings()) > 0
    assert not files.parts()
    files.close()


@pytest.mark.parametrize("what", ["link", "open to others", "gone"])
def test_a_swapped_part_is_not_read(what: str, killed: Crash, tmp_path: Path) -> None:
    """It holds no descriptor, and is opened for each use: only where it is a private directory then."""
    part = killed.directory() / "1-1"
    part.mkdir(mode=0o700)
    (part / "strings").touch()
    (part / "ring-00000").touch()
    session = SessionFiles(killed.directory())
    before = len(os.listdir("/proc/self/fd"))
    (files,) = session.parts()
    assert len(os.listdir("/proc/self/fd")) == before
    assert files.ring_count() == 1 and not files.unread
    part.rename(tmp_path / "moved")  # still there, so that the other one cannot have its number
    if what == "link":
        part.symlink_to(tmp_path / "moved")
    elif what != "gone":
        part.mkdir(mode=0o700)
        (part / "ring-00000").touch()
    if what == "open to others":
        part.chmod(0o777)
    assert files.ring_count() == 0 and not list(files.rings())
    files.load_ids(IdMap())
    assert files.unread is (what != "gone")
    assert bool(files.notes)
    session.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.ring_count()
