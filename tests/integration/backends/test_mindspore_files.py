"""Files of MindSpore's own profiler, read into events: names, times, rows, shapes and memory."""

from __future__ import annotations

import sys
import tempfile
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.backends.collecting import CollectingSink
from stepscope.backends.mindspore.backend import MindSporeBackend
from stepscope.backends.mindspore.blocks import Converted, MindSporeTracks, convert, map_clock, read_runs, read_shapes
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import tracks
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import Block, Kind
from tests.support.messages import refused
from tests.support.recording import rows_of

BEGIN = 1_795_175_305_620_000_000
"""Unix time."""
START, STOP = (ClockAnchor(5_000_000_000 + at, BEGIN + at, 30) for at in (0, 50_000_000))


def write(directory: Path, **files: str) -> Path:
    """Files as MindSpore names them."""
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / f"cpu_{name}_0.txt").write_text(text, encoding="utf-8")
    return directory


def spans_of(made: Converted) -> Block:
    """The operators."""
    spans: Block = made.events[made.events["kind"] == int(Kind.SPAN)]
    return spans


def test_operators(tmp_path: Path) -> None:
    """Begin and duration are to the ns of our clock; those of one scope keep their full names."""
    directory = write(
        tmp_path,
        op_execute_timestamp=(
            f"Default/fc-Dense/MatMul-op0;HostCpuOps;{BEGIN + 1000},0.009414,0 {BEGIN + 40_000},0.001893,0 \n"
            f"Odd;name;HostCpuOps;{BEGIN + 20_000},0.5e-3,0 \n"
        ),
    )
    made = convert(directory, (START, STOP), MindSporeTracks(), shapes=True)
    rows = rows_of(spans_of(made), made.args)
    assert [(row.name, row.ts, row.dur) for row in rows] == [
        ("Default/fc-Dense/MatMul-op0", 5_000_001_000, 9414),
        ("Odd;name", 5_000_020_000, 500),
        ("Default/fc-Dense/MatMul-op0", 5_000_040_000, 1893),
    ]
    assert {row.category for row in rows} == {"cpu_op"}
    assert made.error_ns == 30


def test_shapes_are_those_of_each_run(tmp_path: Path) -> None:
    """Names without scope repeat: runs and launches are paired in order of time; where they do not add up, none is guessed."""
    files = {
        "op_execute_timestamp": (
            f"Default/0-Dense/MatMul-op0;HostCpuOps;{BEGIN + 1},0.1,0 {BEGIN + 301_000},0.1,0 \n"
            f"Default/1-Dense/MatMul-op0;HostCpuOps;{BEGIN + 200_000},0.1,0 \n"
            f"ReLU-op1;HostCpuOps;{BEGIN + 500_000},0.1,0 \n"
            f"Add-op2;HostCpuOps;{BEGIN + 700_000},0.1,0 \n"
        ),
        "framework": (
            "MatMul;MatMul-op0;1;input_1:[8, 16];input_2:[32, 16];input_3:NoShape;\n"
            "MatMul;MatMul-op0;1;input_1:[8, 32];input_2:[4, 32];\n"
            "MatMul;MatMul-op0;1;input_1:[9, 16];input_2:[32, 16];\n"
            ";;1;\nReLU;ReLU-op1;1;input_1:[3];\nReLU;ReLU-op1;1;input_1:[3];\n"
            "Add;Add-op2;1;input_1:[1];\nAdd;Add-op2;1;input_1:[2];\n"
        ),
    }
    made = convert(write(tmp_path, **files), (START, STOP), MindSporeTracks(), shapes=True)
    shapes = [row.arguments.get("Input Dims") for row in rows_of(spans_of(made), made.args)]
    assert shapes == ["[8, 16], [32, 16]", "[8, 32], [4, 32]", "[9, 16], [32, 16]", "[3]", None]
    bare = convert(tmp_path, (START, STOP), MindSporeTracks(), shapes=False)
    assert bare.args == b""


def test_rows_of_operators(tmp_path: Path) -> None:
    """Those that overlap have rows of their own, and those within another nest."""
    text = (
        f"outer;HostCpuOps;{BEGIN},0.1,0 \ninner;HostCpuOps;{BEGIN + 10_000},0.01,0 \n"
        f"beside;HostCpuOps;{BEGIN + 50_000},0.1,0 \nafter;HostCpuOps;{BEGIN + 200_000},0.1,0 \n"
    )
    made = convert(write(tmp_path, op_execute_timestamp=text), (START, STOP), MindSporeTracks(), shapes=True)
    rows = {row.name: row for row in rows_of(spans_of(made), made.args)}
    names = {name: found.name for name, row in rows.items() if (found := tracks.get(row.track)) is not None}
    assert names == {
        "outer": "MindSpore operators",
        "inner": "MindSpore operators",
        "after": "MindSpore operators",
        "beside": "MindSpore operators 2",
    }
    assert rows["inner"].parent == rows["outer"].id
    assert rows["outer"].self_dur == 90_000
    assert rows["beside"].parent == 0


