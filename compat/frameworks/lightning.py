"""`StepscopeCallback` and `StepscopeProfiler` for Lightning, of `lightning` or of the older `pytorch_lightning`."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from stepscope.compat.frameworks import raise_missing
from stepscope.compat.frameworks.loop import Loop, TracingCallback, stores_errors, torch_operators
from stepscope.compat.frameworks.loop_settings import LoopArguments, LoopSettings
from stepscope.runtime.lifecycle.output_directory import RUNS

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.profilers import Profiler
else:
    try:
        # Both may be installed, and neither takes the other's callbacks: the one that the program uses counts.
        if sys.modules.get("pytorch_lightning") and "lightning.pytorch" not in sys.modules:
            from pytorch_lightning import Callback, LightningModule, Trainer
            from pytorch_lightning.profilers import Profiler
        else:
            from lightning.pytorch import Callback, LightningModule, Trainer
            from lightning.pytorch.profilers import Profiler
    except ModuleNotFoundError as error:
        if find_spec("pytorch_lightning") is None:
            raise_missing(error, "lightning", "Lightning", "lightning")
        from pytorch_lightning import Callback, LightningModule, Trainer
        from pytorch_lightning.profilers import Profiler


def _log_directory(log_dir: str | None) -> str | None:
    """Default directory of runs: next to Lightning's logs."""
    return None if log_dir is None else f"{log_dir}/{RUNS}"


def _placement(trainer: Trainer) -> tuple[int | None, int | None]:
    """(rank, world size) of a distributed training; `None` where there is but one process, so the environment is asked."""
    size = int(trainer.world_size)
    return (int(trainer.global_rank), size) if size > 1 else (None, None)


def _open(callback: StepscopeCallback, stage: str, trainer: Trainer, **first: int) -> None:
    rank, world_size = _placement(trainer)
    where = _log_directory(trainer.log_dir)
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

    An exception in the training closes the run, whose open window is incomplete, and goes on. Errors of
    tracing are in `errors` and the log, and never reach the training.

    Args:
        settings: see `stepscope.compat.frameworks.loop_settings.LoopSettings`. `output_dir` is `stepscope_runs` in `trainer.log_dir`
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


EVALUATIONS = {"validate": "validation", "test": "test", "predict": "predict"}
"""Stages that can run by themselves, and their names in Lightning's hooks."""

EPOCH = "run_training_epoch"
"""The action of an epoch of `fit`."""


class _Role(enum.Enum):
    """The role of an action in the steps."""

    NONE = enum.auto()
    OPENS = enum.auto()
    """The stage's loop begins, or goes on."""
    ENDS_BATCH = enum.auto()
    ENDS_EPOCH = enum.auto()


