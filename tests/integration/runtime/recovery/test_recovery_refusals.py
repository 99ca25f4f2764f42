"""Recovery leaves living processes alone, believes nothing, and says what it cannot use."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.cli.main import main
from stepscope.runtime.errors import FormatError, ProfilerStateError
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.session.system import is_running, process_identity
from tests.support.basics import ROOT
from tests.support.commands import python
from tests.support.crashes import BODY, MIDWAY, Crash, batches, names
from tests.support.messages import refused


@pytest.fixture
def crash(tmp_path: Path) -> Crash:
    """A program to be killed."""
    return Crash(tmp_path)


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


def test_nothing_to_recover_is_said(tmp_path: Path) -> None:
    """A directory without anything, or with something else, is an error that says so."""
    with refused(FormatError, tmp_path):
        recover(tmp_path)
    (tmp_path / "session").write_text("{not json")
    (tmp_path / "journal").write_text("no journal, but long enough to be one: " * 5)
    with refused(FormatError, tmp_path / "session", tmp_path / "journal"):
        recover(tmp_path)


def test_links_in_the_session_are_not_followed(crash: Crash) -> None:
    """A session directory that leads elsewhere gives a note, not another file's content."""
    crash.of(BODY.format(between=MIDWAY), drain_interval=1000.0)
    directory = crash.directory()
    for name in ("ring-00000", "strings"):
        (directory / name).rename(crash.run / name)
        (directory / name).symlink_to(crash.run / name)
    recovery = recover(crash.run, crash.run / "copy")
    assert len([said for said in recovery.missing if "symbolic links" in said]) >= 2
    directory.rename(crash.run / "elsewhere")
    directory.symlink_to(crash.run / "elsewhere")
    assert any("is not a session directory" in said for said in recover(crash.run, crash.run / "copy").missing)


def test_what_was_recovered_stays(crash: Crash) -> None:
    """A journal that was completed from the rings is not cut when they are gone, and no poorer copy is made."""
    crash.of(BODY.format(between=MIDWAY), drain_interval=1000.0)
    better = recover(crash.run, remove_session=True).journal
    kept = better.read_bytes()
    for out in (None, better.with_name("other")):
        with refused(FormatError, better):
            recover(crash.run, out)
    assert better.read_bytes() == kept and names(better)["forward"] == 40
    assert not better.with_name("other").exists()


def test_a_full_disk(crash: Crash, small_disk: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is left there, what there was stays, and the way out is named and works."""
    crash.of(BODY.format(between=MIDWAY), drain_interval=1000.0)
    run = small_disk / "run"
    shutil.copytree(crash.run, run)
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


def test_more_processes_than_there_are_descriptors(crash: Crash) -> None:
    """Each process that had joined has a directory, which is open only while it is read."""
    crash.of(BODY.format(between=MIDWAY), drain_interval=1000.0)
    for number in range(1, 101):
        joined = crash.directory() / f"{number}-1"
        joined.mkdir(mode=0o700)
        for name in ("strings", "tracks", "stacks"):
            (joined / name).touch()
    done = python("-c", FEW_FILES, crash.run, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert names(crash.run / "journal")["forward"] == 40


@pytest.fixture(scope="module")
def left_behind() -> Iterator[Path]:
    """A crashed run with its session directory, to be damaged; in memory, as a busy disk would make each time a long one."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        place = Path(name)
        Crash(place).of(BODY.format(between="number == 7 and profiler.flush()"), drain_interval=1000.0)
        yield place


@pytest.mark.timeout(600)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ring-00000", "stacks", "strings", "tracks"]),
            st.sampled_from([0, 8, 12, 16, 24, 64, 72, 80, 128, 136]) | st.integers(0, 12_000),
            st.binary(min_size=1, max_size=16),
        ),
        min_size=1,
        max_size=8,
    ),
    st.none() | st.integers(0, 20_000),
)
def test_damaged_sessions_are_survived(left_behind: Path, acts: list[tuple[str, int, bytes]], cut: int | None) -> None:
    """Whatever is in the files of a session, recovery ends, with a journal that can be read."""
    (directory,) = (left_behind / "session").iterdir()
    originals = {path: path.read_bytes() for path in directory.iterdir()}
    try:
        for name, at, junk in acts:
            with open(directory / name, "r+b") as file:
                file.seek(at)
                file.write(junk)
        if cut is not None:
            os.truncate(directory / acts[0][0], cut)
        recovery = recover(left_behind / "run", left_behind / "copy")
        assert names(recovery.journal)["forward"] >= 8 or recovery.missing
        assert all(batch.window == 0 for batch in batches(recovery.journal))
    finally:
        for path, data in originals.items():
            path.write_bytes(data)
