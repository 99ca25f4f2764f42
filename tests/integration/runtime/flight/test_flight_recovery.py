"""A flight recorder that is killed: `recover` brings back its last steps, whatever it was doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.recovery.recover import Recovery, recover
from tests.support.killed_programs import batches, names, open_names, windows
from tests.support.launch import launched, run_to_end

START = """
import os, random, signal, sys, threading, time
import stepscope as sc
profiler = sc.trace(output_dir=sys.argv[1], name="flying", keep_last=sc.FlightRecorder(steps=5, triggers=(), after=AFTER),
    options=sc.Options(session_dir=sys.argv[2], drain_interval=0.02, ring_slots=SLOTS), rank=None)
profiler.start()
def step(count=1, each=lambda: None):
    for _ in range(count):
        with sc.span("work", step=profiler.step_num):
            each()
        profiler.step()
def die(how=signal.SIGKILL):
    os.kill(os.getpid(), how)
"""


class Flight:
    """A program that kills itself, and what it leaves."""

    def __init__(self, tmp_path: Path) -> None:
        self.run = tmp_path / "run"
        self.session = tmp_path / "session"
        self.session.mkdir()

    def execute(self, program: str, *, how: int = signal.SIGKILL, slots: int = 65_536, after: int = 0) -> Flight:
        """Runs it."""
        source = START.replace("SLOTS", str(slots)).replace("AFTER", str(after)) + textwrap.dedent(program)
        command = [sys.executable, "-c", source, str(self.run), str(self.session)]
        result = run_to_end(command, timeout=60)
        assert result.returncode == -how, result.stderr
        return self

    def step_files(self) -> list[Path]:
        """Files of the stored steps."""
        return sorted(self.session.glob("*/kept-*"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_the_last_steps_come_back(tmp_path: Path, how: int) -> None:
    """Five steps and the one under way, its open spans marked, and those that were cut at the begin; nothing older, though the rings
    may have it."""
    flight = Flight(tmp_path).execute(
        f"""
        early = sc.span("early"); early.__enter__(); step(198); early.__exit__(None, None, None); step(2)
        with sc.span("outer"):
            with sc.span("inner"): pass
            hanging = sc.span("hanging"); hanging.__enter__()
            sc.counter("loss", 3.0)
            die({int(how)})
        """,
        how=how,
    )
    recovered = recover(flight.run)
    (window,) = windows(recovered.journal)
    assert [step.number for step in window.steps] == [195, 196, 197, 198, 199, 200]
    assert window.profiler == "flying" and not window.complete
    assert names(recovered.journal)["work"] == 5 and names(recovered.journal)["inner"] == 1
    assert open_names(recovered.journal) == ["outer", "hanging", "ProfilerStep#200"]
    assert names(recovered.journal, Kind.COUNTER) == {"loss": 1}
    cut = [
        event for batch in batches(recovered.journal) for event in batch.events if event["flags"] & int(Flag.CLIPPED)
    ]
    assert [(strings.name_of(event), event["ts"]) for event in cut if event["dur"]] == [("early", window.start_ns)]


FLOOD = """
def flood():
    for _ in range(20):
        for _ in range(100): sc.instant("tick")
        time.sleep(0.002)
step(8, flood)
assert profiler.flush(50)
"""
CLOSING = """
def hold(event, arguments):
    # The journal has nothing of the window that is saved, while all others go on to close.
    if event == "open" and str(arguments[0]).endswith(".journal.part"):
        time.sleep(1)
        die()
