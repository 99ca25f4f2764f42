"""A spool is delivered only when nobody can write there any more, and of one where somebody does nothing is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from stepscope.exporters.collector import delivery
from stepscope.exporters.collector.spool import DIRECTORY, LOCK, NOTE, SUFFIX, Spool, StreamNote
from stepscope.runtime.control.agreement.peer import this_machine
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.session import file_lock
from tests.integration.exporters.test_collector_exporter import connecting
from tests.support.basics import ROOT, missing
from tests.support.collectors import COMMAND, collecting, free_port, journals
from tests.support.collectors import spans as spans_of
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.streams import frames
from tests.unit.exporters.test_collector_backlog import note, piece

PROGRAM = textwrap.dedent(
    """
    import os, random, sys
    import stepscope as sc
    url, directory = sys.argv[1:]
    exporter = sc.CollectorExporter(url, settings=sc.exporters.LinkSettings(timeout=0.5, memory_bytes=1 << 16))
    options = sc.Options(close_timeout=2.0, journal=False)
    profiler = sc.trace(exporters=[exporter], output_dir=directory, options=options)
    profiler.start()
    for part in ("first", "second"):
        for number in range(10000):
            with sc.span(part, i=random.getrandbits(60)):
                pass
        profiler.flush()
        print(part, flush=True)
        sys.stdin.readline()
    if os.environ.get("END") == "killed":
        os.kill(os.getpid(), 9)
    profiler.close()
    print("closed", flush=True)
    sys.stdin.readline()
    """
)
"""A process that streams to nobody, in two parts; before each next thing it waits to be told."""
SPANS = {"first": 10000, "second": 10000}


@contextmanager
def streaming(directory: Path, **environment: str) -> Generator[subprocess.Popen[str]]:
    """Runs it among processes of its own, as in a container that shares the run's files and no memory."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        missing("the right to make a process namespace", "Run the tests as root on Linux.")
    command = [sys.executable, "-c", PROGRAM, f"ws://127.0.0.1:{free_port()}", str(directory)]
    started = subprocess.Popen(
        [*unshare, "sh", "-c", 'mount -t tmpfs none /dev/shm && "$@"; true', "sh", *command],
        cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with started as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str], what: str) -> None:
    """Waits until it says so."""
    assert process.stdout is not None
    assert process.stdout.readline() == f"{what}\n"


def go_on(process: subprocess.Popen[str]) -> None:
    """Tells it to."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def deliver(place: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    command = [*COMMAND, "deliver", str(place), "--url", url, *options]
    return run_to_end(command, timeout=60, server="command")


def notes(directory: Path) -> list[Path]:
    return list(directory.glob(f"{DIRECTORY}/*/{NOTE}"))


def of_another_machine(directory: Path, **changes: object) -> None:
    """Lets the notes be those of a process of a machine that cannot be looked at."""
    for path in notes(directory):
        made = msgspec.json.decode(path.read_bytes(), type=StreamNote)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(made, machine="elsewhere/pid:[1]", **changes)))


def let_go(directory: Path) -> None:
    """Releases what this process holds there, as its end would."""
    for descriptor in list(file_lock._held):  # pyright: ignore[reportPrivateUsage]
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(directory):
            file_lock.release(descriptor)


async def test_a_process_of_another_container_is_left_alone(tmp_path: Path) -> None:
    """Its number says nothing here; while it streams its spool is its own, and when it has closed that is delivered."""
    run = tmp_path / "run"
    async with collecting(tmp_path / "c") as running:
        url = running.url
        with streaming(run) as process:
            said(process, "first")
            before = sorted(run.rglob(f"*{SUFFIX}"))
            assert before
            for options in ((), ("--force",)):
                refused = await asyncio.to_thread(deliver, run, url, *options)
                assert refused.returncode == 1 and "still runs" in refused.stderr, refused.stderr
            assert sorted(run.rglob(f"*{SUFFIX}")) == before
            go_on(process)
            said(process, "second")
            go_on(process)
            said(process, "closed")
            done = await asyncio.to_thread(deliver, run, url)
            assert done.returncode == 0, done.stderr
            go_on(process)
        (journal,) = journals(tmp_path / "c")
        assert {name: count for name, count in spans_of(journal).items() if name in SPANS} == SPANS
    assert not (run / DIRECTORY).exists()


def test_a_killed_process_of_another_container_is_known_to_be_dead(tmp_path: Path) -> None:
    """The kernel has let go of what it held."""
    with streaming(tmp_path, END="killed") as process:
        for part in SPANS:
            said(process, part)
            go_on(process)
        process.wait()
    (parcel,) = delivery.parcels(tmp_path)
    assert parcel.events
    parcel.close()


def test_a_process_of_another_machine_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Unless it has closed its spool, or somebody says so who knows."""
    Spool(tmp_path, 1 << 20, note()).append(piece(0, 3, 40))
    let_go(tmp_path)
    of_another_machine(tmp_path)
    with refused(ProfilerStateError, "pid 0", "--force"):
        delivery.parcels(tmp_path)
    done = deliver(tmp_path, "ws://127.0.0.1:1")
    assert done.returncode == 1 and "--force" in done.stderr
    forced = deliver(tmp_path, f"ws://127.0.0.1:{free_port()}", "--force", "--timeout", "0.5")
    assert "does not take" in forced.stderr
    of_another_machine(tmp_path, closed=True)
    (parcel,) = delivery.parcels(tmp_path)
    assert [(piece.first, piece.count) for piece in parcel.pieces] == [(0, 3)]
    parcel.close()


