"""The Trainer of Transformers, really training, with the callback."""

# Annotations of torch and Transformers are incomplete.
# pyright: reportUnknownMemberType=false
# mypy: allow-untyped-calls

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.runtime.events.record import Kind
from tests.support.basics import Deferred, require
from tests.support.frameworks import Runs, check_well
from tests.support.messages import refused

pytestmark = pytest.mark.needs("transformers")

torch: Any = Deferred("torch")
transformers: Any = Deferred("transformers")
ours: Any = Deferred("stepscope.transformers")

CYCLE = sc.schedule(wait=1, warmup=1, active=3, repeat=1)


def tiny() -> Any:
    """A line through random points, as the Trainer wants a model."""

    class Tiny(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, points: Any, labels: Any = None) -> dict[str, Any]:
            found = self.layer(points)
            return {"loss": (found - labels).square().mean(), "logits": found}

    return Tiny()


def data(batches: int) -> Any:
    """So many batches of two points."""
    return [{"points": torch.rand(4), "labels": torch.rand(1)} for _ in range(2 * batches)]


def trainer(tmp_path: Path, *callbacks: Any, batches: int = 8, **given: Any) -> Any:
    """A Trainer on the CPU that reports to nobody."""
    settings: dict[str, Any] = {
        "output_dir": str(tmp_path / "out"),
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "num_train_epochs": 1,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
    }
    require("accelerate")
    return transformers.Trainer(
        model=tiny(),
        args=transformers.TrainingArguments(**{**settings, **given}),
        train_dataset=data(batches),
        eval_dataset=data(5),
        callbacks=list(callbacks),
    )


def test_the_names_of_other_trainers_work(tmp_path: Path) -> None:
    """A schedule in five numbers, as LlamaFactory's options are called."""
    runs = Runs()
    callback = ours.StepscopeCallback(
        profiler_wait_steps=1,
        profiler_warmup_steps=0,
        profiler_active_steps=2,
        profiler_repeat=2,
        profiler_output_dir=str(tmp_path / "profiles"),
        exporters=[runs],
    )
    trainer(tmp_path, callback).train()
    check_well(callback)
    assert runs.steps("fit") == [(1, 2), (4, 5)]
    assert (tmp_path / "profiles" / "fit" / "journal").is_file()
    with refused(ValueError, "schedule", "profiler_..._steps"):
        ours.StepscopeCallback(profiler_wait_steps=1, schedule=CYCLE)
    with refused(ValueError, "output_dir", "profiler_output_dir"):
        ours.StepscopeCallback(profiler_output_dir="a", output_dir="b")
    with refused(ValueError, "active", "0"):
        ours.StepscopeCallback(profiler_active_steps=0)


def test_a_resumed_training_is_recorded_by_default(tmp_path: Path) -> None:
    """The default schedule counts from where the training begins."""
    trainer(tmp_path, save_strategy="steps", save_steps=60, max_steps=60, num_train_epochs=9).train()
    runs = Runs()
    used = trainer(tmp_path, ours.StepscopeCallback(exporters=[runs]), max_steps=90, num_train_epochs=12)
    used.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-60"))
    assert runs.steps("fit") == [tuple(range(62, 87))]


def test_evaluation_by_itself_and_in_a_training(tmp_path: Path) -> None:
    """In a training it is a span of the step; by itself a run, whose first batch has no callback."""
    runs = Runs()
    callback = ours.StepscopeCallback(exporters=[runs], schedule=None)
    used = trainer(tmp_path, callback, eval_strategy="steps", eval_steps=3, max_steps=6)
    used.train()
    check_well(callback)
    assert runs.steps("fit")[0][:6] == (0, 1, 2, 3, 4, 5)
    assert runs.spans("fit").count("evaluation") == 2
    used.evaluate()
    check_well(callback)
    assert runs.stages == ["fit", "evaluate"]
    assert runs.steps("evaluate")[0][:4] == (1, 2, 3, 4)
    used.predict(data(3))
    check_well(callback)
    assert runs.stages == ["fit", "evaluate", "evaluate"]


def test_a_short_evaluation_says_how_many_steps_are_needed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And not that the program is to call `step()`, which the callback does."""
    trainer(tmp_path, ours.StepscopeCallback()).evaluate()
    assert "run 27 steps for a whole window" in caplog.text and "profiler.step()" not in caplog.text


def test_a_prediction_of_one_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No step ends in it, which is no error."""
    callback = ours.StepscopeCallback()
    trainer(tmp_path, callback).predict(data(1))
    check_well(callback)
    assert "recorded nothing of 'evaluate': it ended before its first step did" in caplog.text


@pytest.mark.checklist("B3")
def test_steps_have_logged_values_spans_and_checkpoints(tmp_path: Path) -> None:
    """A logged value is a counter, the optimizer's part a span; checkpoints are marked. By default in the Trainer's directory."""
    memory = sc.exporters.MemoryExporter()
    callback = ours.StepscopeCallback(exporters=[memory], schedule=None)
    trainer(tmp_path, callback, logging_strategy="steps", logging_steps=1, save_strategy="epoch").train()
    check_well(callback)
    assert memory.names(kind=Kind.COUNTER).count("loss") == 8
    assert memory.names(kind=Kind.INSTANT) == ["checkpoint"]
    assert memory.names(kind=Kind.SPAN).count("optimizer_step") == 8
    assert (tmp_path / "out" / "stepscope_runs" / "fit" / "journal").is_file()
