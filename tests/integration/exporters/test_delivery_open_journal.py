"""A journal that a process still writes is not delivered, wherever that process runs."""

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
import pytest

from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.exporters.stream import delivery
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.session import file_lock
from tests.support.basics import ROOT, missing
from tests.support.collectors import collecting, deliver, free_port, journals
from tests.support.collectors import spans as spans_of
from tests.support.messages import refused

PROGRAM = textwrap.dedent(
    """
    import os, random, sys
    import stepscope as sc
    url, directory, journal = sys.argv[1:]
    exporter = sc.CollectorExporter(url, settings=sc.exporters.LinkSettings(timeout=0.5))
    options = sc.Options(close_timeout=2.0, journal=journal == "journal")
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
"""A process that streams to nobody, in two parts; before each next thing it waits for a line."""
SPANS = {"first": 10000, "second": 10000}
JOURNALS = {"journal": "journal", "buffer": "unsent/buffer"}


@contextmanager
def streaming(directory: Path, journal: str, **environment: str) -> Generator[subprocess.Popen[str]]:
    """Runs it among processes of its own, as in a container that shares the run's files and no memory."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        missing("the right to make a process namespace", "Run the tests as root on Linux.")
    command = [sys.executable, "-c", PROGRAM, f"ws://127.0.0.1:{free_port()}", str(directory), journal]
    started = subprocess.Popen(
        [*unshare, "sh", "-c", 'mount -t tmpfs none /dev/shm && "$@"; true', "sh", *command],
        cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with started as process:
        try:
            yield process
        finally:
            process.kill()


def expect(process: subprocess.Popen[str], line: str) -> None:
    """Waits for a line of the program."""
    assert process.stdout is not None
    assert process.stdout.readline() == f"{line}\n"


def go_on(process: subprocess.Popen[str]) -> None:
    """Lets the program go on."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("journal", JOURNALS)
async def test_a_process_of_another_container_is_left_alone(tmp_path: Path, journal: str) -> None:
    """Its number says nothing here; the lock on its journal does. When it has closed, the journal is delivered."""
    run = tmp_path / "run"
    path = run / JOURNALS[journal]
    async with collecting(tmp_path / "c") as running:
        url = running.url
        with streaming(run, journal) as process:
            expect(process, "first")
            before = path.read_bytes()
            for options in ((), ("--force",)):
                living = await asyncio.to_thread(deliver, run, url, *options)
                assert living.returncode == 1 and "is being written" in living.stderr, living.stderr
            assert path.read_bytes() == before
            go_on(process)
            expect(process, "second")
            go_on(process)
            expect(process, "closed")
            done = await asyncio.to_thread(deliver, run, url)
            assert done.returncode == 0, done.stderr
            go_on(process)
        (collected,) = journals(tmp_path / "c")
        assert {name: count for name, count in spans_of(collected).items() if name in SPANS} == SPANS
    assert path.exists() == (journal == "journal")


def test_a_process_of_another_machine_is_not_taken_for_dead(tmp_path: Path) -> None:
    """A lock need not be visible from one machine to another: somebody has to say so who knows."""
    writer = JournalWriter(tmp_path / "journal")
    writer.open(msgspec.structs.replace(run_in(tmp_path), clock="another machine", host="node7"))
    writer.write_batch(batch_of(spans(["a", "b"])))
    writer.abandon()
    with refused(ProfilerStateError, "node7", "--force"):
        delivery.complete(tmp_path / "journal")
    done = deliver(tmp_path, "ws://127.0.0.1:1")
    assert done.returncode == 1 and "--force" in done.stderr
    delivery.complete(tmp_path / "journal", force=True)
    delivery.complete(tmp_path / "journal")  # it is complete now
    assert spans_of(tmp_path / "journal") == {"a": 1, "b": 1}


def is_locked(path: Path) -> bool:
    """Whether somebody has a file locked."""
    try:
        os.close(file_lock.lock(path, alone=True, write=True))
    except BlockingIOError:
        return True
    return False


def test_each_segment_is_locked_while_it_is_written(tmp_path: Path) -> None:
    """A closed one is free: it may be copied or deleted."""
    writer = JournalWriter(tmp_path / "journal", segment_bytes=500)
    writer.open(run_in(tmp_path))
    for index in range(5):
        writer.write_batch(batch_of(spans(["a"] * 10), window=index))
        paths = segment_paths(tmp_path / "journal")
        assert [is_locked(path) for path in paths] == [False] * (len(paths) - 1) + [True]
    assert len(segment_paths(tmp_path / "journal")) > 2
    writer.close()
    assert not is_locked(segment_paths(tmp_path / "journal")[-1])


def test_a_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    """A worker that outlives a killed rank is no reason not to deliver."""
    path = tmp_path / "lock"
    path.touch()
    descriptor = file_lock.acquire(path)
    assert is_locked(path)
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
        file_lock.release(descriptor)
        file_lock.release(descriptor)
        assert is_locked(path) is False
    finally:
        for end in (theirs, begun, begins):
            os.close(end)
        os.waitpid(child, 0)
