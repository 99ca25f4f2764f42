"""`StepscopeTraceHandler` for Composer: passes the data of Composer's profiler to the exporters of stepscope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from stepscope.backends.torch.kineto.worker import ChromeFilesBackend
from stepscope.compat.frameworks import raise_missing
from stepscope.compat.frameworks.composer_schedule import BatchSchedule, our_action
from stepscope.compat.frameworks.loop import Loop, TracingCallback, stores_errors, torch_operators
from stepscope.compat.frameworks.loop_settings import LoopArguments, LoopSettings
from stepscope.runtime._core import instant
from stepscope.runtime.lifecycle.output_directory import RUNS
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.arguments import got

if TYPE_CHECKING:

    class _TraceHandler:
        """Composer is not among what the types are checked with."""

else:
    try:
        from composer.profiler import TraceHandler as _TraceHandler
    except ModuleNotFoundError as error:
        raise_missing(error, "composer", "Composer", "mosaicml")


class StepscopeTraceHandler(TracingCallback, _TraceHandler):
    """A trace handler: `composer.profiler.Profiler(schedule=..., trace_handlers=[StepscopeTraceHandler()])`.

    Then its schedule is followed, its markers become spans, instants and counters, and what its `TorchProfiler` wrote to
    a file becomes part of the window. Without Composer's profiler, as `Trainer(callbacks=[StepscopeTraceHandler()])`,
    it follows `batch_schedule`, or the schedule of the settings, and records operators of torch by itself.

    A step is a batch, numbered as `state.timestamp.batch` is, also after a resumption; microbatches are spans
    `micro_step`. Windows end with the epoch if the schedule says so, and when the trainer is closed: after an exception,
    that is the end of an incomplete one. Errors of tracing are in `errors` and the log, and never reach the
    training.

    Args:
        batch_schedule: from the state at the begin of a batch to an action, such as `stepscope.composer.cyclic_schedule`.
        settings: see `stepscope.compat.frameworks.loop_settings.LoopSettings`. In `output_dir`, `{run_name}` is replaced; it is
            `{run_name}/stepscope_runs` if it is not given.

    Raises:
        TypeError, ValueError: if a setting is not what it should be.
    """

    def __init__(self, *, batch_schedule: BatchSchedule | None = None, **settings: Unpack[LoopArguments]) -> None:
        super().__init__()
        if batch_schedule is not None and not callable(batch_schedule):
            raise TypeError(f"batch_schedule must be callable with the state, {got(batch_schedule)}")
        if batch_schedule is not None and {"schedule", "keep_last"} & settings.keys():
            raise ValueError("batch_schedule says what is recorded; leave schedule and keep_last out")
        self._batch_schedule = batch_schedule
        self._chosen = LoopSettings.of(settings)
        self._files: ChromeFilesBackend | None = None
        self._state: Any = None
        self.resumption_batch_idx = 0
        """Batch of its epoch at which the training was resumed; schedules read it."""
        self.loop = Loop(self._chosen, "composer")

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_files": None, "_state": None}

    # the trainer's events

    @stores_errors
    def after_load(self, state: Any, logger: Any) -> None:
        self.resumption_batch_idx = int(state.timestamp.batch_in_epoch)

    @stores_errors
    def fit_start(self, state: Any, logger: Any) -> None:
        self._state = state
        run_name = str(getattr(state, "run_name", None) or "composer")
        where = (self._chosen.output_dir or f"{{run_name}}/{RUNS}").replace("{run_name}", run_name)
        profiled = state.profiler is not None
        follows = self._chosen.keep_last is None and (profiled or self._batch_schedule is not None)
        backends = self._chosen.backends
        if backends is None:
            backends = () if profiled else torch_operators()
        self._files = ChromeFilesBackend()
        self.loop.settings = replace(
            self._chosen,
            output_dir=where,
            schedule=self._action if follows else self._chosen.schedule,
            backends=[*backends, self._files] if profiled else backends,
        )
        self.loop.open("fit", step=int(state.timestamp.batch), epoch=int(state.timestamp.epoch))

    @stores_errors
    def epoch_start(self, state: Any, logger: Any) -> None:
        self.loop.enter("epoch", epoch=int(state.timestamp.epoch))

    @stores_errors
    def before_forward(self, state: Any, logger: Any) -> None:
        self.loop.exit("micro_step")
        self.loop.enter("micro_step", batch=int(state.timestamp.batch))

    @stores_errors
    def after_backward(self, state: Any, logger: Any) -> None:
        self.loop.exit("micro_step")

    @stores_errors
    def batch_end(self, state: Any, logger: Any) -> None:
        self.loop.exit("micro_step")
        self.loop.step()

    @stores_errors
    def epoch_end(self, state: Any, logger: Any) -> None:
        self.loop.exit("epoch")
        self.loop.step("epoch")

    @stores_errors
    def eval_start(self, state: Any, logger: Any) -> None:
        self.loop.enter("eval")

    @stores_errors
    def eval_end(self, state: Any, logger: Any) -> None:
        self.loop.exit("eval")

    @stores_errors
    def close(self, state: Any, logger: Any) -> None:
        self.loop.close()
        self._state = None

    fit_end = close

    def _action(self, step: int) -> object:
        """The schedule's action for the next batch."""
        state = self._state
        if state is None:
            return ProfilerAction.NONE
        following = NextBatch(state, self)
        if state.profiler is not None:
            return our_action(state.profiler.schedule(following))
        assert self._batch_schedule is not None
        return our_action(self._batch_schedule(following))

    # the events of Composer's profiler

    @stores_errors
    def process_duration_event(
        self,
        name: str,
        categories: Sequence[str],
        is_start: bool,
        timestamp: Any,
        wall_clock_time_ns: int,
    ) -> None:
        """Begins or ends a span at this time: Composer calls it when that happens."""
        if is_start:
            self.loop.enter(name, categories=",".join(categories), batch=int(timestamp.batch))
        else:
            self.loop.exit(name)

    @stores_errors
    def process_instant_event(
        self, name: str, categories: Sequence[str], timestamp: Any, wall_clock_time_ns: int
    ) -> None:
        """Records an instant."""
        instant(name, category="composer", categories=",".join(categories), batch=int(timestamp.batch))

    @stores_errors
    def process_counter_event(
        self,
        name: str,
        categories: Sequence[str],
        timestamp: Any,
        wall_clock_time_ns: int,
        values: Mapping[str, float],
    ) -> None:
        """Records each value as a counter, named `name/key`."""
        self.loop.counters({f"{name}/{key}": value for key, value in values.items()})

    @stores_errors
    def process_chrome_json_trace_file(self, filepath: str | Path) -> None:
        """Adds what a file of torch's profiler holds to the window that is open; read in the background."""
        if self._files is not None:
            self._files.add(Path(filepath))


class NextBatch:
    """A state as it will be when the next batch begins: at the end of an epoch, that is the first of the next."""

    def __init__(self, state: Any, handler: StepscopeTraceHandler) -> None:
        self._state = state
        self._handler = handler

    @property
    def timestamp(self) -> Any:
        """The time of the next batch."""
        timestamp, length = self._state.timestamp, self._state.dataloader_len
        if length is not None and int(timestamp.batch_in_epoch) >= int(length) > 0:
            return timestamp.to_next_epoch()
        return timestamp

    @property
    def profiler(self) -> Any:
        """Composer's profiler, or an object that knows as well where the training was resumed."""
        return self._state.profiler or self._handler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)