class StepscopeProfiler(TracingCallback, Profiler):
    """A profiler: `Trainer(profiler=StepscopeProfiler())`.

    Each stage (`fit`, `validate`, `test`, `predict`) is a run with steps of its own: in `fit` a step is an update of the
    weights, numbered from `trainer.global_step`, elsewhere a batch. A run begins with the stage's first batch and ends
    with the stage; as many cycles are recorded as the schedule says. When a stage ends, Lightning logs its table, or
    writes it to `filename`.

    Until a stage begins it holds no thread, file or socket, so it may be pickled. An exception that leaves the loop
    closes the run, whose open window is incomplete. Errors of tracing are in `errors` and the log, and never
    reach the training.

    Args:
        dirpath: directory of the runs; default: `stepscope_runs` in `trainer.log_dir`.
        filename: of the table, in `dirpath`; default: it is logged.
        settings: see `stepscope.compat.frameworks.loop_settings.LoopSettings`; `output_dir` goes before `dirpath`.

    Raises:
        TypeError, ValueError: if a setting is not what it should be.
    """

    _lightning_module: Any = None
    """Set by the Trainer, a weak reference."""

    def __init__(
        self, dirpath: str | Path | None = None, filename: str | None = None, **settings: Unpack[LoopArguments]
    ) -> None:
        super().__init__(dirpath, filename)
        self._chosen = dirpath
        self._log_dir: str | None = None
        self.loop = Loop(LoopSettings.of(settings), "lightning", torch_operators)
        self._forget()

    def _forget(self) -> None:
        self._roles: dict[str, _Role] = {}
        self._updates = 0
        self._before: BaseException | None = None

    def __getstate__(self) -> dict[str, Any]:
        live = ("_lightning_module", "_output_file", "_write_stream", "_roles", "_before")
        return {name: value for name, value in self.__dict__.items() if name not in live}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._output_file = self._write_stream = None
        self._forget()

    # what the Trainer calls

    @stores_errors
    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        self.loop.close()
        super().setup(getattr(stage, "value", stage), local_rank, log_dir)
        self._log_dir, self._roles = log_dir, {}
        # The caller may be handling an exception that has nothing to do with this training.
        self._before = sys.exception()

    @stores_errors
    def start(self, action_name: str) -> None:
        if not self.loop.stage and self._role(action_name) is _Role.OPENS:
            self._open()
        trainer = self._trainer() if action_name == EPOCH else None
        self.loop.enter(action_name, **({} if trainer is None else {"epoch": int(trainer.current_epoch)}))

    @stores_errors
    def stop(self, action_name: str) -> None:
        if not self.loop.exit(action_name) or not self.loop.stage:
            return
        error = sys.exception()
        if error is not None and error is not self._before and not isinstance(error, StopIteration):
            if not self.loop.depth:  # it leaves the loop; what is handled inside is none of our business
                self.loop.close(error)
            return
        role = self._role(action_name)
        if role is _Role.ENDS_BATCH and self._updated():
            self.loop.step()
        elif role is _Role.ENDS_EPOCH:
            self.loop.step("epoch")

    def summary(self) -> str:
        """The table of the open run, or of the last one; empty if nothing was recorded."""
        profiler = self.loop.profiler
        if profiler is None or not profiler.aggregates().rows:
            return ""
        return f"{(self._stage or '').upper()} profile of stepscope, in {profiler.output.path}\n{profiler.summary()}\n"

    @stores_errors
    def describe(self) -> None:
        """Ends the run and logs its table."""
        self._before = None
        self.loop.close()
        super().describe()

    def teardown(self, stage: str | None) -> None:
        """Ends the run. Lightning calls it when the object is deleted, too."""
        if "loop" in self.__dict__:  # not if making it failed
            self._teardown(stage)

    @stores_errors
    def _teardown(self, stage: str | None) -> None:
        self.loop.close()
        super().teardown(stage)

    # steps

    def _open(self) -> None:
        trainer = self._trainer()
        self._updates = 0 if trainer is None else int(trainer.global_step)
        stage = self._stage or "fit"
        first = {}
        if stage == "fit" and trainer is not None:
            first = {"step": self._updates, "epoch": int(trainer.current_epoch)}
        rank, world_size = (None, None) if trainer is None else _placement(trainer)
        where = self._chosen or _log_directory(self._log_dir)
        self.loop.open(stage, directory=where, rank=rank, world_size=world_size, **first)

    def _trainer(self) -> Trainer | None:
        module = self._lightning_module
        trainer: Trainer | None = None if module is None else module.trainer
        return trainer

    def _updated(self) -> bool:
        """True if the batch that ended is a step's last: always, but where gradients are accumulated."""
        trainer = self._trainer()
        if self._stage in EVALUATIONS or trainer is None:
            return True
        before, self._updates = self._updates, int(trainer.global_step)
        return self._updates != before

    def _role(self, action: str) -> _Role:
        role = self._roles.get(action)
        if role is None:
            role = self._roles[action] = _role(self._stage, action)
        return role


def _role(stage: str | None, action: str) -> _Role:
    # As Lightning 2 names them.
    evaluation = EVALUATIONS.get(stage or "")
    if evaluation is None:
        if action == EPOCH:
            return _Role.OPENS
        hook, epoch = "train", "on_train_epoch_end"
    else:
        if action.endswith("_next"):
            return _Role.OPENS
        hook, epoch = evaluation, f"on_{evaluation}_epoch_end"
    if action.startswith("[LightningModule]"):
        if action.endswith(f".on_{hook}_batch_end"):
            return _Role.ENDS_BATCH
        if action.endswith(f".{epoch}"):
            return _Role.ENDS_EPOCH
    return _Role.NONE