@pytest.mark.checklist("C5")
def test_memory_of_the_pool(tmp_path: Path) -> None:
    """Each record is three counters; those of an earlier recording, which MindSpore repeats, are left out."""
    text = (
        "Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),Total Active(Byte)\n"
        f"{BEGIN - 1000},1,2,3\n{BEGIN + 1000},11264,1073741824,11200\nbroken,1\n"
    )
    directory = write(tmp_path, ms_memory_record=text, op_execute_timestamp=f"Add;HostCpuOps;{BEGIN + 1},0.1,0 ")
    made = convert(directory, (START, STOP), MindSporeTracks(), shapes=True)
    counters = rows_of(made.events[made.events["kind"] == int(Kind.COUNTER)], b"")
    assert [(row.name, row.ts, row.value, row.category) for row in counters] == [
        ("MindSpore allocated", 5_000_001_000, 11264, "memory"),
        ("MindSpore reserved", 5_000_001_000, 1 << 30, "memory"),
        ("MindSpore active", 5_000_001_000, 11200, "memory"),
    ]


def test_unreadable_runs_are_counted(tmp_path: Path) -> None:
    """Runs that are cut or no numbers are lost, and counted; the others are recorded."""
    directory = write(
        tmp_path, op_execute_timestamp=f"Add;HostCpuOps;{BEGIN + 1},0.1,0 {BEGIN},x,0 12 {BEGIN + 3},-1,0"
    )
    made = convert(directory, (START, STOP), MindSporeTracks(), shapes=True)
    assert (len(made.events), made.unreadable) == (1, 3)


def test_nothing(tmp_path: Path) -> None:
    """A window without operators has none."""
    made = convert(write(tmp_path, op_execute_timestamp="\n"), (START, STOP), MindSporeTracks(), shapes=True)
    assert len(made.events) == 0
    assert list(read_runs(tmp_path / "absent")) == []
    assert read_shapes(tmp_path / "absent") == {}


def test_clocks() -> None:
    """MindSpore counts from 1970; a stamp of another time is refused rather than drawn anywhere."""
    assert map_clock(BEGIN + 7, (START, STOP)).to_ours(BEGIN + 7) == 5_000_000_007
    for stamp in (BEGIN * 3, 5_000_000_009):
        with refused(ValueError, "MindSpore", str(stamp)):
            map_clock(stamp, (START, STOP))
    # Somebody set the wall clock meanwhile: what that may have cost is in the error.
    moved = ClockAnchor(STOP.monotonic_ns, STOP.wall_ns + 2_000_000, 30)
    assert map_clock(BEGIN, (START, moved)).error_ns == 2_000_030


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=40))
def test_rows_never_overlap(runs: list[tuple[int, int]]) -> None:
    """Two events on one row follow each other or nest, for any times."""
    with tempfile.TemporaryDirectory() as name:
        text = " ".join(f"{BEGIN + begin * 1000},{length / 1000},0" for begin, length in runs)
        directory = write(Path(name), op_execute_timestamp=f"Add;HostCpuOps;{text}\n")
        made = convert(directory, (START, STOP), MindSporeTracks(), shapes=True)
    rows = rows_of(made.events, b"")
    assert len(rows) == len(runs)
    for index, one in enumerate(rows):
        for other in rows[index + 1 :]:
            if one.track == other.track and other.ts < one.end:
                assert other.end <= one.end


@pytest.mark.checklist("C17")
def test_a_version_that_cannot_be_driven(monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore that is missing, too old or built without its profiler is a clear message, not an attribute error."""
    for name in ("mindspore", "mindspore._c_expression"):
        monkeypatch.setitem(sys.modules, name, None)
    with refused(BackendError, "MindSpore"):
        MindSporeBackend().open(CollectingSink())
    for name in ("mindspore", "mindspore._c_expression"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    with refused(BackendError, "MindSpore", "Profiler"):
        MindSporeBackend().open(CollectingSink())

    class Refusing:
        """A build that lets nobody look into it."""

        @staticmethod
        def get_instance(_: str) -> None:
            raise RuntimeError("not supported when MindSpore is compiled with '-s on'")

    setattr(sys.modules["mindspore._c_expression"], "Profiler", Refusing)  # noqa: B010
    with refused(BackendError, "MindSpore"):
        MindSporeBackend().open(CollectingSink())


@pytest.mark.checklist("C17")
@pytest.mark.parametrize(
    ("version", "warned"), [("2.11.0rc1", True), ("3.0", True), ("2.10.3", False), ("2.0.0", False), ("", False)]
)
def test_a_version_newer_than_those_tested(
    version: str, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Is driven, and named in the log, once."""

    class Driven:
        """As MindSpore's own class, as far as `open` needs it."""

        @staticmethod
        def get_instance(_: str) -> object:
            return object()

    core = types.ModuleType("mindspore._c_expression")
    setattr(core, "Profiler", Driven)  # noqa: B010
    module = types.ModuleType("mindspore")
    module.__version__ = version  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "mindspore", module)
    monkeypatch.setitem(sys.modules, "mindspore._c_expression", core)
    for _ in range(2):
        MindSporeBackend().open(CollectingSink())
    messages = [record.getMessage() for record in caplog.records if "newer" in record.getMessage()]
    assert len(messages) == warned
    if warned:
        assert f"MindSpore {version} is newer than 2.10" in messages[0]


def test_a_flight_recorder_is_refused(tmp_path: Path) -> None:
    """It would have no operators, as its window has no end until it is saved."""
    with refused(ValueError, "mindspore"):
        stepscope.trace(keep_last=3, backends=[MindSporeBackend()], output_dir=tmp_path)
