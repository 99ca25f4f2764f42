"""Windows that are armed while the loop runs: which steps they get, and how they are reported."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepscope
from stepscope import schedule
from stepscope.control import Armed, WindowRequest
from stepscope.runtime.schedule.schedule import always, never
from stepscope.runtime.steps.window_follower import WindowFollower
from stepscope.runtime.windows.window import ARMED
from tests.support.armed_loop import QUICK, facts, numbers, running, work
from tests.support.messages import check_messages, refused


@pytest.mark.checklist("A1", "A2", "A28", "A31", "A32")
def test_the_steps_that_were_asked_for_are_recorded_and_named(output_dir: Path) -> None:
    """From the first to the last, both included, unless they are asked of other ranks; the name says what was recorded."""
    with running(output_dir, rank=3) as (profiler, windows):
        assert profiler.arm(WindowRequest(steps=1, ranks=(0, 1))).reason == "rank 3 is not among the ranks that record"
        assert (
            str(profiler.arm(WindowRequest(start_step=3, stop_step=5, run_id="a", ranks=(1, 3))))
            == "recording steps 3-5"
        )
        work(profiler, 10)
    assert numbers(windows) == [[3, 4, 5]]
    assert windows[0].complete and windows[0].diagnostics == ()
    request = facts(windows[0])
    assert request["name"] == "rank3_start3_stop5_a"
    assert (request["first_step"], request["last_step"], request["trigger"], request["state"]) == (
        3,
        5,
        "call",
        "recorded",
    )


@pytest.mark.checklist("A29", "A40", "F3", "F4")
def test_windows_in_the_past(output_dir: Path) -> None:
    """Refused with the nearest step, or clipped to what is left: then the name has the clipped steps."""
    with running(output_dir) as (profiler, windows):
        work(profiler, 6)
        refused = profiler.arm(WindowRequest(start_step=2, stop_step=9))
        assert not refused
        assert (
            refused.reason
            == "start_step 2 is in the past: the loop is at step 6; the nearest that can be recorded is 7"
        )
        assert refused.nearest == 7
        clipped = profiler.arm(WindowRequest(start_step=2, stop_step=8, past="clip"))
        assert (clipped.first, clipped.last) == (7, 8)
        assert clipped.reason == "clipped: the loop is at step 6 already, step 2 is past"
        whole = profiler.arm(WindowRequest(start_step=2, stop_step=5, past="clip"))
        assert not whole and "nothing of the window is left" in whole.reason
        work(profiler, 4)
    assert numbers(windows) == [[7, 8]]
    assert facts(windows[0])["name"] == "rank0_start7_stop8"
    assert facts(windows[0])["start_step"] == 2
    assert "clipped" in facts(windows[0])["note"]


@pytest.mark.checklist("A12", "F2", "F4")
@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"start_step": -1, "steps": 2}, ["WindowRequest.start_step", "-1"]),
        ({"start_step": 5, "stop_step": 4}, ["stop_step", "4", "start_step", "5"]),
        ({"steps": True}, ["WindowRequest.steps", "True"]),
        ({}, ["steps", "stop_step", "seconds"]),
        ({"steps": 2, "seconds": 1.0}, ["steps=2", "seconds=1.0"]),
        ({"stop_step": 4}, ["stop_step", "4", "start_step", "next", "steps"]),
        ({"seconds": 0}, ["WindowRequest.seconds", "0"]),
        ({"steps": 1, "ranks": ()}, ["WindowRequest.ranks"]),
        ({"steps": 1, "ranks": (-1,)}, ["WindowRequest.ranks[0]", "-1"]),
        ({"steps": 1, "run_id": "../x"}, ["WindowRequest.run_id", "'../x'"]),
    ],
)
def test_requests_that_cannot_be(fields: dict[str, Any], facts: list[str]) -> None:
    """The message has the field, the value, and what it should be."""
    with refused(ValueError, *facts):
        WindowRequest(**fields)


@pytest.mark.checklist("A30")
def test_another_window_while_one_runs(output_dir: Path) -> None:
    """It is refused with the steps that are in its way, or waits for them."""
    with running(output_dir) as (profiler, windows):
        profiler.arm(WindowRequest(start_step=2, stop_step=5, run_id="first"))
        work(profiler, 3)
        refused = profiler.arm(WindowRequest(start_step=5, steps=3))
        assert refused.reason == "steps 5-7 overlap the window 'first' of steps 2-5; ask with overlap='queue' to wait"
        queued = profiler.arm(WindowRequest(start_step=5, steps=3, overlap="queue"))
        assert (queued.first, queued.last, queued.reason) == (6, 8, "queued behind the window 'first' of steps 2-5")
        behind = profiler.arm(WindowRequest(steps=2, overlap="queue"))
        assert (behind.first, behind.last) == (9, 10)
        between = profiler.arm(WindowRequest(start_step=20, steps=1))
        assert between
        assert profiler.extend(2)
        work(profiler, 20)
    assert numbers(windows) == [[2, 3, 4, 5, 6, 7], [8, 9, 10], [11, 12], [20]]
    assert all(window.complete for window in windows)


@pytest.mark.checklist("A30", "A34")
def test_an_extended_window_moves_those_behind_it_at_once(output_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Requests that come after it see the new steps; a window that does not wait is missed, with a warning."""
    with running(output_dir) as (profiler, windows):
        profiler.arm(WindowRequest(start_step=1, stop_step=3, run_id="a"))
        profiler.arm(WindowRequest(start_step=3, steps=2, overlap="queue", run_id="b"))
        profiler.arm(WindowRequest(start_step=7, steps=1, run_id="c"))
        work(profiler, 2)
        with caplog.at_level(logging.WARNING, logger="stepscope"):
            assert profiler.extend(4)
        check_messages(caplog.records, "extended over another one", "will be missed")
        assert [(status.run_id, status.first, status.last) for status in profiler.armed()] == [
            ("a", 1, 7),
            ("c", 7, 7),
            ("b", 8, 9),
        ]
        refused = profiler.arm(WindowRequest(start_step=8, steps=2, run_id="d"))
        assert "overlap the window 'b' of steps 8-9" in refused.reason
        work(profiler, 12)
    assert numbers(windows) == [[1, 2, 3, 4, 5, 6, 7], [8, 9]]
    assert [(status.run_id, status.state) for status in profiler.armed()] == [
        ("c", "missed"),
        ("a", "recorded"),
        ("b", "recorded"),
    ]


