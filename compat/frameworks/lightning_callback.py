"""`StepscopeCallback` for Lightning: a step is an update of the weights."""

from __future__ import annotations

from typing import Any, Unpack

from stepscope.compat.frameworks.lightning_base import Callback, LightningModule, Trainer, log_directory, placement
from stepscope.compat.frameworks.loop import Loop, Traced, guarded, torch_operators
from stepscope.compat.frameworks.loop_settings import LoopArguments, LoopSettings


class StepscopeCallback(Traced, Callback):
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

    def _open(self, stage: str, trainer: Trainer, step: int = 0) -> None:
        rank, world_size = placement(trainer)
        self.loop.open(stage, step=step, directory=log_directory(trainer.log_dir), rank=rank, world_size=world_size)

    # fit

    @guarded
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._updates = int(trainer.global_step)
        epochs = self.loop.settings.unit == "epoch"
        self._open("fit", trainer, int(trainer.current_epoch) if epochs else self._updates)

    @guarded
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.loop.enter("epoch", epoch=int(trainer.current_epoch))

    @guarded
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.loop.enter("micro_step", epoch=int(trainer.current_epoch), batch=batch_idx)

    @guarded
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.loop.leave("micro_step")
        updates = int(trainer.global_step)
        if updates != self._updates:
            self._updates = updates
            if self.loop.settings.unit == "step":
                self.loop.step()

    @guarded
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.loop.leave("epoch")
        if self.loop.settings.unit == "epoch":
            self.loop.step()

    @guarded
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.loop.close()

    # the other stages, and validation in a training

    @guarded
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin("validate", trainer)

    @guarded
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin("test", trainer)

    @guarded
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin("predict", trainer)

    def _begin(self, stage: str, trainer: Trainer) -> None:
        if trainer.state.fn == stage:
            self._open(stage, trainer)
        elif not trainer.sanity_checking:
            self.loop.enter(stage, epoch=int(trainer.current_epoch))

    @guarded
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.loop.enter("validation_step", batch=batch_idx)

    @guarded
    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.loop.enter("test_step", batch=batch_idx)

    @guarded
    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.loop.enter("predict_step", batch=batch_idx)

    @guarded
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._end_batch("validate", "validation_step")

    @guarded
    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._end_batch("test", "test_step")

    @guarded
    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._end_batch("predict", "predict_step")

    def _end_batch(self, stage: str, span: str) -> None:
        self.loop.leave(span)
        if self.loop.stage == stage and self.loop.settings.unit == "step":
            self.loop.step()

    @guarded
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end("validate")

    @guarded
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end("test")

    @guarded
    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end("predict")

    def _end(self, stage: str) -> None:
        if self.loop.stage == stage:
            self.loop.close()
        else:
            self.loop.leave(stage)

    # ends

    @guarded
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.loop.close(exception)

    @guarded
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.loop.close()
