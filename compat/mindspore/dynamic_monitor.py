"""`DynamicProfilerMonitor`: windows that a file asks for while training runs."""

from __future__ import annotations

import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from stepscope.compat.mindspore import target as targets
from stepscope.compat.mindspore.agreed_windows import AgreedWindows
from stepscope.compat.mindspore.asked_steps import Asked, Ended, Late, Planned
from stepscope.compat.mindspore.callback_class import as_callback, is_callback
from stepscope.compat.mindspore.dynamic_args import DEFAULT_FILE, DynamicProfilerArgs
from stepscope.compat.mindspore.monitor_arguments import (
    DEFAULT_OUTPUT,
    DEFAULT_POLL,
    Position,
    check,
    output_directory,
    poll_seconds,
    warn_of_unknown,
)
from stepscope.compat.mindspore.open_monitors import open_monitors
from stepscope.compat.mindspore.profiler import Profiler
from stepscope.compat.mindspore.step_windows import StepWindows
from stepscope.compat.mindspore.window_recorder import WindowRecorder
from stepscope.runtime.control import control_loop
from stepscope.runtime.control.entry_points.environment import directory_from_environment
from stepscope.runtime.control.entry_points.watched_file import WatchedFile
from stepscope.runtime.control.file_requests import TRIGGER
from stepscope.runtime.session.job import rank_from_environment

log = logging.getLogger("stepscope")

ALONE: Final = (
    "[Dynamic Profiler] rank %d: nobody says how many ranks there are, so this one goes by its own steps and agrees with no "
    "other; set RANK_SIZE, or call mindspore.communication.init() before the monitor is made"
)

