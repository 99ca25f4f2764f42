"""The contract of callbacks for training frameworks, with each framework really training."""

from __future__ import annotations

import pickle
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.runtime.events.record import Kind
from tests.support.arming import set_options_in_environment
from tests.support.basics import ROOT, require
from tests.support.callback_cases import CASES, Case
from tests.support.frameworks import Runs, check_incomplete, check_verdict, check_well, fill
from tests.support.launch import run_to_end
from tests.support.operators import environment

pytestmark = [
    # These are of Lightning 2.6 with torch 2.13, and of Keras 3.15 with numpy 2.
    pytest.mark.filterwarnings(r"ignore:The '\w+_dataloader' does not have many workers"),
    pytest.mark.filterwarnings(r"ignore:You defined a `validation_step` but have no `val_dataloader`"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

WITH_EPOCHS = pytest.mark.parametrize(
    "case", [case for case in CASES if case.epoch_span], ids=lambda case: case.name, indirect=True
)
CYCLE = sc.schedule(wait=1, warmup=1, active=3, repeat=1)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    """Each callback, where its framework is installed."""
    found: Case = request.param
    require(found.needs)
    return found


def epochs(memory: sc.exporters.MemoryExporter, case: Case) -> list[object]:
    """The numbers in the spans of epochs."""
    rows = zip(memory.names(), memory.events()["kind"].tolist(), memory.arguments(), strict=True)
    return [arguments.get("epoch") for name, kind, arguments in rows if (name, kind) == (case.epoch_span, Kind.SPAN)]


@pytest.mark.checklist("B3")
def test_a_step_is_an_update(case: Case, tmp_path: Path) -> None:
    """Accumulated batches are spans inside of a step; operators are recorded, and a file for TensorBoard is written."""
    runs = Runs()
    traced = case.make(tmp_path / "runs", exporters=[runs], schedule=CYCLE)
    assert case.fit(traced, tmp_path, batches=16, accumulated=2) == 8
    check_well(traced)
    assert runs.stages == [case.stage] and runs.steps(case.stage) == [(2, 3, 4)]
    assert runs.windows(case.stage)[0].complete
    spans = runs.spans(case.stage)
    assert spans.count(case.batch_span) == 6
    assert {"ProfilerStep#2", "ProfilerStep#4"} <= set(spans) and any(name.startswith("aten::") for name in spans)
    if not require("torch").accelerator.is_available():
        assert traced.profiler.report().backends["torch"].mode == "stream"
    assert (tmp_path / "runs" / case.stage / "journal").is_file()
    assert list((tmp_path / "runs" / case.stage / "tensorboard").glob("*.pt.trace.json"))


def test_every_cycle_is_recorded(case: Case, tmp_path: Path) -> None:
    """A cycle may reach over the end of an epoch, also among accumulated batches."""
    runs = Runs()
    traced = case.make(tmp_path / "runs", exporters=[runs], schedule=sc.schedule(wait=1, warmup=1, active=2, repeat=3))
    case.fit(traced, tmp_path, batches=5, epochs=3)
    check_well(traced)
    assert runs.steps(case.stage) == [(2, 3), (6, 7), (10, 11)]


@WITH_EPOCHS
@pytest.mark.checklist("B3")
def test_epochs_can_be_the_unit(case: Case, tmp_path: Path) -> None:
    """The schedule counts epochs."""
    runs = Runs()
    cycle = sc.schedule(wait=1, warmup=0, active=2, repeat=1)
    traced = case.make(tmp_path / "runs", exporters=[runs], unit="epoch", schedule=cycle)
    case.fit(traced, tmp_path, batches=3, epochs=4)
    check_well(traced)
    assert runs.steps(case.stage) == [(1, 2)]
    assert runs.spans(case.stage).count(case.batch_span) == 6
    assert epochs(runs[case.stage], case) == [1, 2]


def test_an_exception_goes_on_and_the_window_is_incomplete(case: Case, tmp_path: Path) -> None:
    """Events before it are recorded. A context closes the run where the framework does not tell of the exception, or else the
    next training does, which begins anew."""
    runs = Runs()
    traced = case.make(tmp_path / "runs", exporters=[runs], schedule=sc.schedule(wait=1, warmup=0, active=9))
    with pytest.raises(ZeroDivisionError), nullcontext() if case.tells_of_exceptions else traced:
        case.fit(traced, tmp_path, fails_at=4)
    traced.raise_errors()
    assert runs.steps(case.stage) == [(1, 2, 3)]  # the step that failed is none
    check_incomplete(runs, case.stage)
    with pytest.raises(ZeroDivisionError):
        case.fit(traced, tmp_path, fails_at=2)
    case.fit(traced, tmp_path)
    traced.raise_errors()
    _, failed, whole = (memory.windows for _, _, memory in runs.made)
    assert [step.number for step in failed[0].steps] == [1] and not failed[0].complete
    assert [step.number for step in whole[0].steps][:7] == list(range(1, 8))


def test_broken_outputs_cost_the_training_nothing(case: Case, tmp_path: Path, small_disk: Path) -> None:
    """On a full disk, and with an exporter that fails, it ends as ever; other outputs are whole, and the errors are stored."""
    fill(small_disk)
    broken = sc.exporters.MemoryExporter(name="broken", fail={"export": RuntimeError("no")})
    runs = Runs()
    traced = case.make(small_disk / "runs", exporters=[broken, runs], schedule=CYCLE)
    assert case.fit(traced, tmp_path) == 8
    assert {type(error) for error in traced.errors} == {sc.errors.ExporterError}
    assert any("broken" in str(error) for error in traced.errors) and any(
        "space" in str(error) for error in traced.errors
    )
    assert runs.steps(case.stage) == [(2, 3, 4)]


@pytest.mark.checklist("B3")
def test_the_end_says_once_where_the_results_are_and_the_verdict(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of as many steps as are recorded by default."""
    traced = case.make(tmp_path / "runs")
    case.fit(traced, tmp_path, batches=30)
    check_well(traced)
    check_verdict(caplog.text, tmp_path / "runs" / case.stage)


@pytest.mark.checklist("B3")
def test_a_training_that_is_started_again(case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the same callback: each is a run, whose steps go on where those before ended, and which says its results once."""
    runs = Runs()
    traced = case.make(tmp_path / "runs", exporters=[runs], schedule=None)
    case.fit(traced, tmp_path, batches=5, times=3)
    check_well(traced)
    first = [memory.windows[0].steps[0].number for _, _, memory in runs.made]
    assert first == ([0, 5, 10] if case.counts_on else [0, 0, 0])
    assert caplog.text.count(f"stepscope recorded {case.stage!r}: ") == 3


TORCH_FIRST = """
import sys, torch
from pathlib import Path
__import__(sys.argv[1])
from tests.support.callback_cases import CASES
from tests.support.frameworks import Runs, check_well
runs, where = Runs(), Path.cwd()
(case,) = (case for case in CASES if case.name == sys.argv[2])
traced = case.make(where / "runs", exporters=[runs])
case.fit(traced, where, batches=30)
check_well(traced)
((_, _, memory),) = runs.made
print(traced.profiler.report().backends["torch"].mode, any(name.startswith("aten::") for name in memory.names()))
"""


def test_torch_may_be_imported_first(case: Case, tmp_path: Path) -> None:
    """Operators come from torch's own engine then, which is said once; the results and the verdict are the same."""
    changes = {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch"}
    command = [sys.executable, "-c", TORCH_FIRST, case.needs, case.name]
    done = run_to_end(command, cwd=tmp_path, environment=environment(**changes), server=None)
    assert done.returncode == 0 and done.stdout.split()[-2:] == ["kineto", "True"], done.stderr
    assert done.stderr.count("torch was imported before stepscope; for live operators import stepscope first") == 1
    check_verdict(done.stderr, tmp_path / "runs" / case.stage)


@pytest.mark.checklist("B4")
def test_ranks_and_copies(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is the environment's; a pickled callback traces as the original would have; other ranks record nothing."""
    monkeypatch.setenv("RANK_ID", "2")
    traced = pickle.loads(pickle.dumps(case.make(tmp_path / "runs", schedule=CYCLE)))
    assert traced.profiler is None
    case.fit(traced, tmp_path)
    check_well(traced)
    assert (tmp_path / "runs" / case.stage / "rank2" / "journal").is_file()
    assert pickle.loads(pickle.dumps(case.make(tmp_path / "last", keep_last=5))).profiler is None
    other = case.make(tmp_path / "others", schedule=CYCLE, ranks=[0])
    case.fit(other, tmp_path)
    assert other.profiler is None and not other.errors


@pytest.mark.checklist("B6")
def test_the_environment_has_steps_recorded(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's schedule and directory count, whatever the program asks for."""
    set_options_in_environment(
        monkeypatch, schedule={"wait": 2, "active": 2, "repeat": 1}, output_dir=str(tmp_path / "said")
    )
    runs = Runs()
    traced = case.make(tmp_path / "programs", exporters=[runs], schedule=CYCLE)
    case.fit(traced, tmp_path)
    check_well(traced)
    assert runs.steps(case.stage) == [(2, 3)]
    assert (tmp_path / "said" / case.stage / "journal").is_file() and not (tmp_path / "programs").exists()