@pytest.mark.checklist("A34", "F5")
def test_extending_and_aborting(output_dir: Path) -> None:
    """A running window changes by these commands only; what was recorded is delivered and named after what it has."""
    with running(output_dir) as (profiler, windows):
        assert profiler.extend(3).reason == "no armed window runs"
        assert profiler.abort() == ()
        profiler.arm(WindowRequest(start_step=2, steps=2, run_id="long"))
        work(profiler, 3)
        assert profiler.current_action.records
        assert str(profiler.extend(2)) == "recording steps 2-5 (extended to step 5)"
        for wrong in (profiler.extend(), profiler.extend(seconds=1.0), profiler.extend(1, seconds=1.0)):
            assert not wrong and wrong.reason == "the window is one of steps: say how many more"
        work(profiler, 7)
        profiler.arm(WindowRequest(steps=50, run_id="cut"))
        profiler.arm(WindowRequest(start_step=100, steps=1, run_id="later"))
        work(profiler, 3)
        assert profiler.abort("unknown") == ()
        ended = profiler.abort()
        assert [status.run_id for status in ended] == ["cut", "later"]
        work(profiler, 3)
    assert numbers(windows) == [[2, 3, 4, 5], [11, 12, 13]]
    assert windows[0].complete and not windows[1].complete
    assert windows[1].diagnostics[0] == "aborted after step 13: abort() was called"
    assert facts(windows[1])["name"] == "rank0_start11_stop13_cut"
    assert [status.state for status in profiler.armed()] == ["recorded", "withdrawn", "aborted"]


