"""The governor as a pure state machine: it converges, does not go to and fro, and comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.detail import FULL, ladder
from stepscope.runtime.governor import LONGEST_PATIENCE, MARGIN, PATIENCE, Governor

LEVELS = len(ladder(64, reducible=True))
loads = st.floats(0, 50)
"""Cost of full detail, as a share of the time; above 1 where several threads record."""
budgets = st.floats(0.001, 1)


def costs(load: float, fixed: float = 0.0) -> list[float]:
    """What each level costs: the levels halve what there is to pay, the last one leaves what is fixed."""
    return [fixed + load / (1 << level) for level in range(LEVELS - 1)] + [fixed]


def run(governor: Governor, load: list[float], readings: int, believed: list[float] | None = None) -> list[int]:
    """Levels after each of some readings of a steady load."""
    return [governor.update(load[governor.level], believed or load) for _ in range(readings)]


@given(load=loads, budget=budgets)
def test_a_steady_load_settles_within_its_budget(load: float, budget: float) -> None:
    """After a few readings nothing changes any more, and the level is the first whose cost fits."""
    levels = run(Governor(budget, LEVELS), costs(load), 200)
    assert len(set(levels[3 * LEVELS :])) == 1
    settled = levels[-1]
    assert costs(load)[settled] <= budget
    assert settled == 0 or costs(load)[settled - 1] > MARGIN * budget


@given(load=loads, budget=budgets, after=st.floats(0, 1))
def test_detail_comes_back_when_the_load_ends(load: float, budget: float, after: float) -> None:
    """At once to full detail, if that is well within the budget."""
    governor = Governor(budget, LEVELS)
    run(governor, costs(load), 100)
    levels = run(governor, costs(after * MARGIN * budget * 0.99), 20 * LEVELS)
    assert levels[-1] == 0
    assert sum(before != now for before, now in zip(levels, levels[1:], strict=False)) <= 1
    assert 0 in levels[: 4 * PATIENCE]


@given(load=loads, budget=budgets, fixed=st.floats(0, 2), factor=st.floats(0, 1))
def test_a_wrong_expectation_does_not_make_it_go_to_and_fro(
    load: float, budget: float, fixed: float, factor: float
) -> None:
    """If levels cost more than is believed, detail is tried again at most once in `LONGEST_PATIENCE` readings."""
    real = costs(load, fixed)
    levels = run(Governor(budget, LEVELS), real, 2000, [cost * factor for cost in real])
    late = levels[1000:]
    changes = sum(before != now for before, now in zip(late, late[1:], strict=False))
    assert changes <= 2 * (1000 / LONGEST_PATIENCE + 1)


@given(
    budget=budgets,
    readings=st.lists(st.tuples(loads, st.lists(loads, min_size=LEVELS, max_size=LEVELS)), max_size=200),
)
def test_any_readings_keep_the_level_in_range(budget: float, readings: list[tuple[float, list[float]]]) -> None:
    """Never above full detail nor below step marks only, and never two changes in two readings."""
    governor = Governor(budget, LEVELS)
    levels = [0] + [governor.update(cost, expected) for cost, expected in readings]
    assert all(0 <= level < LEVELS for level in levels)
    changed = [before != now for before, now in zip(levels, levels[1:], strict=False)]
    assert not any(first and second for first, second in zip(changed, changed[1:], strict=False))


def test_a_little_too_much_is_lowered_by_one_level() -> None:
    """Up to twice the budget one level at a time; beyond, at once to what is expected to fit."""
    assert run(Governor(0.01, LEVELS), costs(0.019), 1) == [1]
    assert run(Governor(0.01, LEVELS), costs(0.1), 1) == [4]


@given(longest=st.integers(1, 1 << 20), reducible=st.booleans(), step=st.integers(0, 1 << 40))
def test_the_ladder_goes_down(longest: int, reducible: bool, step: int) -> None:
    """From everything to nothing but step marks; a level records nothing that the one above leaves out."""
    levels = ladder(longest, reducible=reducible)
    assert levels[0] is FULL and levels[-1].name == "step marks only"
    assert len({level.name for level in levels}) == len(levels)
    assert all(level.every <= longest for level in levels)
    wanted = [level.wanted(step) for level in levels]
    assert all(below & ~above == 0 for above, below in zip(wanted, wanted[1:], strict=False))
    assert (wanted[0], wanted[-1]) == (3, 0)
