"""The schedule answers as torch's does, knows its own future, and explains itself."""

from __future__ import annotations

import copy
import enum
import pickle
import warnings
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.runtime.errors import ScheduleError
from stepscope.runtime.schedule.action import ProfilerAction, checked_action
from stepscope.runtime.schedule.plan import explain, plan_of
from stepscope.runtime.schedule.schedule import NEVER, PlannedSchedule, Schedule, always, schedule
from tests.support.basics import require
from tests.support.messages import refused

counts = st.integers(min_value=0, max_value=7)
schedules = st.fixed_dictionaries(
    {"wait": counts, "warmup": counts, "active": st.integers(min_value=1, max_value=7)},
    optional={
        "repeat": counts,
        "skip_first": counts,
        "skip_first_wait": st.booleans() | st.integers(min_value=0, max_value=3),
    },
)
steps = st.integers(min_value=0, max_value=200)


@given(values=schedules, scale=st.just(1) | st.integers(1, 10**6), far=st.integers(0, 10**9))
@example(
    values={"wait": 3, "warmup": 1, "active": 2, "repeat": 2, "skip_first": 2, "skip_first_wait": 1}, scale=1, far=0
)
def test_same_actions_as_torch(values: dict[str, int], scale: int, far: int) -> None:
    """Every step of every schedule has the action that torch gives it, also of large steps and arguments."""
    values = {name: value * scale for name, value in values.items()}
    torch_profiler = require("torch.profiler")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of warmup=0
        theirs = torch_profiler.schedule(**values)
    ours = schedule(**values)
    for step in (*range(120), far):
        assert ours(step) == theirs(step).value
        assert ours(step) is checked_action(theirs(step), step)


def test_actions_are_torch_actions() -> None:
    """Names and values of the actions are those that torch has for its users."""
    theirs = require("torch.profiler").ProfilerAction
    for action in ProfilerAction:
        assert f"{action}" == str(action) == str(theirs[action.name])
        assert theirs[action.name].value == action.value


@given(values=schedules, step=steps)
def test_next_change_agrees_with_asking_at_every_step(values: dict[str, int], step: int) -> None:
    """Between a step and its next change nothing changes, and at the change something does."""
    ours = schedule(**values)
    change = ours.next_change(step)
    assert change > step
    action = ours(step)
    between = range(step + 1, min(change, step + 200))
    assert all(ours(later) is action for later in between)
    assert action is not ProfilerAction.RECORD_AND_SAVE or change == step + 1
    if change != NEVER:
        assert ours(change) is not action or action is ProfilerAction.RECORD_AND_SAVE


@given(values=schedules, step=steps)
def test_next_record_is_the_first_recorded_step(values: dict[str, int], step: int) -> None:
    """No step before the one named is recorded, and that one is."""
    ours = schedule(**values)
    record = ours.next_record(step)
    if record == NEVER:
        assert not any(ours(later).records for later in range(step, step + 200))
    else:
        assert ours(record).records
        assert not any(ours(later).records for later in range(step, record))


@given(values=schedules, length=steps, first=st.integers(min_value=0, max_value=40))
def test_plan_agrees_with_asking_at_every_step(values: dict[str, int], length: int, first: int) -> None:
    """The line has each step's symbol, and the windows are the recorded stretches, each ended by a save."""
    ours = schedule(**values)
    plan = ours.plan(length, first=first)
    assert plan.line == "".join(ours(step).symbol for step in range(first, first + length))
    recorded = [step for begin, end in plan.windows for step in range(begin, end + 1)]
    assert recorded == [step for step in range(first, first + length) if ours(step).records]
    for _, end in plan.windows:
        assert ours(end) is ProfilerAction.RECORD_AND_SAVE or end == first + length - 1


@given(values=schedules, length=st.integers(min_value=1, max_value=60))
def test_plan_of_a_plain_callable_is_the_same(values: dict[str, int], length: int) -> None:
    """A callable that hides a schedule has the schedule's runs."""
    ours = schedule(**values)
    hidden = plan_of(lambda step: int(ours(step)), length)
    assert hidden.runs == ours.plan(length).runs


