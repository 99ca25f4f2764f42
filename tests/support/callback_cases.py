"""Frameworks whose callbacks keep one contract: how each makes a callback, and trains with it."""

# Annotations of the frameworks are incomplete.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# mypy: allow-untyped-calls, disable-error-code="no-untyped-call,import-untyped"

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import stepscope as sc
from tests.support.arming import arm_here
from tests.support.basics import Deferred, require

os.environ["KERAS_BACKEND"] = "torch"
torch: Any = Deferred("torch")
accelerate: Any = Deferred("accelerate")
composer_models: Any = Deferred("tests.support.composer_models")
keras: Any = Deferred("keras")
lightning: Any = Deferred("lightning.pytorch")
lightning_models: Any = Deferred("tests.support.lightning_models")
transformers: Any = Deferred("transformers")


class Training(msgspec.Struct, frozen=True):
    """A line is trained through random points, two in each batch."""

    batches: int = 8
    """Batches of an epoch."""
    epochs: int = 1
    accumulated: int = 1
    """Batches of an update of the weights."""
    fails_at: int = -1
    """The batch that raises ZeroDivisionError, from 0."""
    order_at: int = -1
    """The batch in which an operator asks for two steps."""
    times: int = 1
    """How often it is started: each goes on where the one before ended."""

    def in_batch(self, number: int) -> None:
        """To be called in each batch."""
        if number == self.fails_at:
            raise ZeroDivisionError("the training fails")
        if number == self.order_at:
            assert arm_here(2)


class Case(msgspec.Struct, frozen=True):
    """One callback of a framework."""

    name: str
    needs: str
    """The framework's package, or a module that imports it."""
    make: Callable[..., Any]
    """Returns a callback that writes below a directory; with settings as keywords."""
    train: Callable[[Any, Path, Training], int]
    """Trains with the callback and a directory for the framework's own files; returns the number of updates."""
    stage: str = "fit"
    batch_span: str = "micro_step"
    epoch_span: str = "epoch"
    """Name of the span of an epoch; empty if the framework knows none."""
    tells_of_exceptions: bool = False
    """Whether the framework calls its callbacks after an exception."""
    counts_on: bool = True
    """Whether the steps of a training that is started again go on where those before ended."""

    def fit(self, traced: Any, where: Path, **training: int) -> int:
        """Trains, as the fields of `Training` say; returns the number of updates of the weights."""
        return self.train(traced, where, Training(**training))


def _keras(where: Path, **settings: Any) -> Any:
    return Deferred("stepscope.keras").StepscopeCallback(str(where), **settings)


def _train_keras(traced: Any, where: Path, training: Training) -> int:
    def begin(batch: int, logs: Any) -> None:
        training.in_batch(batch)

    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    steps = training.accumulated if training.accumulated > 1 else None
    made.compile(optimizer=keras.optimizers.SGD(0.01, gradient_accumulation_steps=steps), loss="mse")
    points, values = np.random.rand(2 * training.batches, 4), np.random.rand(2 * training.batches, 1)
    callbacks = [traced, keras.callbacks.LambdaCallback(on_train_batch_begin=begin)]
    for _ in range(training.times):
        made.fit(points, values, batch_size=2, epochs=training.epochs, verbose=0, shuffle=False, callbacks=callbacks)
    return int(made.optimizer.iterations)


def _transformers(where: Path, **settings: Any) -> Any:
    return Deferred("stepscope.transformers").StepscopeCallback(output_dir=str(where), **settings)


