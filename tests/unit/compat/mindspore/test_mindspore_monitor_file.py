"""Which windows come of what a monitor's file says, step by step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.compat.mindspore.monitor.dynamic_monitor import Late, MonitorFile
from stepscope.mindspore import DynamicProfilerArgs
from stepscope.runtime.control.request_history import RequestHistory
from stepscope.runtime.control.request_router import RequestRouter
from stepscope.runtime.steps.window_follower import WindowFollower
from tests.support.messages import said

Windows = list[tuple[int, int, str]]


def asked(
    start: int | Literal["next"], stop: int, run_id: str = "", command: str = "", steps: int = 0, **more: Any
) -> DynamicProfilerArgs:
    """What the file says."""
    return DynamicProfilerArgs(start, stop, run_id=run_id, command=command, steps=steps, **more)


OFF = asked(-1, -1)


class Loop:
    """A loop of one rank that records what a file asks for."""

    def __init__(self, late: Late = "refuse", granularity: int = 1) -> None:
        self.refusals: list[str] = []
        self.windows = WindowFollower("dynamic profiler", rank=0)
        history = RequestHistory(Path("file"), shared=False)
        self._router = RequestRouter(
            self.windows.arming, 0, None, history, self.refusals.append, withdraws_planned=True
        )
        self._late: Late = late
        self.group = granularity

    def follow(self, config: DynamicProfilerArgs) -> None:
        """The file says this now."""
        self._router.follow(MonitorFile(config, self._late, self.group))


def run(
    configurations: Mapping[int, DynamicProfilerArgs], steps: int = 20, late: Late = "refuse", granularity: int = 1
) -> tuple[Windows, list[str]]:
    """Steps through a training.

    Args:
        configurations: what the file holds from just before a step's begin on.

    Returns:
        The windows that were recorded, with the reasons for their ends, and what was refused.
    """
    loop = Loop(late, granularity)
    found: Windows = []
    for first in range(1, steps + 1, granularity):
        for step in range(first, first + granularity):
            if step in configurations:
                loop.follow(configurations[step])
        loop.windows.begin(first)
        ended = loop.windows.end(first + granularity - 1)
        if ended is not None:
            found.append((ended.first, ended.last, ended.reason))
    left = loop.windows.cut(steps, "training ended")
    if left is not None:
        found.append((left.first, left.last, left.reason))
    return found, loop.refusals


@pytest.mark.checklist("A36", "B18")
def test_no_window() -> None:
    """A start or a stop of -1 records nothing."""
    for off in (OFF, asked(3, -1), asked(-1, 3)):
        assert run({1: off}) == ([], [])


@pytest.mark.checklist("F6", "A28")
def test_the_same_steps_again() -> None:
    """The same numbers are the same window, however often they are written; another run id is another one."""
    found, refusals = run({1: asked(2, 3), 3: asked(2, 3), 5: asked(2, 3)}, late="clip")
    assert (found, refusals) == ([(2, 3, "")], [])
    found, refusals = run({1: asked(2, 9), 4: OFF, 10: asked(2, 12, "again")}, late="clip")
    assert [steps[:2] for steps in found] == [(2, 9), (10, 12)]
    assert found[1][2] == "clipped: the loop is at step 9 already, step 2 is past"


LEAST = "must be 1 or more, or -1 for no window"


@pytest.mark.checklist("A29", "A38", "F2", "F4")
@pytest.mark.parametrize(
    ("config", "text"),
    [
        (asked(0, 5), f"start_step 0 and stop_step 5 {LEAST}"),
        (asked(-2, 5), f"start_step -2 and stop_step 5 {LEAST}"),
        (asked(5, 0), f"start_step 5 and stop_step 0 {LEAST}"),
        (asked(6, 5), "start_step 6 is greater than stop_step 5"),
        (asked("next", 5), "start_step 'next' needs steps, which says how many"),
    ],
)
def test_what_cannot_be(config: DynamicProfilerArgs, text: str) -> None:
    """It is refused, and said once for each configuration."""
    assert run({1: config}) == ([], [f"refused: {text}"])
    assert run({1: config, 4: asked(7, 8), 9: config})[1] == [f"refused: {text}"] * 2


@pytest.mark.checklist("A30", "A34", "F5")
def test_edits_while_a_window_runs() -> None:
    """They do not change it, nor keep it from ending; another window is recorded after it, unless they overlap."""
    assert run({1: asked(2, 6), 3: OFF})[0] == [(2, 6, "")]
    assert run({1: asked(2, 6), 3: asked(2, 4)})[0] == [(2, 6, "")]
    assert run({1: asked(2, 6), 3: asked(8, 9)}) == ([(2, 6, ""), (8, 9, "")], [])
    found, refusals = run({1: asked(2, 6), 3: asked(5, 8)})
    assert found == [(2, 6, "")]
    assert refusals == ["refused: steps 5-8 overlap the window of steps 2-6; ask with overlap='queue' to wait"]
    found, refusals = run({1: asked(2, 6), 3: asked(5, 8, overlap="queue")})
    assert (found[1], refusals) == ((7, 10, "queued behind the window of steps 2-6"), [])
    wrong = asked(5, 8, overlap="later")
    assert "overlap is 'later'" in wrong.diagnostics[0]
    assert (wrong.overlap, wrong.vars.get("overlap")) == ("refuse", None)
    assert asked(5, 8, overlap="queue").vars["overlap"] == "queue"


@pytest.mark.checklist("A34", "F5")
def test_commands() -> None:
    """A window that runs is extended or aborted by a command, and by nothing else."""
    assert run({1: asked(2, 6), 4: asked(2, 9, "", "extend")})[0] == [(2, 9, "extended to step 9")]
    assert run({1: asked(2, 6), 5: asked(2, 6, "", "abort")})[0] == [(2, 5, "aborted after step 5: it was aborted")]
    found, refusals = run({1: asked(2, 6), 5: asked(2, 3, "", "extend")})
    assert found == [(2, 6, "")]
    assert refusals == ["refused: the window ends with step 6; only abort makes it shorter"]
    assert run({1: asked(2, 6, "", "abort")}) == ([], [])
    assert run({1: asked(2, 6, "", "extend")}) == ([], ["refused: no armed window runs"])


@pytest.mark.checklist("A33", "A34")
def test_how_many_steps() -> None:
    """A window may be asked for by its length, from a step or the next one on, and be extended so."""
    assert run({1: asked(3, -1, steps=2)}) == ([(3, 4, "")], [])
    assert run({5: asked("next", -1, steps=2)}) == ([(5, 6, "")], [])
    assert run({6: asked("next", -1, steps=2)}, granularity=4)[0] == [(5, 8, "")]
    found, refusals = run({2: asked("next", -1, steps=2), 3: asked(-1, -1, "", "extend", steps=3)})
    assert ([steps[:2] for steps in found], refusals) == ([(2, 6)], [])


def test_a_window_that_has_yet_to_begin() -> None:
    """A window that has yet to begin is withdrawn when the file asks for something else, and can be asked for again."""
    assert run({1: asked(8, 9), 3: asked(12, 13)}) == ([(12, 13, "")], [])
    assert run({1: asked(8, 9), 3: OFF}) == ([], [])
    assert run({1: asked(8, 9), 3: asked(8, 9), 5: asked(8, 9)}) == ([(8, 9, "")], [])
    assert run({1: asked(8, 9), 3: OFF, 5: asked(8, 9)}) == ([(8, 9, "")], [])


def test_steps_that_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """A loop may go on by more than one step: what begins in between is in the past."""
    loop = Loop()
    loop.follow(asked(6, 9))
    assert loop.windows.begin(5) is None
    assert loop.windows.begin(9) is None
    said(caplog.records, "steps 6-9: missed: the loop went to step 9 without passing step 6")
    assert loop.windows.begin(10) is None
    clipping = Loop("clip")
    clipping.follow(asked(6, 9))
    assert clipping.windows.begin(5) is None
    begun = clipping.windows.begin(8)
    assert begun is not None
    assert (begun.first, begun.last) == (8, 9)


@pytest.mark.checklist("F6")
def test_run_ids() -> None:
    """A text or a number; one that no file's name can have is refused."""
    for run_id in ("second-try", "7"):
        request = MonitorFile(asked(2, 3, run_id), "refuse", 1).request()
        assert request is not None and request.run_id == run_id
    (refusal,) = run({1: asked(2, 3, "second/try")})[1]
    assert "run_id" in refusal and "second/try" in refusal