@given(values=schedules, length=st.integers(min_value=1, max_value=60))
def test_advice_in_the_diagnostics_works(values: dict[str, int], length: int) -> None:
    """A run with the number of steps that a diagnostic asks for does not get that diagnostic again."""
    ours = schedule(**values)
    for sentence in ours.plan(length).diagnostics:
        name, _, advice = sentence.rpartition("run ")
        if name:
            again = ours.plan(int(advice.split()[0])).diagnostics
            kind = sentence.partition(":")[0]
            assert not any(other.startswith(kind) for other in again), (sentence, again)


@given(values=schedules, length=st.integers(min_value=1, max_value=60))
def test_a_plan_without_windows_says_why(values: dict[str, int], length: int) -> None:
    """A loop that records nothing, or ends in a window, is always explained."""
    plan = schedule(**values).plan(length)
    names = {sentence.partition(":")[0] for sentence in plan.diagnostics}
    assert ("no step records" in names) is (not plan.windows)
    assert ("window incomplete" in names) is plan.line.endswith("R")


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"wait": -1}, ScheduleError, ["wait", "-1", "0 or more"]),
        ({"warmup": -2}, ScheduleError, ["warmup", "-2", "0 or more"]),
        ({"active": 0}, ScheduleError, ["active", "0", "1 or more"]),
        ({"active": -3}, ScheduleError, ["active", "-3", "1 or more"]),
        ({"repeat": -1}, ScheduleError, ["repeat", "-1", "0 or more"]),
        ({"skip_first": -1}, ScheduleError, ["skip_first", "-1", "0 or more"]),
        ({"skip_first_wait": -1}, ScheduleError, ["skip_first_wait", "-1", "True, False"]),
        ({"wait": 1.5}, TypeError, ["wait", "float: 1.5", "whole number"]),
        ({"active": "3"}, TypeError, ["active", "str: '3'", "whole number"]),
        ({"active": None}, TypeError, ["active", "NoneType: None", "whole number"]),
        ({"warmup": True}, TypeError, ["warmup", "bool: True", "whole number"]),
        ({"skip_first_wait": "yes"}, TypeError, ["skip_first_wait", "str: 'yes'", "True, False"]),
        ({"skip_first_wait": 0.5}, TypeError, ["skip_first_wait", "float: 0.5", "True, False"]),
        ({"skip_frist": 1}, TypeError, ["schedule()", "skip_frist", "skip_first"]),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], error: type[Exception], words: list[str]) -> None:
    """A wrong value's error names the argument, the value and what is allowed."""
    with pytest.raises(error) as caught:
        schedule(**{"wait": 1, "warmup": 1, "active": 1, **values})
    for word in words:
        assert word in str(caught.value)
    assert isinstance(caught.value, ValueError | TypeError)  # as for any wrong argument
    with pytest.raises(TypeError, match="active"):
        schedule(wait=1, warmup=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


def test_negative_steps_are_refused() -> None:
    """There is no step before the first."""
    ours = schedule(wait=1, warmup=1, active=1)
    for call in (ours, ours.next_change, ours.next_record, ours.plan):
        with refused(ScheduleError, "step", "-1"):
            call(-1)
    with refused(ScheduleError, "steps", -1):
        plan_of(always, -1)
    with refused(ScheduleError, "first", -1):
        plan_of(always, 1, first=-1)


def test_repr_is_the_code_that_makes_it() -> None:
    """The printed text can be pasted, and arguments left at their defaults are left out."""
    plain = schedule(wait=1, warmup=2, active=3)
    assert repr(plain) == "schedule(wait=1, warmup=2, active=3)"
    full = schedule(wait=1, warmup=2, active=3, repeat=4, skip_first=5, skip_first_wait=6)
    assert repr(full) == "schedule(wait=1, warmup=2, active=3, repeat=4, skip_first=5, skip_first_wait=True)"
    assert eval(repr(full)) == full


def test_schedules_are_values() -> None:
    """Equal arguments give equal schedules, which cannot be changed and survive JSON."""
    one = schedule(wait=1, warmup=2, active=3, skip_first_wait=1)
    same = schedule(wait=1, warmup=2, active=3, skip_first_wait=True)
    assert one == same
    assert hash(one) == hash(same)
    assert one != schedule(wait=1, warmup=2, active=3)
    with pytest.raises(AttributeError):
        one.wait = 2  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(one), type=Schedule) == one
    with refused(msgspec.ValidationError, "active", "0"):
        msgspec.json.decode('{"wait": 1, "warmup": 0, "active": 0}', type=Schedule)


