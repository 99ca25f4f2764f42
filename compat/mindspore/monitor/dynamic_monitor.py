"""`DynamicProfilerMonitor`: records windows that a file requests while training runs."""

from __future__ import annotations

import json
import logging
import os
import sys
import weakref
from collections import deque
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import msgspec

from stepscope.compat.mindspore.analysis.background import wait_for_analyses
from stepscope.compat.mindspore.monitor.dynamic_args import DEFAULT_FILE, DynamicProfilerArgs
from stepscope.compat.mindspore.monitor.window_recorder import WindowRecorder
from stepscope.compat.mindspore.profiler import Profiler
from stepscope.compat.mindspore.sources.device import detect_target
from stepscope.runtime.control.controller import Controller
from stepscope.runtime.control.entry_points.environment import directory_from_environment
from stepscope.runtime.control.settings import Control
from stepscope.runtime.files.file_reading import create_once
from stepscope.runtime.lifecycle.shutdown_hooks import before_close
from stepscope.runtime.requests.armed_window import ArmedWindow
from stepscope.runtime.requests.end_change import EndRequest
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.session.job import rank_from_environment
from stepscope.runtime.settings.arguments import got, switch_argument
from stepscope.runtime.settings.validation import did_you_mean, find_invalid_value
from stepscope.runtime.steps.window_follower import WindowFollower
from stepscope.runtime.threads.background_call import call_before_threads_end

Late = Literal["refuse", "clip"]


class MonitorFile:
    """The content of a file, as a request for a window or for a change of its end. The first step is 1."""

    def __init__(self, config: DynamicProfilerArgs, late: Late, granularity: int) -> None:
        """Args: the fields of the file; see `DynamicProfilerMonitor` for the others."""
        self.config = config
        self._late: Late = late
        self._granularity = granularity

    def request(self) -> WindowRequest | None:
        """Returns the requested window; `None` if there is none.

        Raises:
            ValueError: if no window can be like that.
        """
        config = self.config
        start, stop, steps = config.start_step, config.stop_step, config.steps
        if config.ranks == () or start == -1 or (start != "next" and stop == -1 and not steps):
            return None
        if start == "next":
            if not steps:
                raise ValueError("start_step 'next' needs steps, which says how many")
            last = None
        else:
            last = start + steps - 1 if stop == -1 else stop
            if start < 1 or last < 1:
                raise ValueError(f"start_step {start} and stop_step {last} must be 1 or more, or -1 for no window")
            if start > last:
                raise ValueError(f"start_step {start} is greater than stop_step {last}")
        return WindowRequest(
            start_step=start,
            steps=steps if last is None else None,
            stop_step=last,
            run_id=config.run_id,
            ranks=config.ranks,
            granularity=self._granularity,
            group_start=1,
            past=self._late,
            overlap="queue" if start == "next" else config.overlap,
        )

    def end_request(self) -> EndRequest | None:
        """Returns the requested end of the window that runs; `None` without a command."""
        config = self.config
        if config.command == "abort":
            return EndRequest(command="abort", reason="it was aborted")
        if config.command == "extend":
            return EndRequest(
                command="extend", steps=config.steps, stop_step=0 if config.steps else max(config.stop_step, 0)
            )
        return None

    def key(self) -> str:
        """Returns a text that is the same for the same steps and command."""
        config = self.config
        return repr((config.command, config.start_step, config.stop_step, config.steps, config.run_id, config.ranks))


log = logging.getLogger("stepscope")

ALONE: Final = (
    "[Dynamic Profiler] rank %d: nobody says how many ranks there are, so this one goes by its own steps and agrees with no "
    "other; set RANK_SIZE, or call mindspore.communication.init() before the monitor is made"
)

CONFIG: Final = "profiler_config.json"
DEFAULT_OUTPUT: Final = "./dyn_profile_data"
DEFAULT_POLL_S: Final = 2.0
TERMINATION_WAIT_S: Final = 10.0
"""How long a process that is terminated waits for the products of its windows. Their raw data stay in any case."""

_ARGUMENTS = ("cfg_path", "output_path", "poll_interval", "late", "granularity", "step_position", "strict", "agree")