sys.addaudithook(hold)
profiler.save("last")
profiler.close()
"""


@pytest.mark.parametrize("end", ["die()", CLOSING], ids=["recording", "closing"])
def test_losses_of_rings_are_counted(tmp_path: Path, end: str) -> None:
    """The rings were overwritten many times since the first of the steps; the stored blocks have them, each once, until the
    run has closed."""
    flight = Flight(tmp_path).execute(FLOOD + end, slots=256)
    recovered = recover(flight.run)
    found = names(recovered.journal, Kind.INSTANT)
    dropped = sum(
        int(batch.events["id"][batch.events["kind"] == Kind.GAP].sum()) for batch in batches(recovered.journal)
    )
    assert found["tick"] + dropped == 5 * 2000
    assert found["tick"] > 4 * 256
    ids = [int(i) for b in batches(recovered.journal) for i in b.events["id"][b.events["kind"] == int(Kind.SPAN)] if i]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("written", [True, False])
def test_killed_while_a_window_is_saved(tmp_path: Path, written: bool) -> None:
    """The window that was open gets a name of its own and can be read, if anything was written of it; the last steps come back
    next to it."""
    flight = Flight(tmp_path).execute(
        """
        step(20)
        profiler.save("first")
        part = sys.argv[1] + "/windows/000000.journal.part"
        while not os.path.exists(part) or os.path.getsize(part) < 100:
            step(1)
            time.sleep(0.05)
        step(2)
        die()
        """,
        after=1000,
    )
    if not written:
        os.truncate(flight.run / "windows" / "000000.journal.part", 0)
    recovered = recover(flight.run)
    part = flight.run / "windows" / "000000-unfinished.journal"
    assert any(str(part) in note for note in recovered.notes) == part.exists() == written
    assert not list((flight.run / "windows").glob("*.part"))
    (window,) = windows(recovered.journal)
    assert window.index == 1 and len(window.steps) == 6
    assert names(recovered.journal)["work"] == 5


def test_damaged_files_of_stored_steps(tmp_path: Path) -> None:
    """Nothing in them is believed: damaged parts are passed over and reported, the rest comes back."""
    flight = Flight(tmp_path).execute(
        'step(200, lambda: [sc.instant("x") for _ in range(40)]); assert profiler.flush(50); die()'
    )
    (path, *_) = flight.step_files()
    data = path.read_bytes()
    (tmp_path / "elsewhere").write_bytes(data)

    def hole() -> None:
        path.write_bytes(data)
        os.truncate(path, 1 << 40)

    harms: dict[str, Callable[[], object]] = {
        "truncated": lambda: path.write_bytes(data[: len(data) // 2]),
        "garbage": lambda: path.write_bytes(os.urandom(len(data))),
        "flipped": lambda: path.write_bytes(bytes([data[0] ^ 1]) + data[1:500] + b"\xff" * 64 + data[564:]),
        "hole": hole,
        "link": lambda: path.symlink_to(tmp_path / "elsewhere"),
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "empty": path.touch,
    }
    for harm, do in harms.items():
        (path.rmdir if path.is_dir() else path.unlink)()
        do()
        recovered = recover(flight.run, tmp_path / harm)
        assert any(path.name in note for note in recovered.missing) or harm == "empty", harm
        # The rings have the last steps, too, as so few events did not overwrite them.
        assert names(recovered.journal)["work"] == 5, harm


def test_recovering_by_force_leaves_files_of_a_running_process_alone(tmp_path: Path) -> None:
    """A window that is being saved by a process that lives keeps its file."""
    run, session = tmp_path / "run", tmp_path / "session"
    session.mkdir()
    program = """
step(20); profiler.save("first")
while not os.path.exists(sys.argv[1] + "/windows/000000.journal.part"):
    step(1); time.sleep(0.05)
print("ready", flush=True)
sys.stdin.read()
profiler.close()
"""
    source = START.replace("SLOTS", "1024").replace("AFTER", "1000") + program
    command = [sys.executable, "-c", source, str(run), str(session)]
    with launched(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        recovered = recover(run, tmp_path / "copy", force=True)
        assert len(windows(recovered.journal)[0].steps) == 6
        process.communicate("", timeout=60)
    assert process.returncode == 0
    (path,) = (run / "windows").iterdir()
    assert path.name == "000000-step20-first.journal"


def test_session_of_two_profilers(tmp_path: Path) -> None:
    """Each run's directory recovers its own steps."""
    flight = Flight(tmp_path).execute(
        """
        other = sc.trace(output_dir=sys.argv[1] + "2", name="other", keep_last=2)
        other.start()
        for _ in range(30):
            step(1)
            other.step()
        die()
        """
    )
    one, two = recover(flight.run), recover(Path(f"{flight.run}2"))
    assert [step.number for step in windows(one.journal)[0].steps] == [25, 26, 27, 28, 29, 30]
    assert [step.number for step in windows(two.journal)[0].steps] == [28, 29, 30]


def test_removed_with_the_session(tmp_path: Path) -> None:
    """`--remove-session` deletes the stored steps as well."""
    flight = Flight(tmp_path).execute("step(20); assert profiler.flush(50); die()")
    assert flight.step_files()
    recover(flight.run, remove_session=True)
    assert not list(flight.session.iterdir())


