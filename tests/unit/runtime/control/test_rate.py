"""The pace of a loop: steps per second while it moves."""

from __future__ import annotations

import pytest

from stepscope.runtime.control.rate import Pace


def test_the_pace_of_a_loop_that_moves() -> None:
    """Neither its first step, which takes long, nor a time in which it stands still counts."""
    pace = Pace()
    for at, step in ((0.0, 0), (60.0, 0), (60.1, 1)):
        pace.add(at, step)
        assert not pace.is_measured and pace.per_second == 0
    pace.add(61.1, 101)
    assert pace.is_measured and pace.per_second == pytest.approx(100)
    for at, step in ((62.0, 101), (90.0, 101), (91.0, 111)):
        pace.add(at, step)
    assert not pace.is_measured and pace.per_second == pytest.approx(100)
    for at, step in ((92.0, 5), (92.1, 6)):  # the number was set
        pace.add(at, step)
    assert pace.is_measured and pace.per_second == pytest.approx(100)


@pytest.mark.parametrize("poll", [0.05, 0.2, 2.0])
@pytest.mark.parametrize("seconds", [0.003, 0.1, 0.3, 1.0, 60.0])
def test_the_pace_of_any_loop_is_known(seconds: float, poll: float) -> None:
    """However often it is looked at."""
    pace, known = Pace(), 0
    for number in range(round(400 / poll)):
        pace.add(number * poll, int(number * poll / seconds))
        known += pace.is_measured
    assert pace.per_second >= 0.9 / seconds and known * poll > 50