@pytest.mark.checklist("A1", "A34", "B18")
def test_before_the_start(output_dir: Path) -> None:
    """A window that is armed then may begin with the first step, and may be withdrawn again."""
    profiler = stepscope.trace(schedule=never, output_dir=output_dir, options=QUICK)
    assert profiler.arm(WindowRequest(start_step=0, steps=2, run_id="now"))
    assert [status.run_id for status in profiler.abort("now")] == ["now"]
    assert profiler.arm(WindowRequest(start_step=0, steps=1)).last == 0
    assert profiler.arm(WindowRequest(start_step=5, stop_step=5))
    with profiler:
        work(profiler, 9)
    assert [(status.state, status.first, status.last) for status in profiler.armed()] == [
        ("withdrawn", 0, 1),
        ("recorded", 0, 0),
        ("recorded", 5, 5),
    ]


@pytest.mark.checklist("A26", "F7")
def test_the_run_ends_inside_of_a_window(output_dir: Path) -> None:
    """Or is stopped there: what there is is delivered, marked as incomplete, and named after it. A window that waits is recorded after
    the next start; one that never came is reported."""
    with running(output_dir) as (profiler, windows):
        profiler.arm(WindowRequest(start_step=2, steps=4, run_id="x"))
        profiler.arm(WindowRequest(start_step=6, steps=1, run_id="waits"))
        profiler.arm(WindowRequest(start_step=8, steps=100, run_id="y"))
        profiler.arm(WindowRequest(start_step=500, steps=1, run_id="never"))
        work(profiler, 4)
        with stepscope.span("more"):
            pass
        profiler.stop()
        profiler.start()
        work(profiler, 6)
        with stepscope.span("the last step is not ended"):
            pass
    assert numbers(windows) == [[2, 3], [6], [8, 9]]
    assert [window.complete for window in windows] == [False, True, False]
    assert [facts(windows[at])["name"] for at in (0, 2)] == ["rank0_start2_stop3_x", "rank0_start8_stop9_y"]
    assert facts(windows[2])["state"] == "cut"
    states = {status.run_id: status.state for status in profiler.armed()}
    assert states == {"x": "cut", "waits": "recorded", "y": "cut", "never": "queued"}


def test_windows_of_seconds(output_dir: Path) -> None:
    """They end with the first step that ends later, are complete, and may be extended by seconds."""
    with running(output_dir) as (profiler, windows):
        began = time.monotonic()
        answer = profiler.arm(WindowRequest(seconds=0.2))
        assert (answer.first, answer.last) == (1, None)
        behind = profiler.arm(WindowRequest(steps=2, overlap="queue"))
        assert not behind and behind.reason.endswith("ask again when it is over")
        work(profiler, 1)
        assert profiler.extend(seconds=0.1)
        assert not profiler.extend(3)
        while not windows:
            work(profiler, 1)
            time.sleep(0.005)
            assert time.monotonic() - began < 60
    (first,) = windows
    assert first.complete
    assert first.end_ns - first.start_ns >= 300_000_000
    assert first.steps[-1].start_ns - first.start_ns <= 300_000_000


@pytest.mark.checklist("B19")
def test_windows_of_whole_groups_of_steps(output_dir: Path) -> None:
    """Rounded down at the begin and up at the end, so that each group of steps is recorded whole or not at all."""
    with running(output_dir) as (profiler, windows):
        answer = profiler.arm(WindowRequest(start_step=5, stop_step=9, granularity=4))
        assert (answer.first, answer.last, answer.reason) == (4, 11, "rounded to groups of 4 steps")
        work(profiler, 13)
        assert profiler.arm(WindowRequest(steps=1, granularity=4)).first == 16
        past = profiler.arm(WindowRequest(start_step=14, steps=1, granularity=4))
        assert past.nearest == 16 and "start_step (rounded to groups of 4) 12 is in the past" in past.reason
        work(profiler, 4)
        assert profiler.extend(1).last == 23
        work(profiler, 10)
    assert numbers(windows) == [list(range(4, 12)), list(range(16, 24))]


