"""Frameworks whose callbacks keep one contract: how each makes a callback, and trains with it."""

# Annotations of the frameworks are incomplete.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# mypy: allow-untyped-calls, disable-error-code="no-untyped-call,import-untyped"

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stepscope.compat.frameworks.loop import Traced
from tests.support.arming import arm_here
from tests.support.basics import Deferred, require

os.environ["KERAS_BACKEND"] = "torch"
torch: Any = Deferred("torch")
keras: Any = Deferred("keras")
lightning: Any = Deferred("lightning.pytorch")
lightning_models: Any = Deferred("tests.support.lightning_models")
transformers: Any = Deferred("transformers")


class Case(Protocol):
    """One callback of a framework."""

    name: str
    needs: str
    """The framework's package."""
    batch_span: str
    """Name of the span of a batch."""
    tells_of_exceptions: bool
    """Whether the framework tells its callbacks of an exception."""

    def make(self, where: Path, **settings: Any) -> Traced:
        """Returns a callback that writes below a directory."""
        ...

    def fit(
        self,
        traced: Traced,
        where: Path,
        *,
        batches: int = 8,
        epochs: int = 1,
        accumulated: int = 1,
        fails_at: int = -1,
        order_at: int = -1,
    ) -> int:
        """Trains a line through random points, two in each batch.

        Args:
            traced: the callback.
            where: a directory for the framework's own files.
            batches: batches of an epoch.
            epochs: epochs.
            accumulated: batches of an update of the weights.
            fails_at: the batch that raises ZeroDivisionError, from 0.
            order_at: the batch in which an operator asks for two steps.

        Returns:
            Number of updates of the weights.
        """
        ...


class KerasCase:
    """Keras on its torch backend."""

    name, needs, batch_span, tells_of_exceptions = "keras", "keras", "micro_step", False

    def make(self, where: Path, **settings: Any) -> Traced:
        return Deferred("stepscope.keras").StepscopeCallback(str(where), **settings)  # type: ignore[no-any-return]

    def fit(
        self,
        traced: Traced,
        where: Path,
        *,
        batches: int = 8,
        epochs: int = 1,
        accumulated: int = 1,
        fails_at: int = -1,
        order_at: int = -1,
    ) -> int:
        def begin(batch: int, logs: Any) -> None:
            if batch == fails_at:
                raise ZeroDivisionError("the training fails")
            if batch == order_at:
                assert arm_here(2)

        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        steps = accumulated if accumulated > 1 else None
        made.compile(optimizer=keras.optimizers.SGD(0.01, gradient_accumulation_steps=steps), loss="mse")
        points, values = np.random.rand(2 * batches, 4), np.random.rand(2 * batches, 1)
        callbacks = [traced, keras.callbacks.LambdaCallback(on_train_batch_begin=begin)]
        made.fit(points, values, batch_size=2, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks)
        return int(made.optimizer.iterations)


class TransformersCase:
    """The Trainer of Transformers."""

    name, needs, batch_span, tells_of_exceptions = "transformers", "transformers", "micro_step", False

    def make(self, where: Path, **settings: Any) -> Traced:
        return Deferred("stepscope.transformers").StepscopeCallback(output_dir=str(where), **settings)  # type: ignore[no-any-return]

    def fit(
        self,
        traced: Traced,
        where: Path,
        *,
        batches: int = 8,
        epochs: int = 1,
        accumulated: int = 1,
        fails_at: int = -1,
        order_at: int = -1,
    ) -> int:
        class Line(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
                self.calls = -1

            def forward(self, points: Any, labels: Any = None) -> dict[str, Any]:
                self.calls += 1
                if self.calls == fails_at:
                    raise ZeroDivisionError("the training fails")
                if self.calls == order_at:
                    assert arm_here(2)
                found = self.layer(points)
                return {"loss": (found - labels).square().mean(), "logits": found}

        require("accelerate")
        trainer = transformers.Trainer(
            model=Line(),
            args=transformers.TrainingArguments(
                output_dir=str(where / "transformers"),
                per_device_train_batch_size=2,
                num_train_epochs=epochs,
                gradient_accumulation_steps=accumulated,
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                save_strategy="no",
                logging_strategy="no",
                dataloader_pin_memory=False,
            ),
            train_dataset=[{"points": torch.rand(4), "labels": torch.rand(1)} for _ in range(2 * batches)],
            callbacks=[traced],
        )
        trainer.train()
        return int(trainer.state.global_step)


class LightningCase:
    """Lightning's Trainer, with the callback or the profiler."""

    needs, tells_of_exceptions = "lightning", True

    def __init__(self, kind: str, batch_span: str) -> None:
        self.name = f"lightning, {kind}"
        self.batch_span = batch_span
        self._kind = kind

    def make(self, where: Path, **settings: Any) -> Traced:
        return getattr(Deferred("stepscope.lightning"), self._kind)(output_dir=str(where), **settings)  # type: ignore[no-any-return]

    def fit(
        self,
        traced: Traced,
        where: Path,
        *,
        batches: int = 8,
        epochs: int = 1,
        accumulated: int = 1,
        fails_at: int = -1,
        order_at: int = -1,
    ) -> int:
        place = {"callbacks": [traced]} if self._kind == "StepscopeCallback" else {"profiler": traced}
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accumulate_grad_batches=accumulated,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=where,
            log_every_n_steps=1,
            **place,
        )
        points = torch.utils.data.TensorDataset(torch.rand(2 * batches, 4))
        model = lightning_models.Tiny(fails_at=fails_at, order_at=order_at)
        trainer.fit(model, torch.utils.data.DataLoader(points, batch_size=2))
        return int(trainer.global_step)


CASES: tuple[Case, ...] = (
    KerasCase(),
    TransformersCase(),
    LightningCase("StepscopeCallback", "micro_step"),
    LightningCase("StepscopeProfiler", "run_training_batch"),
)
