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
from tests.support.messages import check_messages

Windows = list[tuple[int, int, str]]


def content(
    start: int | Literal["next"], stop: int, run_id: str = "", command: str = "", steps: int = 0, **more: Any
) -> DynamicProfilerArgs:
    """The content of the file."""
    return DynamicProfilerArgs(start, stop, run_id=run_id, command=command, steps=steps, **more)


OFF = content(-1, -1)


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


def test_steps_that_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """A loop may go on by more than one step: what begins in between is in the past."""
    loop = Loop()
    loop.follow(content(6, 9))
    assert loop.windows.begin(5) is None
    assert loop.windows.begin(9) is None
    check_messages(caplog.records, "steps 6-9: missed: the loop went to step 9 without passing step 6")
    assert loop.windows.begin(10) is None
    clipping = Loop("clip")
    clipping.follow(content(6, 9))
    assert clipping.windows.begin(5) is None
    begun = clipping.windows.begin(8)
    assert begun is not None
    assert (begun.first, begun.last) == (8, 9)


@pytest.mark.checklist("F6")
def test_run_ids() -> None:
    """A text or a number; one that no file's name can have is refused."""
    for run_id in ("second-try", "7"):
        request = MonitorFile(content(2, 3, run_id), "refuse", 1).request()
        assert request is not None and request.run_id == run_id
    (refusal,) = run({1: content(2, 3, "second/try")})[1]
    assert "run_id" in refusal and "second/try" in refusal


LEAST = "refused: start_step {} and stop_step {} must be 1 or more, or -1 for no window"
LATE: dict[str, Any] = {"late": "clip"}
GROUPS: dict[str, Any] = {"granularity": 4}
SHOWN: dict[str, tuple[Mapping[int, DynamicProfilerArgs], dict[str, Any], Windows, list[str]]] = {
    "off": ({1: OFF}, {}, [], []),
    "no stop": ({1: content(3, -1)}, {}, [], []),
    "no start": ({1: content(-1, 3)}, {}, [], []),
    "the same numbers again": ({1: content(2, 3), 3: content(2, 3), 5: content(2, 3)}, LATE, [(2, 3, "")], []),
    "another run id": (
        {1: content(2, 9), 4: OFF, 10: content(2, 12, "again")},
        LATE,
        [(2, 9, ""), (10, 12, "clipped: the loop is at step 9 already, step 2 is past")],
        [],
    ),
    "start 0": ({1: content(0, 5)}, {}, [], [LEAST.format(0, 5)]),
    "start -2": ({1: content(-2, 5)}, {}, [], [LEAST.format(-2, 5)]),
    "stop 0": ({1: content(5, 0)}, {}, [], [LEAST.format(5, 0)]),
    "stop before start": ({1: content(6, 5)}, {}, [], ["refused: start_step 6 is greater than stop_step 5"]),
    "next without steps": (
        {1: content("next", 5)},
        {},
        [],
        ["refused: start_step 'next' needs steps, which says how many"],
    ),
    "refused once for each configuration": (
        {1: content(6, 5), 4: content(7, 8), 9: content(6, 5)},
        {},
        [(7, 8, "")],
        ["refused: start_step 6 is greater than stop_step 5"] * 2,
    ),
    "off while it runs": ({1: content(2, 6), 3: OFF}, {}, [(2, 6, "")], []),
    "another one after it": ({1: content(2, 6), 3: content(8, 9)}, {}, [(2, 6, ""), (8, 9, "")], []),
    "another one that overlaps": (
        {1: content(2, 6), 3: content(5, 8)},
        {},
        [(2, 6, "")],
        ["refused: steps 5-8 overlap the window of steps 2-6; ask with overlap='queue' to wait"],
    ),
    "another one that waits": (
        {1: content(2, 6), 3: content(5, 8, overlap="queue")},
        {},
        [(2, 6, ""), (7, 10, "queued behind the window of steps 2-6")],
        [],
    ),
    "extended": ({1: content(2, 6), 4: content(2, 9, "", "extend")}, {}, [(2, 9, "extended to step 9")], []),
    "aborted": (
        {1: content(2, 6), 5: content(2, 6, "", "abort")},
        {},
        [(2, 5, "aborted after step 5: it was aborted")],
        [],
    ),
    "extended to its past": (
        {1: content(2, 6), 5: content(2, 3, "", "extend")},
        {},
        [(2, 6, "")],
        ["refused: the window ends with step 6; only abort makes it shorter"],
    ),
    "nothing to abort": ({1: content(2, 6, "", "abort")}, {}, [], []),
    "nothing to extend": ({1: content(2, 6, "", "extend")}, {}, [], ["refused: no armed window runs"]),
    "by length": ({1: content(3, -1, steps=2)}, {}, [(3, 4, "")], []),
    "by length, extended by length": (
        {2: content("next", -1, steps=2), 3: content(-1, -1, "", "extend", steps=3)},
        {},
        [(2, 6, "extended to step 6")],
        [],
    ),
    "withdrawn for another one": ({1: content(8, 9), 3: content(12, 13)}, {}, [(12, 13, "")], []),
    "withdrawn": ({1: content(8, 9), 3: OFF}, {}, [], []),
    "withdrawn and asked for again": ({1: content(8, 9), 3: OFF, 5: content(8, 9)}, {}, [(8, 9, "")], []),
    "widened to groups": ({1: content(6, 9)}, GROUPS, [(5, 12, "rounded to groups of 4 steps")], []),
    "whole groups": ({1: content(5, 8)}, GROUPS, [(5, 8, "")], []),
    "extended by a group": (
        {1: content(5, 12), 9: content(-1, -1, "", "extend", 1)},
        GROUPS,
        [(5, 16, "extended to step 16")],
        [],
    ),
}
"""The file's content by step, settings of the monitor, the expected windows, and refused requests."""


@pytest.mark.checklist("A28", "A29", "A30", "A33", "A34", "A36", "A38", "B18", "B19", "F2", "F4", "F5", "F6")
@pytest.mark.parametrize(("configurations", "settings", "windows", "refusals"), SHOWN.values(), ids=list(SHOWN))
def test_configurations_become_windows_and_refusals(
    configurations: Mapping[int, DynamicProfilerArgs], settings: dict[str, Any], windows: Windows, refusals: list[str]
) -> None:
    """A window that runs ends as it was asked for, unless a command changes it."""
    assert run(configurations, **settings) == (windows, refusals)


@pytest.mark.checklist("B19")
def test_groups_that_are_late() -> None:
    """The window begins with the next whole group, or the refusal names it."""
    found, refusals = run({9: content(5, 16)}, late="clip", granularity=4)
    assert ([steps[:2] for steps in found], refusals) == ([(9, 16)], [])
    (refusal,) = run({5: content(2, 6)}, granularity=4)[1]
    assert refusal.endswith("the nearest that can be recorded is 5")
    assert run({6: content("next", -1, steps=2)}, granularity=4)[0] == [(5, 8, "")]


def test_a_wrong_overlap() -> None:
    """It is reported, and the default is used."""
    wrong = content(5, 8, overlap="later")
    assert "got str: 'later'" in wrong.diagnostics[0]
    assert (wrong.overlap, wrong.vars.get("overlap")) == ("refuse", None)
    assert content(5, 8, overlap="queue").vars["overlap"] == "queue"


asked_for = st.builds(
    content,
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
def test_windows_of_any_configurations_follow_each_other(
    configurations: dict[int, DynamicProfilerArgs], late: Late, granularity: int
) -> None:
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
