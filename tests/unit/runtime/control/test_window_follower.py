"""Windows in a loop that something else records, and groups of steps that do not begin with 0."""

from __future__ import annotations

import pytest

from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.steps.window_follower import WindowFollower


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


@pytest.mark.parametrize(
    ("start", "stop", "expected"), [(5, 8, (5, 8)), (6, 9, (5, 12)), (1, 1, (1, 4)), (0, 2, (0, 4))]
)
def test_groups_that_begin_with_another_step(start: int, stop: int, expected: tuple[int, int]) -> None:
    """Where steps count from 1, the groups of four are 1 to 4, 5 to 8 and so on."""
    request = WindowRequest(start_step=start, stop_step=stop, granularity=4, group_start=1)
    assert request.rounded(0) == expected
    assert WindowRequest(steps=3, granularity=4, group_start=1).rounded(6) == (9, 12)
    assert [request.group_from(step) for step in (1, 2, 5, 6)] == [1, 5, 5, 9]