def test_armed_windows_and_those_of_a_schedule(output_dir: Path) -> None:
    """They go where the schedule records nothing; what it records is not touched."""
    own = schedule(wait=4, warmup=0, active=2, repeat=2)
    with running(output_dir, schedule=own) as (profiler, windows):
        assert profiler.arm(WindowRequest(start_step=1, steps=2))
        refused = profiler.arm(WindowRequest(start_step=3, steps=2))
        assert refused.reason == "steps 3-4 overlap the schedule's window with step 4; ask with overlap='queue' to wait"
        queued = profiler.arm(WindowRequest(start_step=3, steps=2, overlap="queue"))
        assert (queued.first, queued.last) == (6, 7)
        work(profiler, 20)
        assert profiler.arm(WindowRequest(steps=1)).first == 21
        work(profiler, 3)
    assert numbers(windows) == [[1, 2], [4, 5], [6, 7], [10, 11], [21]]
    assert [window.metadata.get(ARMED) is not None for window in windows] == [True, False, True, False, True]


def _unplanned(step: int) -> int:
    return [0, 0, 2, 3][step % 4]


def test_a_schedule_that_does_not_know_its_future(output_dir: Path) -> None:
    """Its windows go first: an armed window that comes upon one is missed, and reported."""
    with running(output_dir, schedule=_unplanned) as (profiler, windows):
        profiler.arm(WindowRequest(start_step=3, steps=1, run_id="inside"))
        profiler.arm(WindowRequest(start_step=5, steps=1, run_id="after"))
        work(profiler, 8)
    assert [5] in numbers(windows) and [2, 3] in numbers(windows)
    assert {status.run_id: status.state for status in profiler.armed()} == {"inside": "missed", "after": "recorded"}
    assert any("inside" not in note and "missed" in note for note in profiler.diagnostics())