def test_nothing_is_left_after_a_normal_end(tmp_path: Path) -> None:
    """The files of the stored steps go with the profiler, not only with the process, also where another one keeps the session."""
    flight = Flight(tmp_path).execute(
        """
        other = sc.trace(output_dir=sys.argv[1] + "2", exporters=[], options=profiler.options)
        other.start(), step(50)
        assert profiler.flush(50)
        profiler.close(), die()
        """
    )
    assert not flight.step_files()
    assert list(flight.session.glob("*/strings"))


BLOCKED = """
from concurrent.futures import ThreadPoolExecutor
blocked = threading.Event()
def block(event, arguments):
    # The loop, in its first drain.
    if event == "open" and "/kept-" in str(arguments[0]):
        blocked.set()
        threading.Event().wait()
sys.addaudithook(block)
"""
SILENT = """
def flood():
    for _ in range(100): sc.instant("tick")
assert blocked.wait(60)
with ThreadPoolExecutor(1) as pool:
    step(20, lambda: pool.submit(flood).result())
    die()
"""
OVERWRITTEN = """
begun, go = threading.Event(), threading.Event()
def nest(depth):
    with sc.span("outer"):
        if depth:
            return nest(depth - 1)
        begun.set()
        go.wait()
        for _ in range(500): sc.instant("tick")
def work():
    nest(40)
    for _ in range(30): sc.instant("tick")
assert blocked.wait(60)
thread = threading.Thread(target=work)
thread.start()
begun.wait()
step(20)
go.set()
thread.join()
step(1)
die()
"""


def recovered_of(tmp_path: Path, options: str, program: str) -> Recovery:
    """The recovery of a program whose loop has never drained its rings, of 64 slots."""
    flight = Flight(tmp_path)
    source = START.replace("SLOTS", f"64, ring_bytes=4096{options}").replace("AFTER", "0")
    source = source.replace("profiler.start()", f"{BLOCKED}profiler.start()") + program
    result = run_to_end([sys.executable, "-c", source, str(flight.run), str(flight.session)], timeout=60)
    assert result.returncode == -signal.SIGKILL, result.stderr
    return recover(flight.run)


def test_events_lost_before_a_long_span_are_counted(tmp_path: Path) -> None:
    """The oldest that a ring has is a span that began long before the last steps, and ended after events of them that are lost."""
    recovered = recovered_of(tmp_path, ", overflow='drop_oldest'", OVERWRITTEN)
    assert [step.number for step in windows(recovered.journal)[0].steps] == [16, 17, 18, 19, 20, 21]
    assert 0 < names(recovered.journal)["outer"] < 41
    assert recovered.dropped >= 500


def test_lost_events_of_a_silent_thread_are_counted(tmp_path: Path) -> None:
    """Its ring was full before the last steps, and has no event of them."""
    recovered = recovered_of(tmp_path, "", SILENT)
    assert [step.number for step in windows(recovered.journal)[0].steps] == [15, 16, 17, 18, 19, 20]
    assert "tick" not in names(recovered.journal, Kind.INSTANT)
    assert recovered.dropped >= 500


KILLED_AT = """
step(3)
changes = 0
def kill(event, arguments):
    # A change of a file, before it is made.
    global changes
    if event in ("os.link", "os.rename", "os.remove") or (event == "open" and arguments[2] & os.O_CREAT):
        changes += 1
        if changes == {number}:
            die()
sys.addaudithook(kill)
profiler.save("mine")
assert profiler.flush(50)
print("saved")
die()
"""


def test_killed_at_any_change_of_a_file_while_a_window_is_saved(tmp_path: Path) -> None:
    """From the first to the last: no file keeps the name that it has while it grows, and each that has its own is whole."""
    number, saved = 0, False
    while not saved:
        number += 1
        place = tmp_path / str(number)
        place.mkdir()
        flight = Flight(place)
        source = START.replace("SLOTS", "1024").replace("AFTER", "0") + KILLED_AT.format(number=number)
        result = run_to_end([sys.executable, "-c", source, str(flight.run), str(flight.session)], timeout=60)
        assert result.returncode == -signal.SIGKILL, result.stderr
        saved = result.stdout == "saved\n"
        recovered = recover(flight.run)
        assert names(recovered.journal)["work"] == 3
        for path in (flight.run / "windows").glob("*"):
            assert path.suffix == ".journal", f"change {number}"
            found = names(path)["work"], len(windows(path))
            assert found == (3, 1) or "unfinished" in path.name, f"change {number}"
    assert number > 6
