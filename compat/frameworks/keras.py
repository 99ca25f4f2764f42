"""`StepscopeCallback` for Keras 3, on any of its backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

from stepscope.backends.base import Backend
from stepscope.backends.torch.backend import TorchBackend
from stepscope.compat.frameworks import raise_missing
from stepscope.compat.frameworks.loop import Loop, TracingCallback, stores_errors
from stepscope.compat.frameworks.loop_settings import LoopArguments, LoopSettings
from stepscope.runtime.schedule.schedule import schedule

if TYPE_CHECKING:
    # Keras has no types of its own: what we use of its callback is little.
    class _Callback:
        model: Any
else:
    try:
        from keras.callbacks import Callback as _Callback
    except ModuleNotFoundError as error:
        raise_missing(error, "keras", "Keras", "keras")

Logs = Mapping[str, Any] | None


def _hooks(stage: str, name: str) -> tuple[Callable[..., None], ...]:
    """Hooks of the begin of a stage, of the begin and end of a batch, whose span has a name, and of the stage's end."""

    @stores_errors
    def begin(callback: StepscopeCallback, logs: Logs = None) -> None:
        if callback.loop.stage == "fit":
            callback.loop.enter(stage)
        else:
            callback.loop.open(stage)

    @stores_errors
    def begin_batch(callback: StepscopeCallback, batch: int, logs: Logs = None) -> None:
        callback.loop.enter(name, batch=batch)

    @stores_errors
    def end_batch(callback: StepscopeCallback, batch: int, logs: Logs = None) -> None:
        callback.loop.end_batch(stage, name)

    @stores_errors
    def end(callback: StepscopeCallback, logs: Logs = None) -> None:
        callback.loop.end_stage(stage)

    return begin, begin_batch, end_batch, end


class StepscopeCallback(TracingCallback, _Callback):
    """A callback: `model.fit(..., callbacks=[StepscopeCallback()])`, and likewise for `evaluate` and `predict`.

    Each is a run with steps of its own. In `fit` a step is an update of the weights, numbered from
    `optimizer.iterations` at the begin, so a resumed training goes on counting; batches whose gradients are accumulated
    are spans `micro_step` in it. With `steps_per_execution` above 1 Keras reports whole executions, and one is a step.
    Validation in `fit` is a span of the step that it falls in. The logs of an epoch are counters.

    Runs on the torch backend as on the others, where `keras.callbacks.TensorBoard(profile_batch=...)` does not; there
    the operators of torch are recorded, too.

    Keras reports no exception to callbacks: where a program goes on after one, write
    `with StepscopeCallback() as tracing:` around the training, and the window is closed as incomplete at once. Without
    that it is when the next training begins, the callback is deleted, or the program ends. Errors of tracing
    are in `errors` and the log, and never reach the training.

    Args:
        log_dir: as `output_dir`; the name that `keras.callbacks.TensorBoard` has.
        profile_batch: instead of a schedule, as there: one batch, or (first, last) or "first,last", counted from 1 in each `fit`; 0 for none.
        settings: see `stepscope.compat.frameworks.loop_settings.LoopSettings`.

    Raises:
        TypeError, ValueError: if a setting is not what it should be, or is given under two names.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        *,
        profile_batch: int | str | Sequence[int] | None = None,
        **settings: Unpack[LoopArguments],
    ) -> None:
        super().__init__()
        cycle = None
        if profile_batch is not None:
            first, last = _range(profile_batch)
            if last:
                warmup = min(first - 1, 1)
                cycle = schedule(
                    skip_first=first - 1 - warmup, wait=0, warmup=warmup, active=last - first + 1, repeat=1
                )
            else:
                settings["ranks"] = ()  # nobody records
        also = {"log_dir": ("output_dir", log_dir), "profile_batch": ("schedule", cycle)}
        self.loop = Loop(LoopSettings.of(settings, also), "keras", _operators, counts_anew=cycle is not None)
        self._accumulate = 1
        self._batches = 0
        self._begins = False

    # training

    @stores_errors
    def on_train_begin(self, logs: Logs = None) -> None:
        optimizer = getattr(self.model, "optimizer", None)
        self._accumulate = int(getattr(optimizer, "gradient_accumulation_steps", None) or 1)
        # Batches since the last update, of a training before this one: Keras counts on.
        self._batches = _number(getattr(optimizer, "_iterations", 0)) % self._accumulate
        self._begins = True

    @stores_errors
    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        if self._begins:  # here, as only this says the epoch's number: `initial_epoch` may be any
            self._begins = False
            optimizer = getattr(self.model, "optimizer", None)
            self.loop.open("fit", step=_number(getattr(optimizer, "iterations", 0)), epoch=epoch)
        self.loop.enter("epoch", epoch=epoch)

    @stores_errors
    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self.loop.enter("micro_step", batch=batch)

    @stores_errors
    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self.loop.exit("micro_step")
        self._batches += 1
        if self._batches >= self._accumulate:
            self._batches = 0
            self.loop.step()

    @stores_errors
    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.loop.exit("epoch")
        self.loop.counters(logs or {})
        self.loop.step("epoch")

    @stores_errors
    def on_train_end(self, logs: Logs = None) -> None:
        self.loop.close()

    # evaluation, by itself or in a training, and prediction

    on_test_begin, on_test_batch_begin, on_test_batch_end, on_test_end = _hooks("evaluate", "test_step")
    on_predict_begin, on_predict_batch_begin, on_predict_batch_end, on_predict_end = _hooks("predict", "predict_step")


def _operators() -> Sequence[Backend]:
    keras: Any = import_module("keras")
    return (TorchBackend(),) if keras.backend.backend() == "torch" else ()


def _number(value: Any) -> int:
    """Converts a variable of Keras to a number; 0 if there is none yet."""
    return 0 if value is None else int(value)


def _range(batches: int | str | Sequence[int]) -> tuple[int, int]:
    """The first and the last batch."""
    try:
        if isinstance(batches, str):
            numbers = [int(part) for part in batches.split(",")]
        else:
            numbers = [batches] if isinstance(batches, int) else list(batches)
        first, last = numbers * 2 if len(numbers) == 1 else numbers
    except (TypeError, ValueError) as error:
        raise _refusal(batches) from error
    if isinstance(first, bool) or not (1 <= first <= last or first == last == 0):
        raise _refusal(batches)
    return first, last


def _refusal(batches: object) -> ValueError:
    return ValueError(f"profile_batch must be a batch from 1, or (first, last), got {batches!r}")