def test_profilers_that_record_everything_refuse(output_dir: Path) -> None:
    """There is nothing to be armed where every step is recorded, or the flight recorder keeps it; nor by what is no request."""
    with running(output_dir / "a", schedule=always) as (profiler, _):
        assert "records every step" in profiler.arm(WindowRequest(steps=1)).reason
        with refused(TypeError, "arm(stepscope.control.WindowRequest(", "{'steps': 3}"):
            profiler.arm({"steps": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert "is closed" in profiler.arm(WindowRequest(steps=1)).reason
    with running(output_dir / "b", schedule=None, keep_last=5) as (profiler, _):
        assert profiler.arm(WindowRequest(steps=1)).reason == (
            "the profiler keeps the last 5 steps (keep_last) and records at all times; profiler.save() writes them, and a "
            "second profiler, trace(control=...) without keep_last, records windows"
        )


def test_the_queue_is_bounded(output_dir: Path) -> None:
    """A caller that asks without end is refused at some point; requests that are pending at the end are not awaited."""
    with running(output_dir) as (profiler, _):
        answers = [profiler.arm(WindowRequest(start_step=1000 + number, steps=1)) for number in range(100)]
        assert sum(answer.accepted for answer in answers) == 64
        assert "64 windows wait already" in answers[-1].reason
        assert len(profiler.abort()) == 64
        assert profiler.arm(WindowRequest(start_step=1000, steps=1))
    nothing = "no step records: the profiler records only windows that are asked for, and none was recorded"
    assert nothing in profiler.diagnostics()


def test_arming_from_other_threads_while_the_loop_races(output_dir: Path) -> None:
    """The steps that an answer promises are recorded, though the loop goes on meanwhile."""
    promised: dict[str, Armed] = {}

    with running(output_dir) as (profiler, windows):

        def ask(name: str) -> None:
            for number in range(60):
                answer = profiler.arm(WindowRequest(steps=1 + number % 3, run_id=f"{name}{number}"))
                if answer:
                    promised[answer.run_id] = answer
                time.sleep(0.0005)

        threads = [threading.Thread(target=ask, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            work(profiler, 1)
        work(profiler, 20)
    recorded = {facts(window)["run_id"]: [step.number for step in window.steps] for window in windows}
    assert promised
    for run_id, answer in promised.items():
        assert answer.first is not None and answer.last is not None
        assert recorded[run_id] == list(range(answer.first, answer.last + 1))
    assert len(recorded) == len(promised)


@st.composite
def plans(draw: st.DrawFn) -> list[tuple[int, Any]]:
    """The action at each step."""
    request = st.builds(
        WindowRequest,
        start_step=st.one_of(st.just("next"), st.integers(0, 60)),
        steps=st.integers(1, 6),
        granularity=st.integers(1, 3),
        past=st.sampled_from(["refuse", "clip"]),
        overlap=st.sampled_from(["refuse", "queue"]),
        warmup=st.integers(0, 3),
    )
    deed = st.one_of(request, st.sampled_from(["abort"]), st.integers(1, 4))
    return draw(st.lists(st.tuples(st.integers(0, 40), deed), max_size=12))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=plans(), cycle=st.sampled_from([None, (6, 1, 2, 3), (0, 0, 1, 2)]))
def test_promised_steps_are_recorded(
    tmp_path: Path, plan: list[tuple[int, Any]], cycle: tuple[int, ...] | None
) -> None:
    """Against a model: each step belongs to one window at most, and each window has the steps of its last answer."""
    own: Any = never
    if cycle is not None:
        own = schedule(wait=cycle[0], warmup=cycle[1], active=cycle[2], repeat=cycle[3])
    deeds: dict[int, list[Any]] = {}
    for step, deed in plan:
        deeds.setdefault(step, []).append(deed)
    count = 0
    with running(tmp_path, schedule=own) as (profiler, windows):
        for step in range(120):
            for deed in deeds.get(step, []):
                if isinstance(deed, WindowRequest):
                    count += 1
                    profiler.arm(msgspec.structs.replace(deed, run_id=f"r{count}"))
                elif deed == "abort":
                    profiler.abort()
                else:
                    profiler.extend(deed)
            work(profiler, 1)
    states = {status.run_id: status for status in profiler.armed()}
    recorded = [number for window in numbers(windows) for number in window]
    assert recorded == sorted(set(recorded))
    windows_by_run = {facts(window)["run_id"]: window for window in windows if window.metadata.get(ARMED) is not None}
    for run_id, window in windows_by_run.items():
        status = states[run_id]
        assert status.state in ("recorded", "aborted")
        assert (status.first, status.last) == (window.steps[0].number, window.steps[-1].number)
        assert window.complete == (status.state == "recorded")
    assert {
        run_id for run_id, status in states.items() if status.state in ("recorded", "aborted")
    } == windows_by_run.keys()


def test_requests_while_the_thread_that_steps_hangs(output_dir: Path) -> None:
    """In the schedule: who asks from another thread is answered at once."""
    reached, over = threading.Event(), threading.Event()

    def planned(step: int) -> stepscope.ProfilerAction:
        if step == 2:
            reached.set()
            assert over.wait(30)
        return stepscope.ProfilerAction.NONE

    with running(output_dir, schedule=planned) as (profiler, windows):
        assert profiler.arm(WindowRequest(start_step=2, steps=4))
        thread = threading.Thread(target=lambda: work(profiler, 9), daemon=True)
        thread.start()
        assert reached.wait(30)
        assert profiler.arm(WindowRequest(start_step=7, steps=1))
        assert [status.first for status in profiler.armed()] == [2, 7]
        assert profiler.arm(WindowRequest(start_step=6, steps=1))
        assert thread.is_alive() and profiler.report()
        over.set()
        thread.join(30)
    assert numbers(windows) == [[2, 3, 4, 5], [6], [7]]


# loops that something else records


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
