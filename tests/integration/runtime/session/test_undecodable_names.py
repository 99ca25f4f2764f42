"""Bytes that are not UTF-8 in paths, names and variables of the environment: everything is recorded, and can be read."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.runtime.files.encoding import exact_json, from_exact_json, json_bytes, msgpack_bytes
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.session.note import SessionNote
from tests.support.journals import events_of

STEPSCOPE = [sys.executable, "-m", "stepscope"]

EVERYTHING = """
import json
import multiprocessing
import os
import sys
import threading
import stepscope as sc

def child():
    sc.join()
    sc.instant("in a child")

if __name__ == "__main__":
    place = sys.argv[1]
    exporters = [
        sc.ChromeTraceExporter(f"{place}/t.json"),
        sc.ChromeTraceExporter(f"{place}/t.json.gz"),
        sc.PerfettoExporter(f"{place}/t.pftrace"),
        sc.tensorboard_trace_handler(f"{place}/tb", worker_name="worker\\udcff"),
        sc.exporters.ConsoleExporter(),
        sc.CollectorExporter("ws://127.0.0.1:9"),
    ]
    options = sc.Options(session_dir=place)
    with sc.trace(
        name="name\\udcff",
        output_dir=sys.argv[2] if len(sys.argv) > 2 else None,
        exporters=exporters,
        on_trace_ready=lambda window: window.export(f"{place}/window.json"),
        metadata={"key\\udcff": "value\\udcff"},
        control=f"{place}/control",
        rank=0,
        world_size=1,
        schedule=sc.schedule(wait=0, warmup=0, active=10),
        options=options,
    ) as profiler:
        thread = threading.Thread(target=sc.instant, args=("in a thread",), name="thread\\udcff")
        thread.start()
        thread.join()
        process = multiprocessing.get_context("spawn").Process(target=child, name="child\\udcff")
        process.start()
        process.join()
        with sc.span("span\\udcff", **{"argument\\udcff": "text\\udcff"}):
            pass
        profiler.add_metadata("later\\udcff", "value")
        profiler.step()
    profiler.raise_errors()
    assert not profiler.audit(), profiler.audit()
    print(profiler.report(), profiler.summary(), *profiler.saved())
    json.loads(profiler.report().json())
"""

KILLED = """
import os
import sys
import stepscope as sc

profiler = sc.trace(output_dir=sys.argv[1] + "/killed", exporters=[sc.ChromeTraceExporter(sys.argv[1] + "/killed.json")])
profiler.start()
for _ in range(3):
    with sc.span("work"):
        pass
    profiler.step()
os.kill(os.getpid(), 9)
"""


def names_in(journal: Path) -> set[str]:
    """Names of its events."""
    return {event[2] for event in events_of(journal)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory whose name is not UTF-8."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/not-\xff\xfe-utf8"))
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"the file system takes no such name: {error}")
    return path


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a command whose standard output refuses what is not UTF-8."""
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict", **variables}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, timeout=90)


@pytest.mark.parametrize("inside", [False, True], ids=["named", "working directory"])
def test_every_output(inside: bool, place: Path) -> None:
    """All outputs are complete, the accounts agree, and the report can be printed."""
    program = place / "program-\udcff.py"
    program.write_text(EVERYTHING)
    where = (".",) if inside else (str(place), str(place / "run"))
    ended = run(sys.executable, program, *where, cwd=place, STEPSCOPE_JOB="job\udcff")
    assert ended.returncode == 0, ended.stderr.decode(errors="replace")
    for read in (
        (place / "t.json").read_bytes,
        gzip.GzipFile(place / "t.json.gz").read,
        (place / "window.json").read_bytes,
    ):
        names = {event.get("name") for event in json.loads(read())}
        assert {"span\\udcff", "in a thread", "in a child"} <= names
    assert list((place / "tb").iterdir()) and (place / "t.pftrace").stat().st_size
    (journal,) = place.rglob("journal")
    assert {"span\\udcff", "in a thread", "in a child"} <= names_in(journal)
    with JournalReader(journal) as reader:
        assert reader.run is not None and reader.run.name == "name\\udcff"
    assert not list(place.glob("stepscope-*"))


def test_commands(place: Path) -> None:
    """`stepscope run` and what is made of its results, with such a program, arguments and directories."""
    program = place / "program-\udcff.py"
    program.write_text("import stepscope, sys\nwith stepscope.span('work'): pass\nprint(ascii(sys.argv[1]))\n")
    ended = run(*STEPSCOPE, "run", "--out", place / "run", program, "argument\udcff", cwd=place)
    assert ended.returncode == 0 and b"'argument\\udcff'" in ended.stdout, ended.stderr
    assert run(*STEPSCOPE, "run", "--keep-last", "2", "program-\udcff.py", "x", cwd=place).returncode == 0
    for command in (("convert", "run", "made.json"), ("analyse", "run"), ("merge", "run", "--out", "merged.json")):
        ended = run(*STEPSCOPE, *(place / each if each == "run" else each for each in command), cwd=place)
        assert ended.returncode == 0, ended.stderr


def test_recovery_and_the_environment(place: Path) -> None:
    """The note of a killed run leads to its session and files; STEPSCOPE_OPTIONS may name such a directory."""
    options = json.dumps({"options": {"session_dir": "PLACE"}}).replace("PLACE", str(place))
    ended = run(sys.executable, "-c", KILLED, str(place), cwd=place, STEPSCOPE_OPTIONS=options)
    assert ended.returncode == -9, ended.stderr
    assert list(place.glob("stepscope-*"))
    ended = run(*STEPSCOPE, "recover", place / "killed", cwd=place)
    assert ended.returncode == 0, ended.stderr
    journals = place.glob("killed/journal*")  # the process may have been killed before it had one of its own
    assert "work" in set().union(*map(names_in, journals))


def test_records() -> None:
    """Notes that name paths are exact; what people read has the bytes spelled out."""
    note = SessionNote(directory="/tmp/\udcff", pid=1, start_time=2, outputs=("/tmp/ü\udcfe",))
    assert from_exact_json(exact_json(note), SessionNote) == note
    assert json_bytes({"a\udcff": ["b\udcfe", b""]}) == b'{"a\\\\udcff":["b\\\\udcfe",""]}'
    assert msgpack_bytes((b"\xff", "\udcff", 1)) == b"\x93\xc4\x01\xff\xa6\\udcff\x01"
