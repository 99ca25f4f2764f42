"""Windows in a loop that something else records, groups of steps that do not begin with 0, and ends that are named by a step."""

from __future__ import annotations

import logging

import pytest

from stepscope.runtime.requests.end_change import EndRequest, choose_end
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.steps.window_follower import WindowFollower
from tests.support.messages import said


def test_a_loop_follows_its_windows() -> None:
    """It learns with which step each begins and ends, and has the settings of the time at which it was asked for."""
    settings = ["then"]
    follower = WindowFollower("loop", rank=0, settings=lambda: settings[0])
    assert follower.arming.arm(WindowRequest(start_step=3, steps=2))
    settings[0] = "now"
    found: list[tuple[str, int, int, object]] = []
    for step in range(1, 7):
        begun = follower.begin(step)
        if begun is not None:
            assert follower.running is begun
            found.append(("begin", step, begun.last, begun.settings))
        ended = follower.end(step)
        if ended is not None:
            found.append(("end", step, ended.last, ended.settings))
    assert found == [("begin", 3, 4, "then"), ("end", 4, 4, "then")]
    assert follower.running is None
    assert [each.state for each in follower.arming.armed()] == ["recorded"]


def test_the_step_that_goes_on_cannot_be_the_first() -> None:
    """The loop may be in it already."""
    follower = WindowFollower("loop", rank=0, step=1)
    assert not follower.arming.arm(WindowRequest(start_step=1, steps=1))
    assert follower.arming.arm(WindowRequest(start_step=2, steps=1))


def test_a_window_is_cut_or_aborted() -> None:
    """It ends with the last step that was recorded; an abort between two steps ends it with the second."""
    follower = WindowFollower("loop", rank=0)
    assert follower.cut(0, "nothing runs") is None
    for step in (2, 12):
        assert follower.arming.arm(WindowRequest(start_step=step, steps=8))
    for step in (2, 3):
        follower.begin(step)
        assert follower.end(step) is None
    follower.arming.abort(reason="enough")
    follower.begin(4)
    ended = follower.end(4)
    assert ended is not None
    assert (ended.first, ended.last, ended.state) == (2, 4, "aborted")
    assert follower.arming.arm(WindowRequest(start_step=12, steps=8))
    follower.begin(12)
    ended = follower.cut(13, "the end")
    assert ended is not None
    assert (ended.last, ended.state, ended.reason) == (13, "cut", "the end")


def test_a_window_that_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """The log says so."""
    follower = WindowFollower("loop", rank=0)
    assert follower.arming.arm(WindowRequest(start_step=3, steps=2))
    with caplog.at_level(logging.WARNING, "stepscope"):
        assert follower.begin(5) is None
    said(caplog.records, "loop: 2 steps from step 3 on: missed", "step 5")


@pytest.mark.parametrize(
    ("start", "stop", "expected"), [(5, 8, (5, 8)), (6, 9, (5, 12)), (1, 1, (1, 4)), (0, 2, (0, 4))]
)
def test_groups_that_begin_with_another_step(start: int, stop: int, expected: tuple[int, int]) -> None:
    """Where steps count from 1, the groups of four are 1 to 4, 5 to 8 and so on."""
    request = WindowRequest(start_step=start, stop_step=stop, granularity=4, group_start=1)
    assert request.rounded(0) == expected
    assert WindowRequest(steps=3, granularity=4, group_start=1).rounded(6) == (9, 12)
    assert [request.group_from(step) for step in (1, 2, 5, 6)] == [1, 5, 5, 9]


def test_an_end_that_is_named_by_its_step() -> None:
    """The window goes on to it, in whole groups, and is never made shorter so."""
    follower = WindowFollower("loop", rank=0)
    assert follower.arming.arm(WindowRequest(start_step=1, stop_step=4, granularity=4, group_start=1))
    follower.begin(1)
    chosen = choose_end(EndRequest(command="extend", stop_step=9), {0: follower.arming.armed()}, 2)
    assert chosen.change is not None
    assert chosen.change.last == 12
    assert follower.arming.change_end(chosen.change)
    refused = choose_end(EndRequest(command="extend", stop_step=12), {0: follower.arming.armed()}, 2)
    assert refused.change is None
    assert refused.reason == "the window ends with step 12; only abort makes it shorter"