def _train_transformers(traced: Any, where: Path, training: Training) -> int:
    class Line(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.calls = -1

        def forward(self, points: Any, labels: Any = None) -> dict[str, Any]:
            self.calls += 1
            training.in_batch(self.calls)
            found = self.layer(points)
            return {"loss": (found - labels).square().mean(), "logits": found}

    require("accelerate")
    data = [{"points": torch.rand(4), "labels": torch.rand(1)} for _ in range(2 * training.batches)]
    updates = 0
    for number in range(training.times):
        trainer = transformers.Trainer(
            model=Line(),
            args=transformers.TrainingArguments(
                output_dir=str(where / "transformers"),
                per_device_train_batch_size=2,
                num_train_epochs=training.epochs * (number + 1),
                gradient_accumulation_steps=training.accumulated,
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                save_strategy="no" if training.times == 1 else "epoch",
                logging_strategy="no",
                dataloader_pin_memory=False,
            ),
            train_dataset=data,
            callbacks=[traced],
        )
        trainer.train(resume_from_checkpoint=number > 0)
        updates = int(trainer.state.global_step)
    return updates


def _lightning(kind: str, where: Path, **settings: Any) -> Any:
    return getattr(Deferred("stepscope.lightning"), kind)(output_dir=str(where), **settings)


def _train_lightning(place: str, traced: Any, where: Path, training: Training) -> int:
    trainer = lightning.Trainer(
        max_epochs=training.epochs,
        accumulate_grad_batches=training.accumulated,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=where,
        log_every_n_steps=1,
        **{place: traced},
    )
    points = torch.utils.data.TensorDataset(torch.rand(2 * training.batches, 4))
    model = lightning_models.Tiny(fails_at=training.fails_at, order_at=training.order_at)
    for number in range(training.times):
        trainer.fit_loop.max_epochs = training.epochs * (number + 1)
        trainer.fit(model, torch.utils.data.DataLoader(points, batch_size=2))
    return int(trainer.global_step)


class Handler:
    """Accelerate's handler, and what the run that was built last says of it."""

    def __init__(self, **settings: Any) -> None:
        cycle = settings.pop("schedule", None)
        option = cycle and {name: getattr(cycle, name) for name in ("wait", "warmup", "active", "repeat", "skip_first")}
        front: Any = Deferred("stepscope.accelerate")
        self.handler = front.StepscopeProfileKwargs(schedule_option=option, settings=settings)

    @property
    def profiler(self) -> Any:
        return self.handler.last and self.handler.last.profiler

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["handler"].last, name)

    def __reduce__(self) -> Any:
        return _handler, (self.handler,)


def _handler(handler: Any) -> Handler:
    made = Handler.__new__(Handler)
    made.handler = handler
    return made


def _accelerate(where: Path, **settings: Any) -> Handler:
    return Handler(output_dir=str(where), **settings)


def accelerator(*handlers: Any, **given: Any) -> Any:
    """A fresh Accelerator on the CPU; Accelerate keeps its state for the process otherwise."""
    for state in ("AcceleratorState", "GradientState", "PartialState"):
        getattr(accelerate.state, state)._reset_state()
    return accelerate.Accelerator(cpu=True, kwargs_handlers=list(handlers), **given)


def accelerated(using: Any, run: Any, training: Training) -> int:
    """A program's own loop with an Accelerator, which logs each update; returns the number of updates."""
    model = torch.nn.Linear(4, 1)
    model, optimizer = using.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    updates = 0
    for number in range(training.batches * training.epochs):
        training.in_batch(number)
        with using.accumulate(model):
            with sc.span("micro_step"):
                using.backward(model(torch.rand(2, 4)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        if using.sync_gradients:
            updates += 1
            using.log({"updates": updates, "text": "left out"}, step=updates)
            run.step()
    return updates


def _train_accelerate(traced: Handler, where: Path, training: Training) -> int:
    using = accelerator(traced.handler, gradient_accumulation_steps=training.accumulated)
    updates = 0
    for _ in range(training.times):
        with using.profile() as run:
            updates += accelerated(using, run, training)
    return updates


def _composer(where: Path, **settings: Any) -> Any:
    return Deferred("stepscope.composer").StepscopeTraceHandler(output_dir=str(where), **settings)


def _train_composer(traced: Any, where: Path, training: Training) -> int:
    happens = {number: partial(training.in_batch, number) for number in (training.fails_at, training.order_at)}
    trainer = composer_models.fit(
        happens=happens,
        batches=training.batches // training.accumulated,
        epochs=training.epochs,
        accumulated=training.accumulated,
        times=training.times,
        callbacks=[traced],
    )
    return int(trainer.state.timestamp.batch)


_ALL = (
    Case("keras", "keras", _keras, _train_keras),
    Case("transformers", "transformers", _transformers, _train_transformers),
    Case(
        "lightning, callback",
        "lightning",
        partial(_lightning, "StepscopeCallback"),
        partial(_train_lightning, "callbacks"),
        tells_of_exceptions=True,
    ),
    Case(
        "lightning, profiler",
        "lightning",
        partial(_lightning, "StepscopeProfiler"),
        partial(_train_lightning, "profiler"),
        batch_span="run_training_batch",
        epoch_span="run_training_epoch",
        tells_of_exceptions=True,
    ),
    Case(
        "accelerate",
        "accelerate",
        _accelerate,
        _train_accelerate,
        stage="profile",
        epoch_span="",
        tells_of_exceptions=True,
        counts_on=False,
    ),
    Case("composer", "tests.support.composer_models", _composer, _train_composer, tells_of_exceptions=True),
)
CASES = _ALL[:-1] if importlib.util.find_spec("composer") is None else _ALL
"""All that may be here: Composer is in an environment of its own."""
