"""Lightning's Trainer, really training: the callback and the profiler."""

# Annotations of torch and Lightning are incomplete.
# pyright: reportUnknownMemberType=false
# mypy: allow-untyped-calls

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.runtime.events.record import Kind
from stepscope.runtime.windows.step_facts import Phase
from tests.support.arming import set_options_in_environment
from tests.support.basics import ROOT, Deferred
from tests.support.frameworks import Runs, check_incomplete, check_well, steps
from tests.support.launch import run_to_end

lightning: Any = Deferred("lightning.pytorch")
models: Any = Deferred("tests.support.lightning_models")
ours: Any = Deferred("stepscope.lightning")
torch: Any = Deferred("torch")

pytestmark = [
    pytest.mark.needs("lightning"),
    pytest.mark.filterwarnings(r"ignore:The '\w+_dataloader' does not have many workers"),
    pytest.mark.filterwarnings(r"ignore:You're resuming from a checkpoint that ended before the epoch ended"),
    pytest.mark.filterwarnings(r"ignore:You defined a `validation_step` but have no `val_dataloader`"),
    # A warning of Lightning 2.6 with torch 2.13.
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning"),
]

CYCLE = sc.schedule(wait=1, warmup=1, active=3, repeat=1)


def data(batches: int) -> Any:
    """So many batches of two points."""
    points = torch.utils.data.TensorDataset(torch.rand(2 * batches, 4))
    return torch.utils.data.DataLoader(points, batch_size=2)


def trainer(tmp_path: Path, **given: Any) -> Any:
    """A Trainer on the CPU that writes and prints nothing of its own."""
    settings: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": tmp_path,
        "num_sanity_val_steps": 1,
        "log_every_n_steps": 1,
    }
    return lightning.Trainer(**{**settings, **given})


