"""When windows that a file asks for begin and end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.compat.mindspore.asked_steps import Asked, Late
from stepscope.compat.mindspore.step_windows import StepWindows

OFF = Asked(-1, -1)


def run(
    configurations: Mapping[int, Asked], steps: int = 20, late: Late = "refuse", granularity: int = 1
) -> tuple[list[tuple[int, int, str]], list[str]]:
    """Steps through a training.

    Args:
        configurations: what the file holds from a step's begin on.

    Returns:
        The windows that were recorded, with the reasons for their ends, and the complaints.
    """
    windows = StepWindows(late, granularity)
    found: list[tuple[int, int, str]] = []
    said: list[str] = []
    asked = OFF
    for step in range(1, steps + 1):
        asked = configurations.get(step, asked)
        windows.before(asked, step)
        ended = windows.after(asked, step)
        if ended is not None:
            found.append((ended.first, ended.last, ended.reason))
        said += windows.take_complaints()
    left = windows.end(steps, "training ended")
    if left is not None:
        found.append((left.first, left.last, left.reason))
    return found, said


@pytest.mark.checklist("A1", "A2", "A28", "A32", "A36", "B18")
def test_a_window() -> None:
    """It begins with its first step, ends with its last, and is recorded once; -1 is no window."""
    assert run({1: Asked(10, 12)}) == ([(10, 12, "")], [])
    assert run({1: Asked(10, 10)}) == ([(10, 10, "")], [])
    assert run({1: Asked(1, 1)}) == ([(1, 1, "")], [])
    for off in (OFF, Asked(3, -1), Asked(-1, 3)):
        assert run({1: off}) == ([], [])


@pytest.mark.checklist("A33", "A37")
def test_several_windows() -> None:
    """Another start or another stop is another window."""
    assert run({1: Asked(2, 3), 5: Asked(8, 10), 11: Asked(12, 12)})[0] == [(2, 3, ""), (8, 10, ""), (12, 12, "")]
    assert run({1: Asked(2, 3), 5: Asked(8, 9), 10: Asked(10, 11)})[0] == [(2, 3, ""), (8, 9, ""), (10, 11, "")]


@pytest.mark.checklist("F6", "A28")
def test_the_same_steps_again() -> None:
    """The same numbers are the same window, however often they are written; another run id is another one."""
    clip: Late = "clip"
    assert run({1: Asked(2, 3), 2: Asked(2, 3), 4: Asked(2, 3)}, late=clip) == ([(2, 3, "")], [])
    found, said = run({1: Asked(2, 9), 4: OFF, 10: Asked(2, 12, "again")}, late=clip)
    assert found == [(2, 9, ""), (10, 12, "")]
    assert said == ["start_step 2 is in the past, step 10 begins: steps 10 to 12 are recorded"]


LEAST = "must be 1 or more, or -1 for no window"


@pytest.mark.checklist("A29", "A38", "F2", "F4")
@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (Asked(0, 5), f"start_step 0 and stop_step 5 {LEAST}"),
        (Asked(-2, 5), f"start_step -2 and stop_step 5 {LEAST}"),
        (Asked(5, 0), f"start_step 5 and stop_step 0 {LEAST}"),
        (Asked(6, 5), "start_step 6 is greater than stop_step 5"),
    ],
)
def test_what_cannot_be(asked: Asked, text: str) -> None:
    """It is refused, and said once for each configuration."""
    assert run({1: asked}) == ([], [text])
    assert run({1: asked, 4: Asked(7, 8), 9: asked})[1] == [text, text]


@pytest.mark.checklist("A29", "A40", "F3")
def test_late() -> None:
    """A start in the past is refused, or what is left is recorded, under the name of what it was."""
    found, said = run({3: Asked(2, 6)})
    assert found == []
    nearest = "nothing is recorded; the nearest start_step that can be followed is"
    assert said == [f"start_step 2 is in the past, step 3 begins: {nearest} 4"]
    assert run({3: Asked(2, 6)}, granularity=4)[1] == [f"start_step 2 is in the past, step 3 begins: {nearest} 5"]
    assert run({3: Asked(2, 6)}, late="clip") == (
        [(3, 6, "")],
        ["start_step 2 is in the past, step 3 begins: steps 3 to 6 are recorded"],
    )
    found, said = run({9: Asked(2, 6)}, late="clip")
    assert found == []
    assert said == [f"start_step 2 is in the past, step 9 begins, and stop_step 6 has passed: {nearest} 10"]


@pytest.mark.checklist("A30", "A34", "F5")
def test_edits_while_a_window_runs() -> None:
    """They do not change it, nor keep it from ending; another window waits for its end, which is said."""
    assert run({1: Asked(2, 6), 3: OFF})[0] == [(2, 6, "")]
    assert run({1: Asked(2, 6), 3: Asked(2, 4)})[0][0] == (2, 6, "")
    found, said = run({1: Asked(2, 6), 3: Asked(8, 9)})
    assert found == [(2, 6, ""), (8, 9, "")]
    assert said == ['steps 8 to 9 wait: a window runs until step 6 ("command": "extend" or "abort" changes that)']


@pytest.mark.checklist("A34", "F5")
def test_commands() -> None:
    """A window that runs is extended, shortened or aborted by a command, and by nothing else."""
    assert run({1: Asked(2, 6), 3: Asked(2, 9, "", "extend")})[0] == [(2, 9, "")]
    assert run({1: Asked(2, 6), 3: Asked(2, 4, "", "extend")})[0] == [(2, 4, "")]
    assert run({1: Asked(2, 6), 4: Asked(2, 6, "", "abort")})[0] == [(2, 4, "it was aborted")]
    found, said = run({1: Asked(2, 6), 5: Asked(2, 3, "", "extend")})
    assert found == [(2, 6, "")]
    assert said == ["the window cannot be extended to step 3: stop_step has passed"]
    assert run({1: Asked(2, 6, "", "abort")}) == ([], ["command 'abort' changes nothing: no window runs"])


@pytest.mark.checklist("A33", "A34")
def test_how_many_steps() -> None:
    """A window may be asked for by its length, from a step or the next one on, and be extended so."""
    assert run({1: Asked(3, -1, steps=2)}) == ([(3, 4, "")], [])
    assert run({5: Asked("next", -1, steps=2)}) == ([(5, 6, "")], [])
    assert run({6: Asked("next", -1, steps=2)}, granularity=4)[0] == [(9, 12, "")]
    assert run({2: Asked("next", -1, steps=2), 3: Asked(-1, -1, "", "extend", steps=3)})[0] == [(2, 6, "")]
    assert run({1: Asked("next", 5)}) == ([], ["start_step 'next' needs steps, which says how many"])


def test_a_window_that_has_yet_to_begin() -> None:
    """It is forgotten when the file asks for something else, and not when it says the same in other words."""
    assert run({1: Asked(8, 9), 3: Asked(12, 13)}) == ([(12, 13, "")], [])
    assert run({1: Asked(8, 9), 3: OFF}) == ([], [])
    assert run({1: Asked(8, 9), 3: Asked(8, 9), 5: Asked(8, 9)}) == ([(8, 9, "")], [])
    assert run({1: Asked(8, 9), 3: OFF, 5: Asked(8, 9)}) == ([(8, 9, "")], [])


def test_steps_that_are_passed_over() -> None:
    """A loop may go on by more than one step: what begins in between is in the past."""
    windows = StepWindows()
    asked = Asked(6, 9)
    assert windows.before(asked, 5) is None
    assert windows.before(asked, 9) is None
    assert windows.take_complaints() == [
        "start_step 6 is in the past, step 9 begins: nothing is recorded; the nearest start_step that can be followed is 10"
    ]
    assert windows.before(asked, 10) is None
    clipping = StepWindows("clip")
    assert clipping.before(asked, 5) is None
    planned = clipping.before(asked, 8)
    assert planned is not None
    assert (planned.first, planned.last) == (8, 9)


@pytest.mark.checklist("F6")
def test_any_text_is_a_run_id() -> None:
    """Where names of windows cannot have it they have another one, which tells it from others all the same."""
    ids = [
        StepWindows().request(Asked(2, 3, text)).run_id for text in ("second-try", "second try", "second/try", "x" * 99)
    ]
    assert ids[0] == "second-try"
    assert len(set(ids)) == 4
    assert all(len(run_id) <= 80 for run_id in ids)


@pytest.mark.checklist("A26", "F7")
def test_training_ends_inside() -> None:
    """The window has what there was, and the reason."""
    assert run({1: Asked(18, 30)}) == ([(18, 20, "training ended")], [])


@pytest.mark.checklist("B19")
def test_granularity() -> None:
    """Windows are widened to whole groups, and one that is late begins with a group."""
    assert run({1: Asked(6, 9)}, granularity=4)[0] == [(5, 12, "")]
    assert run({1: Asked(5, 8)}, granularity=4)[0] == [(5, 8, "")]
    found, said = run({6: Asked(5, 16)}, late="clip", granularity=4)
    assert found == [(9, 16, "")]
    assert said == ["start_step 5 is in the past, step 9 begins: steps 9 to 16 are recorded"]


asked_for = st.builds(
    Asked,
    st.integers(-2, 25),
    st.integers(-2, 25),
    st.sampled_from(["", "a"]),
    st.sampled_from(["", "", "", "extend", "abort"]),
)


@given(
    st.dictionaries(st.integers(1, 20), asked_for, max_size=8),
    st.sampled_from(["refuse", "clip"]),
    st.integers(1, 5),
)
def test_whatever_is_asked_for(configurations: dict[int, Asked], late: Late, granularity: int) -> None:
    """Windows follow each other, lie in the training, begin with a group, and each configuration is recorded once; a
    window begins late only if that is allowed."""
    found, said = run(configurations, late=late, granularity=granularity)
    end = 0
    for first, last, _ in found:
        assert end < first <= last <= 20
        assert (first - 1) % granularity == 0
        end = last
    assert len(found) <= len({asked.key for asked in configurations.values() if not asked.command})
    if late == "refuse":
        starts = {(int(asked.start) - 1) // granularity * granularity + 1 for asked in configurations.values()}
        assert {first for first, _, _ in found} <= starts
    assert len(said) <= 2 * len(configurations)
