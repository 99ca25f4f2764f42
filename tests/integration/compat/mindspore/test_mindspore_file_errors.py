"""Recordings whose files cannot be written or read: what is there stays, and missing parts are reported."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.compat.mindspore.analysis.background import analysis_thread
from stepscope.compat.mindspore.output_layout import RAW, windows_in, write_facts
from stepscope.compat.mindspore.recording import capture
from stepscope.mindspore import Profiler, schedule
from tests.support import mindspore_output as output
from tests.support.basics import ROOT
from tests.support.launch import run_to_end
from tests.support.messages import check_messages


def two_windows(path: Path, **options: Any) -> Profiler:
    """A profiler that has recorded two windows."""
    profiler = Profiler(
        output_path=path,
        schedule=schedule(wait=0, active=1, warmup=0, repeat=2, skip_first=0),
        start_profile=False,
        **options,
    )
    profiler.start()
    output.loop(3, lambda _: None, lambda _: profiler.step())
    profiler.stop()
    return profiler


def test_a_window_that_cannot_be_written_keeps_the_raw_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is the only copy of it then: it is not deleted, and an analysis when there is room has all."""
    write, calls = write_facts, 0

    def full(directory: Path, *arguments: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # the start's, the first window's, the second's
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(directory, *arguments, **options)

    monkeypatch.setattr(capture, "write_facts", full)
    profiler = two_windows(tmp_path, data_simplification=True)
    analysis = profiler.analyse()
    assert analysis is not None
    assert not analysis.complete and len(analysis.unreadable) == 1 and len(analysis.windows) == 1
    (reason,) = analysis.rejected
    assert reason.startswith("window 1: its directory could not be written: OSError: [Errno 28]")
    assert "stepscope analyse" in reason and reason in str(analysis)
    (directory,) = profiler.directories
    assert windows_in(directory / RAW / "journal") == {0, 1}
    again = Profiler.offline_analyse(tmp_path)
    assert sorted(window.window for window in again.windows) == [0, 1] and again.complete


@pytest.mark.checklist("D20")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_journal_that_cannot_be_read_costs_its_window(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are analysed, and it is named, also in the background."""
    profiler = two_windows(tmp_path, data_simplification=False)
    damaged = profiler.windows[1]
    (damaged.directory / RAW / "window.journal").write_bytes(b"this is no journal")
    analysis = profiler.analyse(mode=mode)
    if mode == "async":
        analysis_thread.submit(lambda: None).result()
    else:
        assert analysis is not None
        assert [window.window for window in analysis.windows] == [0] and not analysis.complete
        assert f"window 1 of {damaged.directory} cannot be analysed: FormatError" in analysis.rejected[0]
    check_messages(caplog.records, "window 1", damaged.directory, "FormatError")


def test_a_start_that_fails_halfway_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording ends before its directory is deleted."""
    before = set(threading.enumerate())

    def broken(self: capture.Capture) -> None:
        raise OSError(errno.EIO, "no memory can be read")

    monkeypatch.setattr(capture.Capture, "_read_memory", broken)
    profiler = Profiler(output_path=tmp_path, start_profile=False)
    with pytest.raises(OSError, match="no memory can be read"):
        profiler.start()
    left = {thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()}
    assert not {name for name in left if name in ("stepscope", "stepscope journal", "stepscope on_trace_ready")}
    assert list(tmp_path.iterdir()) == []


ANOTHER_USER = """
import os, sys
from pathlib import Path
from stepscope.mindspore import Profiler
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
analysis = Profiler.offline_analyse(Path(sys.argv[1]), data_simplification=False)
print(len(analysis.windows), analysis.complete, *analysis.rejected, sep="\\n")
"""


def test_a_directory_that_cannot_be_read_costs_itself(tmp_path: Path) -> None:
    """Two users share an output_path: each one's directories are 0700."""
    if os.geteuid() != 0:
        pytest.skip("another user can only be tried as root")
    place = Path("/tmp") / f"stepscope-{os.getpid()}-shared"
    place.mkdir(mode=0o755)
    try:
        mine = place / "mine"
        profiler = Profiler(output_path=mine, start_profile=False)
        profiler.start()
        output.loop(2, lambda _: None, lambda _: profiler.step())
        profiler.stop()
        theirs = place / "theirs"
        theirs.mkdir(mode=0o700)
        for path in (mine, *mine.rglob("*")):
            os.chown(path, 65534, 65534)
        done = run_to_end(
            [sys.executable, "-c", textwrap.dedent(ANOTHER_USER), str(place)],
            cwd=ROOT,
            environment={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        windows, complete, *rejected = done.stdout.splitlines() or pytest.fail(done.stderr)
        assert (windows, complete) == ("1", "False"), done
        assert rejected == [f"{theirs} cannot be read: Permission denied"]
    finally:
        subprocess.run(["rm", "-rf", str(place)], check=False)


def half(data: bytes) -> bytes:
    """Cut by a crash of the file system."""
    return data[: len(data) // 2]


def damaged(data: bytes) -> bytes:
    """Some of its middle was overwritten."""
    middle = len(data) // 2
    return data[:middle] + bytes(2_000) + data[middle + 2_000 :]


def work(_: int) -> None:
    for number in range(2_000):
        with sc.span(f"operator {number % 7}", text="x" * 40):
            pass


@pytest.mark.parametrize("spoil", [half, damaged])
def test_an_incomplete_journal_is_not_deleted(
    spoil: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the only copy of what it has."""
    plan = schedule(wait=0, active=1, warmup=0, repeat=2, skip_first=0)
    profiler = Profiler(output_path=tmp_path, schedule=plan, start_profile=False, data_simplification=True)
    profiler.start()
    output.loop(3, work, lambda _: profiler.step())
    profiler.stop()
    (journal,) = tmp_path.rglob("journal")
    journal.write_bytes(spoil(journal.read_bytes()))
    analysis = profiler.analyse()
    assert analysis is not None and not analysis.complete
    assert "INCOMPLETE" in str(analysis) and check_messages(caplog.records, "journal", snapshot=False)
    assert journal.exists()