def test_without_a_schedule_every_step_records() -> None:
    """The default records from the first step to the last, and never needs to be asked again."""
    assert always(0) is always(10**9) is ProfilerAction.RECORD
    assert always.next_change(0) == NEVER
    assert repr(always) == "always"
    assert copy.deepcopy(always) is pickle.loads(pickle.dumps(always)) is always
    assert isinstance(always, PlannedSchedule)
    assert plan_of(always, 3).diagnostics == ()


def test_plan_shows_both_ways_of_counting() -> None:
    """The table has the numbers that steps and windows have everywhere, from 0."""
    shown = str(schedule(wait=2, warmup=1, active=3, repeat=1).plan(8)).splitlines()
    assert shown == [
        "schedule(wait=2, warmup=1, active=3, repeat=1): 8 steps, 1 window",
        "  --WRRS--",
        "  steps 0-1  wait",
        "  step 2     warm up",
        "  steps 3-5  record, window 0",
        "  steps 6-7  off, no more windows",
    ]


def test_plan_of_a_long_loop_stays_readable() -> None:
    """A million steps do not print a million rows."""
    shown = str(schedule(wait=1, warmup=1, active=2).plan(1_000_000)).splitlines()
    assert len(shown) < 50
    assert max(map(len, shown)) < 120
    assert "more rows" in shown[-1]


@pytest.mark.parametrize(
    ("values", "steps", "first", "sentence"),
    [
        (
            {"wait": 1, "warmup": 1, "active": 4, "repeat": 1}, 4, 0,
            "window incomplete: the loop ends inside a window; its 2 steps are delivered, marked as incomplete; "
            "run 6 steps for a whole window",
        ),
        (
            {"skip_first": 5, "wait": 4, "warmup": 2, "active": 1}, 5, 0,
            "no step records: the loop of 5 steps is shorter than skip_first+wait+warmup=11; "
            "lower these, or run 12 steps or more",
        ),
        (
            {"skip_first": 5, "wait": 4, "warmup": 2, "active": 1}, 11, 0,
            "no step records: the loop of 11 steps is as long as skip_first+wait+warmup=11; "
            "lower these, or run 12 steps or more",
        ),
        (
            {"wait": 1, "warmup": 1, "active": 1, "repeat": 3}, 4, 0,
            "windows missing: 2 of the 3 that repeat=3 asks for; run 9 steps for all of them",
        ),
        (
            {"skip_first": 20, "wait": 0, "warmup": 1, "active": 1}, 4, 10,
            "no step records: the loop of 4 steps from step 10 on ends before step 21 is recorded; run 12 steps or more",
        ),
        ({"wait": 1, "warmup": 0, "active": 1}, 4, 0, "no warmup: with warmup=0 "),
    ],
)  # fmt: skip
def test_a_loop_that_does_not_fit_its_schedule(values: dict[str, int], steps: int, first: int, sentence: str) -> None:
    """The plan says what is missing, and how long the loop would have to be; and what it costs to have no warm-up."""
    (diagnostics,) = schedule(**values).plan(steps, first=first).diagnostics
    assert diagnostics.startswith(sentence)


