"""Control of a running profiler: by its file and by SIGUSR2; and that it costs the loop nothing."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope import Control, Options, Profiler, Window
from stepscope.errors import ControlError
from stepscope.runtime.control.agreement.job_directory import JobDirectory
from stepscope.runtime.control.entry_points import watched_file
from stepscope.runtime.files.file_reading import read_bounded
from stepscope.runtime.session.job import rank_from_environment
from stepscope.runtime.session.ranks import ranks_from, ranks_text
from tests.support.armed_loop import facts
from tests.support.basics import ROOT, missing, require
from tests.support.launch import launched
from tests.support.messages import refused

QUICK = Options(journal=False, drain_interval=0.01)


@contextlib.contextmanager
def controlled(directory: Path, **more: Any) -> Generator[tuple[Profiler, list[Window], Path]]:
    """A profiler that follows a file in the directory."""
    windows: list[Window] = []
    settings: dict[str, Any] = {"control": Control(path=str(directory), poll=0.01), "options": QUICK, **more}
    with stepscope.trace(output_dir=directory / "run", on_trace_ready=windows.append, **settings) as profiler:
        yield profiler, windows, directory / "stepscope.json"
    profiler.raise_errors()


def step_until(profiler: Profiler, condition: Callable[[], object]) -> None:
    """Goes on stepping until something holds."""
    deadline = time.monotonic() + 60
    while not condition():
        with stepscope.span("work"):
            time.sleep(0.001)
        profiler.step()
        assert time.monotonic() < deadline


def go_on(profiler: Profiler, steps: int) -> None:
    """So many steps more."""
    end = profiler.step_num + steps
    step_until(profiler, lambda: profiler.step_num >= end)


def write_control_file(path: Path, **fields: Any) -> None:
    """Writes the file."""
    draft = path.with_name("draft")
    draft.write_text(json.dumps(fields))
    draft.replace(path)


def status(path: Path) -> dict[str, Any]:
    """The content of the status file."""
    found: dict[str, Any] = json.loads(path.with_name(f"{path.name}.status.json").read_text())
    return found


@pytest.mark.checklist("B17", "B18", "A24", "A33", "A35", "A36", "A37", "F6")
def test_windows_by_the_file(tmp_path: Path) -> None:
    """It appears at the start; each edit has a window recorded, under a name of what was recorded, and nothing else is."""
    with controlled(tmp_path) as (profiler, windows, path):
        assert path.exists() and profiler.armed() == ()
        step_until(profiler, lambda: profiler.step_num >= 5)
        assert windows == [] and profiler.statistics().windows == 0
        write_control_file(path, start_step="next", steps=1)
        step_until(profiler, lambda: len(windows) == 1)
        write_control_file(path, start_step="next", steps=1)
        step_until(profiler, lambda: profiler.step_num >= windows[0].steps[0].number + 60)
        assert len(windows) == 1
        write_control_file(path, start_step="next", steps=1, run_id="again")
        step_until(profiler, lambda: len(windows) == 2)
        step_until(profiler, lambda: [one["state"] for one in status(path).get("windows", ())] == ["recorded"] * 2)
        report = status(path)
    assert [len(window.steps) for window in windows] == [1, 1] and profiler.statistics().windows == 2
    assert [facts(window)["trigger"] for window in windows] == ["file", "file"]
    number = windows[1].steps[0].number
    assert facts(windows[1])["name"] == f"rank0_start{number}_stop{number}_again"
    assert report["state"] == "ok" and report["trigger"] == "file" and report["run_id"] == "again"
    assert report["answer"] == f"recording step {number}"


@pytest.mark.checklist("A33", "F6")
def test_a_request_is_accepted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every profiler that follows the file remembers it, also after others; a request without a window can be made again."""
    with controlled(tmp_path) as (profiler, windows, path):
        for run_id in ("a", "b"):
            write_control_file(path, start_step="next", steps=1, run_id=run_id)
            step_until(profiler, lambda: path.exists() and status(path).get("run_id") == run_id)  # noqa: B023
        write_control_file(path, start_step="next", steps=1, run_id="a")
        step_until(profiler, lambda: "was taken already" in status(path)["answer"])
        step_until(profiler, lambda: windows)
        number = windows[0].steps[0].number
        text = f"this request was taken already (recording step {number}); another run_id records it again"
        assert (status(path)["answer"], status(path)["run_id"]) == (text, "a")
        assert any(text in record.getMessage() for record in caplog.records)
        write_control_file(path, start_step=1, steps=1, run_id="past")
        step_until(profiler, lambda: "is in the past" in status(path)["answer"])
        assert sum("is in the past" in record.getMessage() for record in caplog.records) == 1
        write_control_file(path, start_step="next", steps=1, run_id="a")
        step_until(profiler, lambda: status(path)["answer"] == text)
        write_control_file(path, start_step=1, steps=1, run_id="past")
        step_until(profiler, lambda: "is in the past" in status(path)["answer"])
        write_control_file(path, start_step=100_000, steps=1, run_id="far")
        step_until(profiler, lambda: status(path)["answer"] == "recording step 100000")
    assert [facts(window)["run_id"] for window in windows] == ["a", "b"]
    with controlled(tmp_path) as (profiler, windows, path):
        assert [one.first for one in profiler.armed()] == [100_000], "the first profiler did not come to it"
        write_control_file(path, start_step="next", steps=1, run_id="a")
        step_until(profiler, lambda: status(path)["answer"] == text)
        go_on(profiler, 20)
        write_control_file(path, start_step=profiler.step_num + 500, steps=1, run_id="past")
        step_until(profiler, lambda: windows)
    assert [facts(window)["run_id"] for window in windows] == ["past"]


