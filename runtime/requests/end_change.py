"""Changes of the end of armed windows: they become longer, or end early, with the same step on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec

from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.requests.armed import Armed, ArmedStatus
from stepscope.runtime.requests.armed_window import ArmedWindow
from stepscope.runtime.requests.window_request import MAX_STEP, RunId, Seconds, StepNumber
from stepscope.runtime.schedule.schedule import NEVER

NOTHING = "no armed window runs"
NOTHING_WAITS = "no armed window runs or waits"
BEYOND = f"the window would end with step {{:,}}, and {MAX_STEP:,} is the last number that a step can have"
OTHER_UNIT = "the window is one of {}: say how many more"


class EndRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for another end of the running window."""

    command: Literal["extend", "abort"]
    steps: StepNumber = 0
    """`extend`: number of further steps, rounded up to whole groups of the window."""
    seconds: Seconds = 0.0
    """`extend`: or further seconds."""
    stop_step: StepNumber = 0
    """`extend`: or the last step; 0: by `steps` or `seconds`."""
    run_id: RunId = ""
    """`abort`: only windows of this run id; empty for all."""
    reason: str = ""
    """`abort`: the reason."""

    def text(self) -> str:
        """Returns the request as text: `extend by 5 steps`."""
        if self.command == "abort":
            return f"abort of {self.run_id!r}" if self.run_id else "abort"
        if self.stop_step:
            return f"extend to step {self.stop_step}"
        return f"extend by {self.seconds:g} s" if self.seconds else f"extend by {self.steps} steps"


class EndChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the end of windows. Its result depends on the windows only, not on the time of its execution."""

    command: Literal["extend", "abort"]
    """`abort`: windows end with `last`, and later ones are removed. `extend`: one window continues until `last`."""
    last: StepNumber = 0
    first: StepNumber = 0
    """`extend`: the first step of the window."""
    until: StepNumber = 0
    """`extend`: its last step so far."""
    seconds: Seconds = 0.0
    """`extend`: further seconds of a window that ends by the clock."""
    run_id: RunId = ""
    """`abort`: only windows of this run id; empty for all."""
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """`abort`: why."""

    @property
    def decided_by(self) -> int:
        """The first step at which it makes a difference; `NEVER` for a window that ends by the clock."""
        if self.seconds:
            return NEVER
        return (self.last if self.command == "abort" else self.until) + 1

    def concerns(self, window: ArmedWindow) -> bool:
        if self.command == "extend":
            return window.first == self.first
        return not self.run_id or window.request.run_id == self.run_id

    def answer(self, windows: Sequence[ArmedWindow]) -> Armed:
        """Returns the answer for windows that it concerns, sorted by their first steps."""
        return self._abort(windows) if self.command == "abort" else self._extend(windows)

    def _abort(self, windows: Sequence[ArmedWindow]) -> Armed:
        cut = [window for window in windows if window.first <= self.last < window.last]
        withdrawn = sum(window.first > self.last for window in windows)
        if cut:
            return Armed(True, cut[0].first, self.last, cut[0].request.run_id, self.text())
        if withdrawn:
            return Armed(True, None, self.last, self.run_id, f"{human_count(withdrawn, 'window')} withdrawn")
        if windows:
            return Armed(True, None, self.last, self.run_id, f"the window ends with step {windows[-1].last} by itself")
        return Armed(True, None, self.last, self.run_id, NOTHING_WAITS)

    def _extend(self, windows: Sequence[ArmedWindow]) -> Armed:
        if not windows:
            return Armed(False, reason=f"the window that began with step {self.first} is not recorded any more")
        window = windows[0]
        wrong = ""
        if window.timed != bool(self.seconds):
            wrong = OTHER_UNIT.format("seconds" if window.timed else "steps")
        elif window.abort_reason is not None:
            wrong = f"it is aborted: {window.abort_reason}"
        elif not self.seconds and window.last != self.until:
            wrong = f"the window ends with step {window.last}, not with {self.until}"
        if wrong:
            return Armed(False, run_id=window.request.run_id, reason=wrong)
        return Armed(True, window.first, self.last or None, window.request.run_id, self.text())

    def text(self) -> str:
        """Returns the change as text: `extended to step 12`."""
        if self.command == "abort":
            return f"aborted with step {self.last}: {self.reason}" if self.reason else f"aborted with step {self.last}"
        return f"extended by {self.seconds:g} s" if self.seconds else f"extended to step {self.last}"


class ChosenEnd(NamedTuple):
    """A change for all ranks; or `None` and the reason."""

    change: EndChange | None
    ranks: tuple[int, ...] = ()
    """The ranks with windows that it concerns."""
    reason: str = ""


def choose_end(request: EndRequest, windows: Mapping[int, Sequence[ArmedStatus]], ahead: int) -> ChosenEnd:
    """Chooses how the windows of several ranks end: the same change for all of them, or the reason why there is none.

    Args:
        windows: the armed windows of each rank, also those that have ended.
        ahead: the first step that all ranks can reach in time after they have agreed on it.
    """
    if request.command == "abort":
        meant = {
            rank: [window for window in statuses if window.open and request.run_id in ("", window.run_id)]
            for rank, statuses in windows.items()
        }
        ranks = tuple(sorted(rank for rank, statuses in meant.items() if statuses))
        if not ranks:
            return ChosenEnd(None, reason=NOTHING_WAITS)
        last = max(ahead - 1, 0)
        if last > MAX_STEP:
            return ChosenEnd(None, reason=BEYOND.format(last))
        change = EndChange(command="abort", last=last, run_id=request.run_id, reason=request.reason)
        return ChosenEnd(change, ranks)
    running = [window for statuses in windows.values() for window in statuses if window.state == "running"]
    if not running:
        return ChosenEnd(None, reason=NOTHING)
    # If ranks are in different windows, the earlier one counts. Ranks that have ended it lead to a refusal.
    window = min(running, key=lambda each: each.first or 0)
    same = {
        rank: next(
            (each for each in statuses if each.first == window.first and each.state not in ("missed", "withdrawn")),
            None,
        )
        for rank, statuses in windows.items()
    }
    for rank, each in sorted(same.items()):
        if each is not None and not each.open:
            return ChosenEnd(None, reason=f"rank {rank} has the window behind it: it ended there with step {each.last}")
    ranks = tuple(sorted(rank for rank, each in same.items() if each is not None))
    first = window.first or 0
    in_steps, in_seconds = bool(request.steps or request.stop_step), bool(request.seconds)
    if in_steps == in_seconds or (window.last is None) != in_seconds:
        return ChosenEnd(None, reason=OTHER_UNIT.format("seconds" if window.last is None else "steps"))
    if window.last is None:
        return ChosenEnd(EndChange(command="extend", first=first, seconds=request.seconds), ranks)
    steps = request.stop_step - window.last if request.stop_step else request.steps
    if steps <= 0:
        return ChosenEnd(None, reason=f"the window ends with step {window.last}; only abort makes it shorter")
    more = -(-steps // window.granularity) * window.granularity
    last = window.last + more
    if max(first, last) > MAX_STEP:
        return ChosenEnd(None, reason=BEYOND.format(last))
    return ChosenEnd(EndChange(command="extend", first=first, until=window.last, last=last), ranks)
