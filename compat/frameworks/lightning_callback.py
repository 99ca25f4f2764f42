"""`StepscopeCallback` for Lightning: a step is an update of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from stepscope.compat.frameworks.lightning_base import Callback, LightningModule, Trainer, log_directory, placement
from stepscope.compat.frameworks.loop import Loop, TracingCallback, stores_errors, torch_operators
from stepscope.compat.frameworks.loop_settings import LoopArguments, LoopSettings


def _open(callback: StepscopeCallback, stage: str, trainer: Trainer, **first: int) -> None:
    rank, world_size = placement(trainer)
    where = log_directory(trainer.log_dir)
    callback.loop.open(stage, directory=where, rank=rank, world_size=world_size, **first)


def _hooks(stage: str, name: str) -> tuple[Callable[..., None], ...]:
    """Hooks of the begin of a stage, of the begin and end of a batch, whose span has a name, and of the stage's end."""

    @stores_errors
    def start(callback: StepscopeCallback, trainer: Trainer, module: LightningModule) -> None:
        if trainer.state.fn == stage:
            _open(callback, stage, trainer)
        elif not trainer.sanity_checking:
            callback.loop.enter(stage, epoch=int(trainer.current_epoch))

    @stores_errors
    def start_batch(
        callback: StepscopeCallback, trainer: Trainer, module: LightningModule, batch: Any, index: int, loader: int = 0
    ) -> None:
        callback.loop.enter(name, batch=index)

    @stores_errors
    def end_batch(callback: StepscopeCallback, trainer: Trainer, module: LightningModule, *batch: Any) -> None:
        callback.loop.end_batch(stage, name)

    @stores_errors
    def end(callback: StepscopeCallback, trainer: Trainer, module: LightningModule) -> None:
        callback.loop.end_stage(stage)

    return start, start_batch, end_batch, end


class StepscopeCallback(TracingCallback, Callback):
    """Traces `fit`, and `validate`, `test` and `predict` by themselves, each as a run with steps of its own.

    A step of `fit` is an update of the weights, numbered from `trainer.global_step` at the begin, so a resumed training
    goes on counting; batches whose gradients are accumulated are spans `micro_step` in it. The first step begins with
    the training itself: the sanity check before it belongs to none. Validation in the course of a training is a span of
    the step that it falls in. In the other stages a step is a batch.

    An exception in the training closes the run, whose open window is incomplete, and goes on. What goes wrong with
    tracing is in `errors` and the log, and never reaches the training.

    Args:
        settings: see `stepscope.compat.frameworks.loop_settings.LoopSettings`. `output_dir` is `stepscope` in `trainer.log_dir`
            if it is not given.

    Raises:
        TypeError, ValueError: if a setting is not what it should be.
    """

    def __init__(self, **settings: Unpack[LoopArguments]) -> None:
        super().__init__()
        self.loop = Loop(LoopSettings.of(settings), "lightning", torch_operators)
        self._updates = 0

    # fit

    @stores_errors
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._updates = int(trainer.global_step)
        _open(self, "fit", trainer, step=self._updates, epoch=int(trainer.current_epoch))

    @stores_errors
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.loop.enter("epoch", epoch=int(trainer.current_epoch))

    @stores_errors
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.loop.enter("micro_step", epoch=int(trainer.current_epoch), batch=batch_idx)

    @stores_errors
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.loop.exit("micro_step")
        updates = int(trainer.global_step)
        if updates != self._updates:
            self._updates = updates
            self.loop.step()

    @stores_errors
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.loop.exit("epoch")
        self.loop.step("epoch")

    @stores_errors
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.loop.close()

    # the other stages, and validation in a training

    on_validation_start, on_validation_batch_start, on_validation_batch_end, on_validation_end = _hooks(
        "validate", "validation_step"
    )
    on_test_start, on_test_batch_start, on_test_batch_end, on_test_end = _hooks("test", "test_step")
    on_predict_start, on_predict_batch_start, on_predict_batch_end, on_predict_end = _hooks("predict", "predict_step")

    # ends

    @stores_errors
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.loop.close(exception)

    @stores_errors
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.loop.close()