@pytest.mark.checklist("B18")
def test_ranks_that_do_not_agree_name_the_one_that_was_asked(tmp_path: Path) -> None:
    """Rank 0 writes the status file, and does not record: that is no refusal."""
    with controlled(tmp_path, rank=0, control=Control(path=str(tmp_path), poll=0.01, agree=False)) as (
        profiler,
        _,
        path,
    ):
        write_control_file(path, start_step="next", steps=1, ranks="1")
        step_until(profiler, lambda: "answer" in status(path))
        assert status(path)["answer"] == "asked of ranks 1, not of rank 0; each goes by its own steps"


@pytest.mark.checklist("A25", "A34", "F1", "F5")
def test_the_file_changes_while_a_window_is_open(tmp_path: Path) -> None:
    """Neither nonsense nor other numbers nor its removal end the window; only the commands do."""
    with controlled(tmp_path) as (profiler, windows, path):
        write_control_file(path, start_step="next", steps=100_000, run_id="long")
        step_until(profiler, lambda: profiler.current_action.records)
        first = profiler.armed()[0].first
        assert first is not None
        for content in (b"{", b"[]", b'{"start_step": null}', b'{"stop_step": -1}'):
            path.write_bytes(content)
            go_on(profiler, 20)
        path.unlink()
        go_on(profiler, 20)
        assert windows == [] and profiler.current_action.records
        write_control_file(path, command="extend", steps=100)
        step_until(profiler, lambda: "extend" in status(path)["request"])
        assert (
            status(path)["answer"] == f"recording steps {first}-{first + 100_099} (extended to step {first + 100_099})"
        )
        write_control_file(path, command="abort")
        # The file of the status is written next to the window.
        step_until(profiler, lambda: windows and status(path)["answer"] == "1 window ended")
    assert not windows[0].complete
    assert windows[0].diagnostics[0].endswith("the control file says so")
    assert facts(windows[0])["name"] == f"rank0_start{first}_stop{windows[0].steps[-1].number}_long"


def test_the_first_content_counts_before_the_first_step(tmp_path: Path) -> None:
    """A request that is in the file at the start is armed when step 0 begins."""
    write_control_file(tmp_path / "stepscope.json", start_step=0, steps=2)
    with controlled(tmp_path) as (profiler, windows, _):
        step_until(profiler, lambda: windows)
    assert [step.number for step in windows[0].steps] == [0, 1]


