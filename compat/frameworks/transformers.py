"""`StepscopeCallback` for the Trainer of Transformers: a step is an update of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from stepscope.compat.frameworks import raise_missing
from stepscope.compat.frameworks.loop import Loop, TracingCallback, stores_errors, torch_operators
from stepscope.compat.frameworks.loop_settings import DEFAULT, LoopArguments, LoopSettings
from stepscope.runtime._core import instant
from stepscope.runtime.lifecycle.output_directory import RUNS

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerState, TrainingArguments
else:
    try:
        from transformers import TrainerCallback, TrainerState, TrainingArguments
    except ModuleNotFoundError as error:
        raise_missing(error, "transformers", "Transformers", "transformers accelerate")


class StepscopeCallback(TracingCallback, TrainerCallback):
    """A callback: `Trainer(callbacks=[StepscopeCallback()])`.

    A training is a run in `output_dir`/fit. Its steps are updates of the weights, numbered as `state.global_step` was at
    the begin, so a resumed training goes on counting. In a step are a span `micro_step` for each batch whose gradients
    are accumulated and one `optimizer_step`; numbers that the Trainer logs are counters. An evaluation in the course
    of a training is a span of the step that it falls in. One by itself is a run `evaluate`, whose steps are batches; as
    the Trainer reports only a batch's end, it begins with batch 1.

    The Trainer reports no exception to callbacks: where a program goes on after one, write
    `with StepscopeCallback() as tracing:` around the training, and the window is closed as incomplete at once. Without
    that it is when the next training begins, the callback is deleted, or the program ends. Errors of tracing
    are in `errors` and the log, and never reach the training.

    Args:
        profiler_wait_steps: as `wait` of `stepscope.schedule`; these names are the ones that LlamaFactory has.
        profiler_warmup_steps: as `warmup`.
        profiler_active_steps: as `active`.
        profiler_repeat: as `repeat`.
        profiler_output_dir: as `output_dir`.
        settings: see `stepscope.compat.frameworks.loop_settings.LoopSettings`. `output_dir` is `stepscope_runs` in that of the training
            arguments if it is not given.

    Raises:
        TypeError, ValueError: if a setting is not what it should be, or is given under two names.
    """

    def __init__(
        self,
        *,
        profiler_wait_steps: int | None = None,
        profiler_warmup_steps: int | None = None,
        profiler_active_steps: int | None = None,
        profiler_repeat: int | None = None,
        profiler_output_dir: str | None = None,
        **settings: Unpack[LoopArguments],
    ) -> None:
        super().__init__()
        cycle = {
            "wait": profiler_wait_steps,
            "warmup": profiler_warmup_steps,
            "active": profiler_active_steps,
            "repeat": profiler_repeat,
        }
        changed = {name: value for name, value in cycle.items() if value is not None}
        chosen = msgspec.structs.replace(DEFAULT, **changed) if changed else None
        also = {
            "profiler_..._steps": ("schedule", chosen),
            "profiler_output_dir": ("output_dir", profiler_output_dir),
        }
        self.loop = Loop(LoopSettings.of(settings, also), "transformers", torch_operators)

    def _open(self, stage: str, args: TrainingArguments, **first: int) -> None:
        world_size, rank = int(args.world_size), int(args.process_index)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        self.loop.open(
            stage,
            directory=f"{args.output_dir}/{RUNS}",
            rank=rank if world_size > 1 else None,
            world_size=world_size if world_size > 1 else None,
            **first,
        )

    # training

    @stores_errors
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._open("fit", args, step=state.global_step, epoch=int(state.epoch or 0))

    @stores_errors
    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loop.enter("epoch", epoch=round(state.epoch or 0))

    @stores_errors
    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loop.enter("micro_step", epoch=int(state.epoch or 0))

    @stores_errors
    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loop.exit("micro_step")
        self.loop.enter("micro_step", epoch=int(state.epoch or 0))

    @stores_errors
    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loop.exit("micro_step")
        self.loop.enter("optimizer_step")

    @stores_errors
    def on_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loop.exit("optimizer_step")

    @stores_errors
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loop.exit("micro_step")  # of releases that do not report the optimizer
        self.loop.step()

    @stores_errors
    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loop.exit("micro_step")  # of an epoch that ended among accumulated batches
        self.loop.exit("epoch")
        self.loop.step("epoch")

    @stores_errors
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loop.close()

    # evaluation

    @stores_errors
    def on_prediction_step(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.loop.stage == "fit":
            if self.loop.exit("prediction_step"):
                self.loop.enter("prediction_step")
            else:
                self.loop.enter("evaluation")
                self.loop.enter("prediction_step")
        elif self.loop.stage == "evaluate":
            self.loop.step()
        else:
            self._open("evaluate", args, step=1)

    @stores_errors
    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._end_evaluation()

    @stores_errors
    def on_predict(self, args: TrainingArguments, state: TrainerState, control: Any, *more: Any, **kwargs: Any) -> None:
        self._end_evaluation()

    def _end_evaluation(self) -> None:
        if self.loop.stage == "evaluate":
            self.loop.close()
        self.loop.exit("prediction_step")
        self.loop.exit("evaluation")

    # other calls

    @stores_errors
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: Any,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.loop.counters({name: value for name, value in (logs or {}).items() if isinstance(value, int | float)})

    @stores_errors
    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        instant("checkpoint", category="transformers", step=state.global_step)