class DynamicProfilerMonitor:
    """Watches a file, and records the steps that it asks for, any number of windows one after the other.

    A callback for `mindspore.train.Model` where MindSpore is imported when this is made, and for any loop that calls
    `step_begin` and `step_end`; or call `step()` once in each step. The file is read by a thread of this process, so
    nothing is shared with other processes, and nothing is left when one is killed. A file that cannot be read changes
    nothing: see `<file>.status.json` beside it, which also says what became of what was asked for, and the log.

    Where the launcher or a framework announces several ranks, which watch the same file, all of them record the steps that
    rank 0 chooses; one that reads of them too late says that it missed the window.

    A window goes to `<output_path>/rank<R>_start<S>_stop<E>/`, named by the steps that were recorded, in a directory of
    its own. Nothing here raises into training, unless `strict`.

    Args:
        cfg_path: directory of `profiler_config.json`, or a file ending in `.json`; rank 0 makes it if it is missing.
        output_path: where windows go, unless the file has a `prof_path`.
        poll_interval: seconds between two looks at the file; 2 if it is no number above 0.
        late: `refuse` a window whose first step has passed, or `clip` it to what is left.
        granularity: steps that can only be recorded together, such as the sink size; windows are widened to whole groups.
            Where a callback is called once for a group, that is one step of the trace.
        step_position: where in the loop's body `step()` is called: at its `end`, as in MindSpore's examples, or `begin`.
        strict: let `step()` raise for a configuration that cannot be followed.
        agree: whether ranks record the steps that rank 0 chooses; otherwise each follows what it reads, by its own count.

    Raises:
        TypeError: if `cfg_path` is no path.
        ValueError: if `late`, `granularity` or `step_position` is not what it should be, or STEPSCOPE_OPTIONS cannot be
            followed.
        OSError: if the file cannot be made.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made: Self = object.__new__(_as_callback(cls))
        return made

    def __init__(
        self,
        cfg_path: str | os.PathLike[str],
        output_path: str | os.PathLike[str] = DEFAULT_OUTPUT,
        poll_interval: float = DEFAULT_POLL_S,
        *,
        late: Late = "refuse",
        granularity: int = 1,
        step_position: Literal["begin", "end"] = "end",
        strict: bool = False,
        agree: bool = True,
        **kwargs: Any,
    ) -> None:
        if not isinstance(cfg_path, str | os.PathLike):
            raise TypeError(f"cfg_path must be a path, {got(cfg_path)}")
        _check("late", late, Late)
        _check("step_position", step_position, Literal["begin", "end"])
        _check("granularity", granularity, Annotated[int, msgspec.Meta(ge=1)])
        switch_argument("strict", strict)
        switch_argument("agree", agree)
        for name in kwargs:
            log.warning(
                "DynamicProfilerMonitor has no argument %r, which has no effect%s", name, did_you_mean(name, _ARGUMENTS)
            )
        if not isinstance(output_path, str | os.PathLike):
            log.warning("output_path must be a path, %s; %r is taken", got(output_path), DEFAULT_OUTPUT)
            output_path = DEFAULT_OUTPUT
        place = Path(cfg_path)
        target = detect_target()
        self.rank = target.rank
        self.output_path = Path(directory_from_environment(output_path))
        self.config_path = Path(os.path.realpath(place if place.suffix == ".json" else place / CONFIG))
        several = agree and target.size_known and target.rank_size > 1
        if agree and not target.size_known and rank_from_environment()[0] is not None:
            log.warning(ALONE, self.rank)
        self._group, self._position, self._strict = granularity, step_position, strict
        self._recorder = WindowRecorder(self.rank, self.output_path)
        self._step_num = 0
        self._ended = 0
        """Number of the last step that has ended."""
        self._errors_to_raise: deque[str] = deque()
        self._early = False
        """Whether the window was begun in the constructor, before it was known that this object is a callback."""
        # The loop's first step goes on already, unless `step()` is called at its begin. MindSpore calls a callback for
        # it, so rank 0 has until then to plan a window that begins with it.
        goes_on = step_position == "end" and not (several and issubclass(type(self), _callback_class() or ()))
        prefix = f"[Dynamic Profiler] rank {self.rank}"
        self._windows = WindowFollower(
            prefix,
            rank=self.rank,
            step=1 if several and goes_on else 0,
            # Another rank may have read the file before this one.
            settings=lambda: self._control.read() if several else self._control.content,
        )
        self._control = Controller(
            Control(path=str(self.config_path), poll=_poll_seconds(poll_interval), create=False, agree=several),
            self._windows.arming,
            self.rank,
            target.rank_size,
            decode=lambda content: MonitorFile(self._decode(content), late, granularity),
            refused=self._refused,
            withdraws_planned=True,
            log_prefix=f"{prefix}: ",
        )
        if self.rank == 0:
            self.config_path.parent.mkdir(parents=True, exist_ok=True)
            create_once(self.config_path, json.dumps(DEFAULT_FILE, indent=4).encode() + b"\n")
        self._control.start()
        log.info("[Dynamic Profiler] rank %d: config json file: %s", self.rank, self.config_path)
        _open_monitors.add(self)
        if goes_on and self._windows.next_change <= 1:
            self._early = self._begin_step(1)

    @property
    def config(self) -> DynamicProfilerArgs | None:
        """The latest valid configuration."""
        found = self._control.followed
        return found.config if isinstance(found, MonitorFile) else None

    @property
    def profiler(self) -> Profiler:
        """The profiler that records all windows. It has the latest 64 of them."""
        return self._recorder.profiler

    # the callback

    def step_begin(self, run_context: Any) -> None:
        """Begins a step. Its number, 1 for the first, is `cur_step_num` of the context's original arguments."""
        self._recorder.end_wait()
        step = int(run_context.original_args().cur_step_num)
        self._recorder.steps_per_call = self._group
        if self._early:
            self._restart_window()
        # Where data are sunk the number is that of the last step of a group.
        first = 1 if step <= self._group else step
        self._begin_step(self._ended + 1 if 0 < self._ended < step else first)

    def step_end(self, run_context: Any) -> None:
        """Ends a step."""
        self._end_step(int(run_context.original_args().cur_step_num))
        self._recorder.begin_wait()

    def on_train_step_begin(self, run_context: Any) -> None:
        """Calls `step_begin`; MindSpore calls it by this name."""
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: Any) -> None:
        """Calls `step_end`; MindSpore calls it by this name."""
        self.step_end(run_context)

    def on_train_end(self, run_context: Any = None) -> None:
        """Training has ended: closes the open window, and stops watching the file."""
        self.close()

    # the other form

    def step(self) -> None:
        """Counts a step, the first is 1; called once in each, always at the same place of the loop's body.

        Raises:
            RuntimeError: with `strict`, for a configuration that cannot be followed.
        """
        self._early = False
        self._step_num += 1
        if self._position == "begin":
            if self._step_num > 1:
                self._end_step(self._step_num - 1)
            self._begin_step(self._step_num)
        else:
            self._end_step(self._step_num)
            self._begin_step(self._step_num + 1)
        if self._errors_to_raise:
            errors = [self._errors_to_raise.popleft() for _ in range(len(self._errors_to_raise))]
            raise RuntimeError(f"{self.config_path}: {'; '.join(errors)}")

    def close(self) -> None:
        """Ends the open window, which is analysed as far as it was recorded, and stops watching. Closing twice changes
        nothing."""
        self._close("training ended")

    def terminate(self) -> None:
        """Closes like `close()` in a process that is about to end: products are made in the background."""
        self._recorder.analyse_in_background()
        self._close("the process was terminated")

    def _close(self, reason: str) -> None:
        if self._recorder.recording:
            log.warning("[Dynamic Profiler] rank %d: %s inside of a window", self.rank, reason)
            self._cut(self._ended, reason)
        self._control.close()
        _open_monitors.discard(self)

    # both

    def _decode(self, content: bytes) -> DynamicProfilerArgs:
        config = DynamicProfilerArgs.from_json(content)
        for text in config.diagnostics:
            log.warning("[Dynamic Profiler] rank %d: %s", self.rank, text)
        return config

    def _refused(self, answer: str) -> None:
        """Reports a refused request; called on the control thread, or by the constructor."""
        log.error("[Dynamic Profiler] rank %d: %s", self.rank, answer)
        if self._strict:
            self._errors_to_raise.append(answer)

    def _begin_step(self, step: int) -> bool:
        """Begins a window if one has to begin with this step. Returns whether it did."""
        window = self._windows.begin(step)
        return window is not None and self._begin(window)

    def _end_step(self, step: int) -> None:
        self._ended = step
        if self._recorder.recording:
            self._recorder.step(self._windows.end(step))

    def _begin(self, window: ArmedWindow) -> bool:
        found = window.settings
        begun = self._recorder.begin(window, found.config if isinstance(found, MonitorFile) else DynamicProfilerArgs())
        if not begun:
            self._cut(window.first, "it could not begin")
        return begun

    def _restart_window(self) -> None:
        """Discards what a window recorded before the first step, and begins it again."""
        self._early = False
        window = self._windows.running
        if window is not None and self._recorder.recording:
            self._recorder.discard()
            self._begin(window)

    def _cut(self, step: int, reason: str) -> None:
        window = self._windows.cut(step, reason)
        if window is not None:
            self._recorder.finish(window)