@pytest.fixture(params=["StepscopeCallback", "StepscopeProfiler"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Either of the two: the test is of what holds for both."""
    return getattr(ours, request.param)


def given_to(tmp_path: Path, traced: Any, **given: Any) -> Any:
    """A Trainer with the callback or the profiler."""
    place = {"callbacks": [traced]} if isinstance(traced, ours.StepscopeCallback) else {"profiler": traced}
    return trainer(tmp_path, **place, **given)


def test_forward_and_backward_are_no_part_of_the_optimizer(kind: Any, tmp_path: Path) -> None:
    """Lightning computes the loss in a closure, which the optimizer's `step()` calls."""
    traced = kind(output_dir=str(tmp_path / "run"))
    given_to(tmp_path, traced).fit(models.Tiny(), data(12))
    (fit,) = tmp_path.glob("run/**/fit*")
    phases = sc.load(fit).ranks[0].steps["phases"].sum(axis=0)
    assert all(phases[phase] > 0 for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))


def test_stages_have_steps_of_their_own(kind: Any, tmp_path: Path) -> None:
    """Validation in a training counts for nothing; by itself each stage counts its batches from 0."""
    runs = Runs()
    traced = kind(exporters=[runs], schedule=CYCLE)
    using = given_to(tmp_path, traced)
    using.fit(models.Tiny(), data(6), data(7))
    using.validate(models.Tiny(), data(6), verbose=False)
    using.test(models.Tiny(), data(5), verbose=False)
    using.predict(models.Tiny(), data(9))
    check_well(traced)
    assert runs.stages == ["fit", "validate", "test", "predict"]
    for stage in runs.stages:
        assert runs.steps(stage) == [(2, 3, 4)], stage
    assert "aten::linear" in runs.spans("test")
    assert (tmp_path / "stepscope_runs" / "fit" / "journal").is_file()


def test_validation_in_a_training_is_a_span_of_its_step(kind: Any, tmp_path: Path) -> None:
    """It is between two updates, and in the trace."""
    runs = Runs()
    traced = kind(exporters=[runs], schedule=None)
    given_to(tmp_path, traced, val_check_interval=2).fit(models.Tiny(), data(4), data(3))
    check_well(traced)
    assert runs.steps("fit")[0][:4] == (0, 1, 2, 3)
    spans = runs.spans("fit")
    validation = (
        "validation_step" if kind is ours.StepscopeCallback else "[Strategy]SingleDeviceStrategy.validation_step"
    )
    assert spans.count(validation) == 6
    if kind is ours.StepscopeCallback:
        assert spans.count("validate") == 2


def test_an_exception_in_a_test_does_the_same(kind: Any, tmp_path: Path) -> None:
    """Where Lightning has no epoch around the batches."""
    runs = Runs()
    traced = kind(exporters=[runs], schedule=sc.schedule(wait=1, warmup=0, active=9))
    with pytest.raises(ZeroDivisionError):
        given_to(tmp_path, traced).test(models.Tiny(fails_at=3), data(16), verbose=False)
    traced.raise_errors()
    assert runs.steps("test") == [(1, 2)]
    check_incomplete(runs, "test")


def test_training_inside_an_except_block_is_no_failure(kind: Any, tmp_path: Path) -> None:
    """An exception that is being handled around the training has nothing to do with it."""
    runs = Runs()
    traced = kind(exporters=[runs], schedule=CYCLE)
    try:
        raise KeyError("the first attempt")
    except KeyError:
        given_to(tmp_path, traced).fit(models.Tiny(), data(6))
    check_well(traced)
    assert runs.steps("fit") == [(2, 3, 4)] and runs.windows("fit")[0].complete


def test_actions_of_the_trainer_are_spans(tmp_path: Path) -> None:
    """With the profiler, whatever Lightning names is in the trace, without a line of code."""
    memory = sc.exporters.MemoryExporter()
    profiler = ours.StepscopeProfiler(exporters=[memory], schedule=None)
    trainer(tmp_path, profiler=profiler).fit(models.Tiny(), data(3))
    check_well(profiler)
    spans = set(memory.names(kind=Kind.SPAN))
    assert {
        "run_training_epoch",
        "[_TrainingEpochLoop].train_dataloader_next",
        "[LightningModule]Tiny.on_train_batch_end",
        "[Strategy]SingleDeviceStrategy.training_step",
    } <= spans
    assert steps(memory)[0][:3] == (0, 1, 2)


def test_the_table_is_logged_or_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As Lightning's own profilers do it."""
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        trainer(tmp_path, profiler=ours.StepscopeProfiler(schedule=CYCLE)).fit(models.Tiny(), data(6))
    assert "FIT profile of stepscope" in caplog.text and "forward" in caplog.text
    named = ours.StepscopeProfiler(tmp_path / "named", "table", schedule=CYCLE)
    trainer(tmp_path, profiler=named).fit(models.Tiny(), data(6))
    named.raise_errors()
    text = (tmp_path / "named" / "fit-table.txt").read_text()
    assert "run_training_batch" in text
    assert (tmp_path / "named" / "fit" / "journal").is_file()


SPAWNED = """
import sys
import stepscope
from pathlib import Path
from lightning.pytorch import Trainer
from stepscope.lightning import StepscopeProfiler
from tests.support.lightning_models import Tiny
from tests.system.compat.test_lightning import CYCLE, data, trainer
if __name__ == "__main__":
    where = Path(sys.argv[1])
    profiler = StepscopeProfiler(schedule=CYCLE)
    trainer(where, profiler=profiler, strategy="ddp_spawn", devices=2).fit(Tiny(), data(16))
"""


def test_spawned_ranks_write_side_by_side(tmp_path: Path) -> None:
    """Lightning sends the profiler to two processes, which know their ranks from it and from nobody else."""
    program = tmp_path / "program.py"
    program.write_text(SPAWNED)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = run_to_end(
        [sys.executable, str(program), str(tmp_path)],
        timeout=280,
        cwd=tmp_path,
        environment=environment,
        server="torch",
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "stepscope_runs" / "fit"
    assert (run / "rank0" / "journal").is_file() and (run / "rank1" / "journal").is_file()
    assert done.stderr.count("stepscope recorded") == 1
    assert f"stepscope recorded 'fit': `stepscope report {run}` shows it\n  of rank 0: " in done.stderr
    traces = [json.loads(path.read_text()) for path in (run / "tensorboard").iterdir()]
    infos = [trace["distributedInfo"] for trace in traces]
    assert sorted(info["rank"] for info in infos) == [0, 1] and {info["world_size"] for info in infos} == {2}
    for trace in traces:
        names = [event["name"] for event in trace["traceEvents"]]
        assert names.count("forward") == 3 and "ProfilerStep#4" in names


def test_the_older_package_is_served_where_it_is_used() -> None:
    """`pytorch_lightning` has classes of its own, and takes no others."""
    program = """
import warnings
warnings.simplefilter("ignore")
import pytorch_lightning as old
from stepscope.lightning import StepscopeCallback, StepscopeProfiler
assert issubclass(StepscopeCallback, old.Callback) and issubclass(StepscopeProfiler, old.profilers.Profiler)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=100)


@pytest.mark.checklist("B6")
def test_the_environment_has_steps_recorded(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a training that goes on where it ended, too; in a directory for each stage where it says."""
    set_options_in_environment(monkeypatch, window={"steps": 2}, output_dir=str(tmp_path / "said"))
    runs = Runs()
    traced = kind(exporters=[runs], output_dir=str(tmp_path / "programs"))
    using = given_to(tmp_path, traced)
    using.fit(models.Tiny(), data(4))
    using.save_checkpoint(tmp_path / "after.ckpt")
    again = Runs()
    further = kind(exporters=[again])
    using = given_to(tmp_path, further, max_epochs=2)
    using.fit(models.Tiny(), data(4), ckpt_path=tmp_path / "after.ckpt")
    using.test(models.Tiny(), data(3), verbose=False)
    check_well(traced)
    check_well(further)
    assert runs.steps("fit") == [(0, 1)] and again.steps("fit") == [(4, 5)] and again.steps("test") == [(0, 1)]
    assert (tmp_path / "said" / "fit" / "journal").is_file() and (tmp_path / "said" / "test" / "journal").is_file()
    assert not (tmp_path / "programs").exists()