CONFIG: Final = "profiler_config.json"


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
        made: Self = object.__new__(as_callback(cls))
        return made

    def __init__(
        self,
        cfg_path: str | os.PathLike[str],
        output_path: str | os.PathLike[str] = DEFAULT_OUTPUT,
        poll_interval: float = DEFAULT_POLL,
        *,
        late: Late = "refuse",
        granularity: int = 1,
        step_position: Position = "end",
        strict: bool = False,
        agree: bool = True,
        **kwargs: Any,
    ) -> None:
        if not isinstance(cfg_path, str | os.PathLike):
            raise TypeError("The cfg_path must be a string.")
        check(late, step_position, granularity)
        warn_of_unknown(kwargs)
        output_path = output_directory(output_path)
        place = Path(cfg_path)
        target = targets.find()
        self.rank = target.rank
        self.output_path = Path(directory_from_environment(output_path))
        self.config_path = Path(os.path.realpath(place if place.suffix == ".json" else place / CONFIG))
        several = agree and target.size_known and target.rank_size > 1
        if agree and not target.size_known and rank_from_environment()[0] is not None:
            log.warning(ALONE, self.rank)
        self._windows = StepWindows(late, granularity, rank=self.rank, agreed=several)
        self._group, self._position, self._strict = granularity, step_position, strict
        self._recorder = WindowRecorder(self.rank, self.output_path)
        self._step_num = 0
        self._ended = 0
        """Number of the last step that has ended."""
        self._unraised: list[str] = []
        self._early = False
        """Whether the window was begun where this was made, before anybody said that this is a callback."""
        poll = poll_seconds(poll_interval)
        self._file = WatchedFile(
            self.config_path,
            DynamicProfilerArgs.from_json,
            default=json.dumps(DEFAULT_FILE, indent=4).encode() + b"\n",
            create=self.rank == 0,
            poll=poll,
            on_change=self._changed,
            status=self.rank == 0,
        )
        self._config: DynamicProfilerArgs | None = None
        self._latest: Asked | None = None
        """What that says of steps."""
        self._agreed: AgreedWindows | None = None
        if several:
            self._windows.configuration = self._read_now
            self._agreed = AgreedWindows(
                self._windows,
                self.config_path,
                self._file.status,
                rank=self.rank,
                world_size=target.rank_size,
                poll=poll,
            )
        self._loop: control_loop.ControlLoop | None = control_loop.acquire()
        try:
            self._file.start()
            if self._agreed is not None:
                self._agreed.start()
        except BaseException:
            self._let_go()
            raise
        self._say(f"config json file: {self.config_path}")
        open_monitors.add(self)
        # The loop's first step goes on already, unless `step()` is called at its begin. A callback of MindSpore is told of
        # it: so rank 0 has until then to plan a window that begins with it.
        if step_position == "end" and not (several and is_callback(type(self))):
            self._early = self._before(1)

    @property
    def config(self) -> DynamicProfilerArgs | None:
        """The latest configuration that could be read; reading it costs what reading an attribute costs."""
        return self._file.current

    @property
    def profilers(self) -> list[Profiler]:
        """One for each window so far, of the latest 64."""
        return self._recorder.profilers

    # the callback

    def step_begin(self, run_context: Any) -> None:
        """A step begins, whose number, 1 for the first, is `cur_step_num` of the context's original arguments."""
        self._recorder.go_on()
        step = int(run_context.original_args().cur_step_num)
        self._recorder.steps_per_call = self._group
        if self._early:
            self._begin_again()
        # Where data are sunk the number is that of the last step of a group.
        first = 1 if step <= self._group else step
        self._before(self._ended + 1 if 0 < self._ended < step else first)

    def step_end(self, run_context: Any) -> None:
        """A step has ended."""
        self._after(int(run_context.original_args().cur_step_num))
        self._recorder.wait()

    def on_train_step_begin(self, run_context: Any) -> None:
        """As `step_begin`, by the name that MindSpore calls."""
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: Any) -> None:
        """As `step_end`, by the name that MindSpore calls."""
        self.step_end(run_context)

    def on_train_end(self, run_context: Any = None) -> None:
        """Training has ended: a window that runs ends, and the file is not watched any more."""
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
                self._after(self._step_num - 1)
            self._before(self._step_num)
        else:
            self._after(self._step_num)
            self._before(self._step_num + 1)
        if self._unraised:
            said, self._unraised = self._unraised, []
            raise RuntimeError(f"{self.config_path}: {'; '.join(said)}")

    def close(self) -> None:
        """Ends what runs, which is analysed as far as it came, and stops watching. Closing twice changes nothing."""
        self._close("training ended")

    def terminate(self) -> None:
        """As `close()`, for a process that is about to end: products are made in the background."""
        self._recorder.analyse_in_background()
        self._close("the process was terminated")

    def _close(self, reason: str) -> None:
        if self._recorder.recording:
            log.warning("[Dynamic Profiler] rank %d: %s inside of a window", self.rank, reason)
            self._finish(self._windows.end(self._ended, reason))
        self._let_go()
        open_monitors.discard(self)

    def _let_go(self) -> None:
        if self._agreed is not None:
            self._agreed.close()
        self._file.close()
        loop, self._loop = self._loop, None
        if loop is not None:
            control_loop.release(loop)

    # both

    def _changed(self, config: DynamicProfilerArgs) -> None:
        """The file says something new; on the control thread, or where this is made."""
        if self._agreed is not None:
            self._agreed.ask(_asked_by(config))

    def _asked(self) -> Asked | None:
        """What the file says of steps, the same object until it changes; `None` where rank 0 plans that."""
        config = self._file.current
        if config is not self._config and self._agreed is None and config is not None:
            self._config, self._latest = config, _asked_by(config)
        return self._latest

    def _read_now(self) -> DynamicProfilerArgs | None:
        """What the file says now; on the control thread. Another rank may have read it before this one."""
        self._file.look(patient=True)
        return self._file.current

    def _before(self, step: int) -> bool:
        """Begins a window if one has to begin with this step; whether one did."""
        planned = self._windows.before(self._asked(), step)
        begun = planned is not None and self._begin(planned)
        if planned is not None and not begun:
            self._windows.end(step, "it could not begin")
        if self._windows.complains:
            self._complain()
        return begun

    def _after(self, step: int) -> None:
        self._ended = step
        if not self._recorder.recording:
            return
        ended = self._windows.after(self._asked(), step)
        self._recorder.step(ended)
        if ended is not None:
            self._report("")
        if self._windows.complains:
            self._complain()

    def _begin(self, planned: Planned) -> bool:
        config = self._file.current
        assert config is not None
        begun = self._recorder.begin(planned, config)
        if begun:
            self._report(f"recording steps {planned.first}-{planned.last}")
        return begun

    def _finish(self, ended: Ended | None) -> None:
        if ended is not None:
            self._recorder.finish(ended)
            self._report("")

    def _begin_again(self) -> None:
        """The window was begun where this was made; what it recorded since is no part of the first step."""
        self._early = False
        planned = self._windows.running
        if planned is None or not self._recorder.recording:
            return
        self._recorder.discard()
        if not self._begin(planned):
            self._windows.end(planned.first)

    def _complain(self) -> None:
        said = self._windows.take_complaints()
        for text in said:
            log.error("[Dynamic Profiler] rank %d: %s", self.rank, text)
            self._report(text)
        self._unraised += said if self._strict else []

    def _report(self, answer: str) -> None:
        """Has the control thread write to the status file how things stand; of several ranks, that is done by itself."""
        loop, asked, windows, status = self._loop, self._latest, self._windows.armed(), self._file.status
        if loop is None or asked is None or not status.enabled:
            return
        if answer:
            put_answer = partial(status.put_answer, asked.text(), answer, trigger=TRIGGER, run_id=asked.run_id)
            loop.call_soon(put_answer)
        loop.call_soon(partial(status.put_windows, windows))

    def _say(self, text: str) -> None:
        log.info("[Dynamic Profiler] rank %d: %s", self.rank, text)


def _asked_by(config: DynamicProfilerArgs) -> Asked:
    return Asked(config.start_step, config.stop_step, config.run_id, config.command, config.steps, config.ranks)