_classes: dict[type, type] = {}


def _as_callback(kind: type[Any]) -> type[Any]:
    """Makes the class a callback of MindSpore as well, if that is imported; its constructor calls nothing else."""
    base = _callback_class()
    if base is None or issubclass(kind, base):
        return kind
    if kind not in _classes:
        body = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__qualname__": kind.__qualname__}
        _classes[kind] = type(kind.__name__, (kind, base), body)
    return _classes[kind]


def _callback_class() -> Any:
    """MindSpore's own class of callbacks; `None` if that is not imported."""
    return getattr(sys.modules.get("mindspore.train"), "Callback", None)


def _check(name: str, value: object, kind: Any) -> None:
    invalid = find_invalid_value(value, kind, name)
    if invalid is not None:
        raise ValueError(invalid.text)


def _poll_seconds(interval: object) -> float:
    if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0.01 <= interval <= 86_400:
        log.error("poll_interval must be a number of seconds from 0.01 to 86400, %s; 2 is taken", got(interval))
        return DEFAULT_POLL_S
    return float(interval)


_open_monitors: Final[weakref.WeakSet[DynamicProfilerMonitor]] = weakref.WeakSet()


def _close_all() -> None:
    for monitor in list(_open_monitors):
        monitor.close()


def _terminate_all() -> None:
    for monitor in list(_open_monitors):
        monitor.terminate()
    wait_for_analyses(TERMINATION_WAIT_S)


call_before_threads_end(_close_all)
before_close.add(_terminate_all)
os.register_at_fork(after_in_child=_open_monitors.clear)