@pytest.mark.checklist("B19")
def test_granularity() -> None:
    """Windows are widened to whole groups, of which the first begins with step 1; one that is late begins with a group."""
    assert run({1: asked(6, 9)}, granularity=4)[0] == [(5, 12, "rounded to groups of 4 steps")]
    assert run({1: asked(5, 8)}, granularity=4)[0] == [(5, 8, "")]
    found, refusals = run({9: asked(5, 16)}, late="clip", granularity=4)
    assert ([steps[:2] for steps in found], refusals) == ([(9, 16)], [])
    (refusal,) = run({5: asked(2, 6)}, granularity=4)[1]
    assert refusal.endswith("the nearest that can be recorded is 5")
    for more in (asked(5, 14, "", "extend"), asked(-1, -1, "", "extend", 1)):
        found, refusals = run({1: asked(5, 12), 9: more}, granularity=4)
        assert (found, refusals) == ([(5, 16, "extended to step 16")], [])


asked_for = st.builds(
    asked,
    st.integers(-2, 25),
    st.integers(-2, 25),
    st.sampled_from(["", "a"]),
    st.sampled_from(["", "", "", "extend", "abort"]),
)


@given(
    st.dictionaries(st.integers(1, 20), asked_for, max_size=8),
    st.sampled_from(["refuse", "clip"]),
    st.sampled_from([1, 2, 4, 5]),
)
def test_whatever_is_asked_for(configurations: dict[int, DynamicProfilerArgs], late: Late, granularity: int) -> None:
    """Windows follow each other, lie in the training, begin with a group, and each configuration is recorded once; a
    window begins late only if that is allowed."""
    found, refusals = run(configurations, late=late, granularity=granularity)
    end = 0
    for first, last, _ in found:
        assert end < first <= last <= 20
        assert (first - 1) % granularity == 0
        end = last
    requests = [MonitorFile(each, late, granularity) for each in configurations.values() if not each.command]
    assert len(found) <= len({each.key() for each in requests})
    if late == "refuse":
        starts = {(int(each.config.start_step) - 1) // granularity * granularity + 1 for each in requests}
        assert {first for first, _, _ in found} <= starts
    assert len(refusals) <= len(configurations)
