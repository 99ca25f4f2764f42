"""Rings of another process: what is in them is not believed, and nothing that is in them does harm."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind
from stepscope.runtime.options import Options
from stepscope.runtime.recording.joined_processes import Worker
from stepscope.runtime.recording.recorder import recorder
from stepscope.runtime.session.directory import parts, read_identity
from tests.support.basics import ROOT
from tests.support.messages import refused
from tests.support.recording import recording, rows_of

LATER = 1 << 62
"""A drain until then drains everything."""
COUNT = 300
MEMBER = f"""
import os, sys
sys.path.append({str(ROOT)!r})
import stepscope as sc
assert sc.join("member")
for number in range({COUNT}):
    with sc.span("work", number=number, text="long " * (number % 40)):
        sc.counter("counter", number)
outer = sc.span("outer").__enter__()
os._exit(0)
"""
HEAD, RESERVE, PRODUCED, TAIL, SERIAL = 64, 72, 80, 128, 136
"""Where these are in a ring's header."""


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the directory of a process that has joined, recorded and ended; nothing of it was drained."""
    with recording():
        session = recorder(Options()).directory
        before = set(parts(session))
        subprocess.run([sys.executable, "-c", MEMBER], check=True)
        (found,) = set(parts(session)) - before
        copy = tmp_path_factory.mktemp("member") / found.name
        shutil.copytree(found, copy)
        copy.chmod(0o700)
    yield copy


def fresh(member: Path, tmp_path: Path) -> Path:
    """Another copy."""
    shutil.rmtree(tmp_path / member.name, ignore_errors=True)
    shutil.copytree(member, tmp_path / member.name)
    return tmp_path / member.name


def attach(directory: Path) -> Worker:
    """The process whose directory it is."""
    return Worker(directory, read_identity(directory))


def put(path: Path, at: int, value: int) -> None:
    """Writes 64 bits into a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack("<Q", value))


def test_an_attached_session_has_all_events(member: Path, tmp_path: Path) -> None:
    """Names, tracks and arguments are this process's, and the accounts are even."""
    worker = attach(fresh(member, tmp_path))
    rows = [row for events, heap in worker.drain(LATER) for row in rows_of(events, heap)]
    spans = [row for row in rows if row.kind is Kind.SPAN]
    assert [(row.name, row.arguments) for row in spans] == [
        ("work", {"number": number, "text": "long " * (number % 40)} if number % 40 else {"number": number, "text": ""})
        for number in range(COUNT)
    ]
    assert [row.value for row in rows if row.kind is Kind.COUNTER] == list(range(COUNT))
    (still_open,) = rows_of(worker.open_spans(_core.now()), b"")
    assert (still_open.name, worker.drain(LATER)) == ("outer", [])
    about = worker.statistics("ended")
    assert (about.name, about.produced, about.drained, about.dropped, about.broken) == ("member", 600, 600, 0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [(HEAD, 0), (HEAD, 1 << 60), (HEAD, (1 << 64) - 1), (PRODUCED, 1 << 60), (PRODUCED, 0), (RESERVE, 1 << 63)],
)
def test_a_header_that_contradicts_itself(member: Path, tmp_path: Path, field: int, value: int) -> None:
    """The ring is let go, which is reported; its readable part is read, and nothing is invented."""
    directory = fresh(member, tmp_path)
    put(directory / "ring-00000", field, value)
    worker = attach(directory)
    drained = sum(len(events) for events, _ in worker.drain(LATER))
    about = worker.statistics("recording")
    assert drained == about.drained + (1 if about.dropped else 0) <= 2 * COUNT
    assert drained == 0 or about.broken == 0
    assert worker.drain(LATER) == [] or not about.broken


