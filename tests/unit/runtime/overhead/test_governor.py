"""The governor as a pure state machine: it converges, does not go to and fro, and comes back."""

from __future__ import annotations

from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.overhead.governor import MARGIN, MAX_CALM_READINGS, MIN_CALM_READINGS, Governor
from stepscope.runtime.schedule.detail import EVERYTHING, FULL, LEVELS

costs = st.lists(st.floats(0, 50), min_size=len(LEVELS), max_size=len(LEVELS)).map(lambda some: sorted(some)[::-1])
"""The cost of each level, as a share of the time; above 1 where several threads record."""
budgets = st.floats(0.001, 1)


def run(governor: Governor, load: list[float], readings: int, believed: float = 1.0) -> list[int]:
    """Levels after each of some readings of a steady load; `believed` is the share of a higher level's cost that is expected."""
    return [governor.update(load[governor.level], load[max(governor.level - 1, 0)] * believed) for _ in range(readings)]


def changes(levels: list[int]) -> int:
    """How often the level changed."""
    return sum(before != now for before, now in pairwise(levels))


@given(load=costs, budget=budgets)
def test_a_steady_load_stays_within_its_budget(load: list[float], budget: float) -> None:
    """A level goes with each reading until the cost fits, or nothing is left to go, and then nothing changes any more."""
    levels = run(Governor(budget), load, 200)
    fits = next((level for level, cost in enumerate(load) if cost <= budget), len(LEVELS) - 1)
    assert levels[: fits + 1] == [*range(1, fits + 1), fits]
    assert set(levels[fits:]) == {fits}


@given(load=costs, budget=budgets, after=st.floats(0, 1))
def test_detail_comes_back_when_the_load_ends(load: list[float], budget: float, after: float) -> None:
    """To full detail, a level at a time, if that is well within the budget."""
    load[-1] = min(load[-1], budget)
    governor = Governor(budget)
    run(governor, load, 100)
    levels = run(governor, [after * MARGIN * budget * 0.99] * len(LEVELS), 20)
    assert levels[-1] == 0
    assert changes(levels) <= len(LEVELS) - 1
    assert 0 in levels[: 4 * MIN_CALM_READINGS * (len(LEVELS) - 1)]


@given(load=costs, budget=budgets, believed=st.floats(0, 1))
def test_a_wrong_expectation_does_not_make_it_go_to_and_fro(load: list[float], budget: float, believed: float) -> None:
    """If levels cost more than is believed, detail is tried again at most once in `MAX_CALM_READINGS` readings."""
    levels = run(Governor(budget), load, 2000, believed)
    assert changes(levels[1000:]) <= 2 * (1000 / MAX_CALM_READINGS + 1)


@given(load=costs, budget=budgets, believed=st.floats(0, 1))
def test_it_is_never_above_the_budget_for_long(load: list[float], budget: float, believed: float) -> None:
    """Under a steady load that a lower level fits, whatever is believed: for a reading at each level that does not."""
    load[-1] = min(load[-1], budget)
    levels = [0, *run(Governor(budget), load, 1000, believed)]
    above = [len(list(group)) for exceeds, group in groupby(levels, lambda level: load[level] > budget) if exceeds]
    assert max(above, default=0) <= len(LEVELS) - 1


@given(budget=budgets, readings=st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)), max_size=200))
def test_any_readings_keep_the_level_in_range(budget: float, readings: list[tuple[float, float]]) -> None:
    """Never above full detail nor below step marks only, and a level at a time."""
    governor = Governor(budget)
    levels = [0] + [governor.update(cost, higher) for cost, higher in readings]
    assert all(0 <= level < len(LEVELS) for level in levels)
    assert all(abs(before - now) <= 1 for before, now in pairwise(levels))


def test_the_levels_go_down() -> None:
    """From everything to nothing but step marks; a level records nothing that the one above leaves out."""
    wanted = [level.wanted(7) for level in LEVELS]
    assert LEVELS[0] is FULL and (wanted[0], wanted[-1]) == (EVERYTHING, 0)
    assert all(below & ~above == 0 and below != above for above, below in pairwise(wanted))
