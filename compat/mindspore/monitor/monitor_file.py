"""The requests in the file of `DynamicProfilerMonitor`, for the runtime's control."""

from __future__ import annotations

from typing import Literal

from stepscope.compat.mindspore.monitor.dynamic_args import DynamicProfilerArgs
from stepscope.runtime.requests.end_change import EndRequest
from stepscope.runtime.requests.window_request import WindowRequest

Late = Literal["refuse", "clip"]


class MonitorFile:
    """The content of a file, as a request for a window or for another end of one; 1 is the first step."""

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