def test_a_header_that_goes_back(member: Path, tmp_path: Path) -> None:
    """How far we are is ours to know: what the other process writes there changes nothing."""
    directory = fresh(member, tmp_path)
    worker = attach(directory)
    assert sum(len(events) for events, _ in worker.drain(LATER)) == 2 * COUNT
    put(directory / "ring-00000", TAIL, 0)
    put(directory / "ring-00000", SERIAL, 0)
    assert worker.drain(LATER) == []
    put(directory / "ring-00000", HEAD, 5)
    assert worker.drain(LATER) == []
    assert worker.statistics("recording").broken == 1


def test_without_a_descriptor(member: Path, tmp_path: Path) -> None:
    """A process that has none left drains later, and loses nothing."""
    directory = fresh(member, tmp_path)
    ring = directory / "ring-00000"
    head, _, produced = struct.unpack_from("<QQQ", ring.read_bytes(), HEAD)
    put(ring, HEAD, 0)
    put(ring, PRODUCED, 0)
    rings = _core.Attached(str(directory))
    assert rings.drain(1, LATER)[0] == b""
    put(ring, HEAD, head)
    put(ring, PRODUCED, produced)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert rings.drain(1, LATER)[0] == b""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(rings.drain(1, LATER)[0]) == 2 * COUNT * 64
    assert rings.statistics()["broken"] == 0


def test_files_that_are_no_rings(member: Path, tmp_path: Path) -> None:
    """Links, pipes, directories and short files are no rings; a directory that is none is refused."""
    directory = fresh(member, tmp_path)
    ring = directory / "ring-00000"
    real = directory / "real"
    ring.rename(real)
    for make in (
        lambda: ring.symlink_to(real),
        lambda: os.mkfifo(ring),
        lambda: ring.mkdir(),
        lambda: ring.write_bytes(real.read_bytes()[:4000]),
        lambda: ring.write_bytes(bytes(8192)),
    ):
        make()
        assert attach(directory).drain(LATER) == []
        ring.rmdir() if ring.is_dir() and not ring.is_symlink() else ring.unlink()
    (tmp_path / "link").symlink_to(directory)
    with refused(FormatError, "/link"):
        Worker(tmp_path / "link", read_identity(directory))


def test_an_attached_session_leaves_no_open_files(member: Path, tmp_path: Path) -> None:
    """Descriptors stay open no longer than they are read."""
    directory = fresh(member, tmp_path)

    def open_files() -> list[str]:
        links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [path for path in links if Path(path).is_relative_to(directory)]

    worker = attach(directory)
    worker.drain(LATER)
    assert open_files()
    del worker
    gc.collect()
    assert open_files() == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    acts=st.lists(
        st.tuples(
            st.sampled_from(["ring-00000", "stacks", "strings", "tracks"]),
            st.integers(0, 80_000) | st.integers(0, 160),
            st.binary(min_size=1, max_size=80) | st.just(b"\xff" * 8) | st.just(bytes(64)),
        ),
        min_size=1,
        max_size=6,
    ),
    cut=st.none() | st.integers(4096, 60_000),
)
def test_damage(member: Path, tmp_path: Path, acts: list[tuple[str, int, bytes]], cut: int | None) -> None:
    """A drain of files with any content ends, its events are well formed, and the accounts are even."""
    directory = fresh(member, tmp_path)
    for name, at, junk in acts:
        with (directory / name).open("r+b") as file:
            file.seek(at)
            file.write(junk)
    worker = attach(directory)
    blocks = worker.drain(LATER)
    if cut is not None:
        os.truncate(directory / acts[0][0], cut) if acts[0][0] != "stacks" else None
    blocks += worker.drain(LATER)
    count = 0
    for events, heap in blocks:
        assert (events["ts"] >= 0).all() and (events["dur"] >= 0).all()
        for row in rows_of(events, heap):
            assert row.kind is not Kind.STEP
            count += row.kind is not Kind.GAP
    about = worker.statistics("recording")
    assert about.drained == count
    assert about.produced == about.drained + about.dropped + about.waiting
    rows_of(worker.open_spans(_core.now()), b"")
    assert strings.text(0) == ""