@pytest.mark.checklist("A19")
def test_which_rank_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher's variables decide, a number of the machine alone last; text that is no number is ignored."""
    names = ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK_ID", "LOCAL_RANK"]
    for name in [*names, "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "RANK_SIZE"]:
        monkeypatch.delenv(name, raising=False)
    assert rank_from_environment() == (None, None)
    for number, name in reversed(list(enumerate(names))):
        monkeypatch.setenv(name, str(number))
        assert rank_from_environment()[0] == number
    monkeypatch.setenv("RANK", "zero")
    assert rank_from_environment()[0] == 1


@pytest.mark.checklist("A19")
def test_the_rank_of_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no launcher has set the rank, the process group does."""
    torch = require("torch")
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK_ID", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    if not torch.distributed.is_available():
        missing("torch.distributed", "Install a build of torch that has it, as those of PyPI do.")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert rank_from_environment() == (0, 1)
    finally:
        torch.distributed.destroy_process_group()
    assert rank_from_environment()[0] is None


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """The loop goes on; diagnostics say what is not watched."""
    (tmp_path / "file").write_text("")
    with controlled(tmp_path, control=Control(path=str(tmp_path / "file" / "x.json"), poll=0.01)) as (profiler, _, _):
        step_until(profiler, lambda: profiler.step_num >= 3)
    assert any("is not created" in note for note in profiler.diagnostics())


@pytest.mark.checklist("A23")
def test_a_directory_that_others_may_open_is_not_used(tmp_path: Path) -> None:
    """A request is refused with the reason; once the directory is closed to others, ranks meet there."""
    settings = Control(path=str(tmp_path), poll=0.01, job="job", patience=0.5)
    directory = JobDirectory(tmp_path / "stepscope.json", "job").path
    directory.mkdir()
    directory.chmod(0o755)
    with controlled(tmp_path, rank=0, world_size=2, control=settings) as (profiler, windows, path):
        write_control_file(path, start_step="next", steps=1, run_id="refused")
        step_until(profiler, lambda: f"{directory} is open to other users" in status(path).get("answer", ""))
        directory.chmod(0o700)
        write_control_file(path, start_step="next", steps=1, run_id="followed")
        step_until(profiler, lambda: windows)
    assert [facts(window)["run_id"] for window in windows] == ["followed"]


def test_ranks_without_a_world_size_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They agree with no others; a process that is alone hears nothing of that."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for rank, later, noted in ((1, "", True), (None, "2", True), (None, "", False), (None, "1", False)):
        with controlled(tmp_path, rank=rank) as (profiler, _, _):
            if later:
                monkeypatch.setenv("WORLD_SIZE", later)
            notes = [note for note in profiler.diagnostics() if "no world size was known" in note]
            assert bool(notes) == noted, (rank, later)
        monkeypatch.delenv("WORLD_SIZE", raising=False)
    with controlled(tmp_path, rank=0, world_size=1) as (profiler, _, _):
        assert not any("no world size" in note for note in profiler.diagnostics())


def test_children_of_multiprocessing_are_reported(tmp_path: Path) -> None:
    """As `torch.multiprocessing.spawn` makes ranks, which join a process group later."""
    context = multiprocessing.get_context("spawn")
    asked: Any = context.SimpleQueue()
    child = context.Process(target=_diagnose, args=(str(tmp_path), asked))
    child.start()
    assert "no world size was known when trace() was called" in asked.get()
    child.join()


def _diagnose(directory: str, asked: Any) -> None:
    with stepscope.trace(control=Control(path=directory), output_dir=directory, options=QUICK) as profiler:
        asked.put(" ".join(profiler.diagnostics()))


def test_ranks_as_people_write_them() -> None:
    """Numbers and ranges; each message has what is wrong."""
    assert ranks_from("0,3-5") == (0, 3, 4, 5)
    assert ranks_from(" 7 , 1-2,1") == (1, 2, 7)
    assert ranks_from("all") is None and ranks_from(None) is None
    assert ranks_text((5, 0, 3, 4)) == "0,3-5" and ranks_text(None) == "all"
    for text, fact in (
        ("", "''"),
        ("1-", "'1-'"),
        ("5-3", "3-5"),
        ("a", "'a'"),
        ("0-9999999", "10,000,000"),
    ):
        with refused(ValueError, "ranks", fact):
            ranks_from(text)


@pytest.mark.checklist("A21", "A23", "F9")
def test_directories_of_jobs(tmp_path: Path) -> None:
    """Named after file, job and user, never by a clock; one of others, or open to them, is not used."""
    one, two = JobDirectory(tmp_path / "c.json", "one"), JobDirectory(tmp_path / "c.json", "two")
    again, elsewhere = JobDirectory(tmp_path / "c.json", "one"), JobDirectory(tmp_path / "d.json", "one")
    assert one.path == again.path and len({one.path, two.path, elsewhere.path}) == 3
    one.make()
    assert one.path.stat().st_mode & 0o777 == 0o700
    one.path.chmod(0o755)
    with refused(ControlError, "755"):
        one.make()
    two.path.symlink_to(one.path)
    with refused(ControlError, tmp_path):
        two.make()
    if os.geteuid() == 0:
        elsewhere.path.mkdir(0o700)
        os.chown(elsewhere.path, 12345, -1)
        with refused(ControlError, "12345"):
            elsewhere.make()


@pytest.mark.checklist("A20")
def test_control_goes_on_while_nothing_is_recorded(tmp_path: Path) -> None:
    """One daemon thread, from the start to the close, and none after it."""
    with controlled(tmp_path) as (profiler, windows, path):
        threads = [thread for thread in threading.enumerate() if thread.name == "stepscope control"]
        assert len(threads) == 1 and threads[0].daemon
        profiler.stop()
        write_control_file(path, start_step="next", steps=1, run_id="stopped")
        deadline = time.monotonic() + 60
        while not profiler.armed() and time.monotonic() < deadline:
            time.sleep(0.01)
        profiler.start()
        step_until(profiler, lambda: windows)
    assert not any(thread.name.startswith("stepscope control") for thread in threading.enumerate())


def test_closing_does_not_wait_for_a_stalled_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each profiler; their threads all wait for the one that reads."""
    stalled, goes_on = threading.Event(), threading.Event()

    def slow(*args: Any) -> Any:
        if threading.current_thread().name == "stepscope control":
            stalled.set()
            goes_on.wait()
        return read_bounded(*args)

    with contextlib.ExitStack() as profilers:
        for number in range(2):
            profilers.enter_context(controlled(tmp_path / str(number)))
        monkeypatch.setattr(watched_file, "read_bounded", slow)
        assert stalled.wait(60)
        began = time.monotonic()
        profilers.close()
        took = time.monotonic() - began
    threads = [thread for thread in threading.enumerate() if thread.name == "stepscope control"]
    goes_on.set()
    for thread in threads:
        thread.join(60)
    assert threads and 2 <= took < 6


SIGNALLED = """
import asyncio, os, signal, subprocess, sys, time
import stepscope
windows = []
control = stepscope.Control(signal=True, signal_steps=3)
with stepscope.trace(control=control, output_dir=sys.argv[1], on_trace_ready=windows.append) as profiler:
    print("ready", flush=True)
    end = time.monotonic() + 60
    while not windows and time.monotonic() < end:
        with stepscope.span("work"):
            time.sleep(0.001)
        profiler.step()
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def harmless(*, ignored):
    os.kill(os.getpid(), signal.SIGUSR2)
    assert (signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN) is ignored
    child = subprocess.run(["sh", "-c", "kill -USR2 $$"])
    assert child.returncode == (0 if ignored else -signal.SIGUSR2)

harmless(ignored=False)
async def again(number):
    async with stepscope.trace(control=control, output_dir=f"{sys.argv[1]}/{number}"):
        assert callable(signal.getsignal(signal.SIGUSR2))
asyncio.run(again(1))
harmless(ignored=False)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
asyncio.run(again(2))
harmless(ignored=True)
print([len(window.steps) for window in windows], windows[0].metadata["armed"]["trigger"])
"""


def test_sigusr2_arms_a_window(tmp_path: Path) -> None:
    """From the next step on; a forked child does not die of it. After the end it does nothing, and in programs that are started
    then what it did before."""
    with launched([sys.executable, "-c", SIGNALLED, str(tmp_path)], cwd=ROOT, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR2)
        assert process.communicate(timeout=60)[0] == "[3] signal\n"
    assert process.returncode == 0


def test_sigusr2_that_the_program_handles_is_left_alone(tmp_path: Path) -> None:
    """Diagnostics say that nothing is armed by it."""
    came: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: came.append(number))
    try:
        with controlled(tmp_path, control=Control(signal=True)) as (profiler, _, _):
            signal.raise_signal(signal.SIGUSR2)
        assert came == [signal.SIGUSR2]
        assert any("the program has a handler of its own" in note for note in profiler.diagnostics())
    finally:
        signal.signal(signal.SIGUSR2, before)