def test_a_spool_that_is_kept_says_that_it_is_closed(tmp_path: Path) -> None:
    """So it can be delivered from anywhere, though its process goes on."""
    spool = Spool(tmp_path, 1 << 20, msgspec.structs.replace(note(os.getpid()), machine=this_machine()))
    spool.append(piece(0, 3, 40))
    with refused(ProfilerStateError, "itself"):
        delivery.parcels(tmp_path)
    for _ in range(2):
        spool.close()
        (parcel,) = delivery.parcels(tmp_path)
        parcel.close()


async def test_what_comes_while_it_is_delivered_stays(tmp_path: Path) -> None:
    """A process that was taken for dead writes on: what was not delivered is, the next time."""
    spool = Spool(tmp_path / "run", 1 << 20, note())
    spool.append(piece(0, 3, 40))
    let_go(tmp_path / "run")
    (parcel,) = delivery.parcels(tmp_path / "run", force=True)
    spool.append(piece(3, 2, 40))  # into the same segment
    async with collecting(tmp_path / "c") as running:
        await delivery.deliver(parcel, connecting(running.url), 20.0)
        parcel.close()
        (one,) = (tmp_path / "run").rglob(f"*{SUFFIX}")
        assert notes(tmp_path / "run")
        (parcel,) = delivery.parcels(tmp_path / "run", force=True)
        spool.append(piece(7, 2, 40))  # into another one
        await delivery.deliver(parcel, connecting(running.url), 20.0)
        parcel.close()
        (other,) = (tmp_path / "run").rglob(f"*{SUFFIX}")
        assert other != one
        (parcel,) = delivery.parcels(tmp_path / "run", force=True)
        await delivery.deliver(parcel, connecting(running.url), 20.0)
        parcel.close()
        assert running.journal().read_bytes().endswith(frames(0, 5) + frames(7, 2))
    assert not (tmp_path / "run" / DIRECTORY).exists()


def test_a_child_does_not_keep_what_its_parent_held(tmp_path: Path) -> None:
    """A worker that outlives a killed rank is no reason not to deliver."""
    path = tmp_path / LOCK
    path.touch()
    held = file_lock.hold(path)
    assert file_lock.is_held(path)
    (ours, theirs), (begun, begins) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(theirs)
        os.write(begins, b"!")
        os.read(ours, 1)
        os._exit(0)
    os.close(ours)
    os.read(begun, 1)
    try:
        file_lock.release(held)
        file_lock.release(held)
        assert file_lock.is_held(path) is False
    finally:
        for end in (theirs, begun, begins):
            os.close(end)
        os.waitpid(child, 0)
    assert file_lock.is_held(tmp_path / "missing") is None