def test_plan_of_a_run_that_goes_on() -> None:
    """A run that begins at a later step is planned from there; a window that is open at its end is reported. A loop without steps
    has an empty plan."""
    ours = schedule(wait=1, warmup=1, active=1, repeat=2)
    assert ours.plan(4, first=2).line == "S-WS"
    assert "ended before step 100" in ours.plan(4, first=100).diagnostics[0]
    assert "without an end" in str(schedule(wait=1, warmup=1, active=4, repeat=1).plan(4))
    plan = schedule(wait=1, warmup=0, active=1).plan(0)
    assert (plan.line, plan.windows, plan.diagnostics) == ("", [], ())
    assert str(plan).startswith("schedule(wait=1, warmup=0, active=1): 0 steps, 0 windows")


def test_plan_of_a_callable_that_leaves_a_window_open() -> None:
    """A window that goes from RECORD to nothing without RECORD_AND_SAVE is pointed out."""

    def odd_steps(step: int) -> int:
        return 2 * (step % 2)

    plan = plan_of(odd_steps, 5)
    assert plan.line == "-R-R-"
    assert plan.windows == [(1, 1), (3, 3)]
    (sentence,) = plan.diagnostics
    assert sentence.startswith("window incomplete: 2 windows without RECORD_AND_SAVE, the first one step 1")
    assert "odd_steps" in str(plan)


def test_never_stepped_is_explained() -> None:
    """A run whose step() was never called says so, and where to call it."""
    (sentence,) = explain(schedule(wait=1, warmup=0, active=1), 0, recorded=0)
    assert sentence.startswith("never stepped: step() was never called")
    assert "step 0, which schedule(wait=1, warmup=0, active=1) does not record" in sentence
    assert sentence.endswith("call step() at the end of each iteration")
    assert "does not record" not in explain(schedule(wait=0, warmup=0, active=1), 0, recorded=1)[0]
    assert explain(always, 0, recorded=1) == ()


def test_a_users_callable_is_not_called_to_explain() -> None:
    """A callable may count its calls, so its past is read from its own count."""

    def untouchable(step: int) -> int:
        raise AssertionError(step)

    assert explain(untouchable, 4, recorded=4) == ()
    assert "step() was never called" in explain(untouchable, 0, recorded=0)[0]
    assert "untouchable recorded none of the 4 steps" in explain(untouchable, 4, recorded=0)[0]
    assert "its one step is delivered" in explain(untouchable, 4, recorded=2, open_steps=1)[0]


def test_a_pause_is_not_blamed_on_the_schedule() -> None:
    """A loop long enough for its schedule that recorded nothing was paused; the schedule is not the reason."""
    assert explain(schedule(wait=1, warmup=1, active=1), 10, recorded=0) == ()


class Foreign(enum.Enum):
    """Actions of other profilers, by their names."""

    NONE = 10
    WARM_UP = 11
    RECORD_AND_SAVE = 13
    DEVICE_STOPPED = 4


@pytest.mark.parametrize(
    ("value", "action"),
    [
        (ProfilerAction.RECORD, ProfilerAction.RECORD),
        (0, ProfilerAction.NONE),
        (3, ProfilerAction.RECORD_AND_SAVE),
        (Foreign.NONE, ProfilerAction.NONE),
        (Foreign.WARM_UP, ProfilerAction.WARMUP),
        (Foreign.RECORD_AND_SAVE, ProfilerAction.RECORD_AND_SAVE),
    ],
)
def test_known_actions(value: object, action: ProfilerAction) -> None:
    """Our members, whole numbers and members of another enumeration with our names are understood."""
    assert checked_action(value, 0) is action


@pytest.mark.parametrize("value", [7, -1, None, "RECORD", 2.0, True, Foreign.DEVICE_STOPPED, object])
def test_unknown_actions_are_named(value: object) -> None:
    """Anything else is an error with the value, the step and what is allowed."""
    with pytest.raises(ScheduleError) as caught:
        checked_action(value, 4)
    message = str(caught.value)
    assert repr(value) in message
    assert "step 4" in message
    assert "NONE (0), WARMUP (1), RECORD (2), RECORD_AND_SAVE (3)" in message
    with refused(ScheduleError, "step 0", "RECORD_AND_SAVE (3)"):
        plan_of(lambda step: value, 1)
