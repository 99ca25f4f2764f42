"""Rank 0 chooses the steps of a window and writes them down once; other ranks record the same steps, or say why not."""

from __future__ import annotations

import errno
import itertools
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.control import WindowRequest
from stepscope.runtime.control.agreement import job_directory
from stepscope.runtime.control.agreement.job_directory import (
    MAX_RECORD_BYTES,
    Current,
    JobDirectory,
    Plan,
    Plans,
    Request,
)
from stepscope.runtime.control.rate import Pace
from stepscope.runtime.requests.end_change import EndChange, EndRequest
from tests.support.agreeing_ranks import Rank, finish, go_on, job

encode = msgspec.json.encode
LONG = 10**6

turns = st.tuples(st.just("turn"), st.integers(0, 2))
work = st.tuples(st.just("work"), st.integers(0, 2), st.integers(1, 30))
windows = st.tuples(st.just("window"), st.integers(0, 2), st.sampled_from([2, 40, 400]))
ends = st.tuples(st.just("end"), st.integers(0, 2), st.integers(0, 5))


def end_in_calm(ranks: list[Rank]) -> None:
    """All ranks go on until nothing is asked for, and no window runs or waits."""
    quiet = 0
    go_on(ranks, lambda: ranks[0].agreement.directory and all(rank.agreement.directory for rank in ranks))
    while quiet < 5:
        for rank in ranks:
            rank.agreement.turn()
            rank.work(3)
        files = list((ranks[0].agreement.directory or Path()).glob("request-*"))
        waits = any(status.open for rank in ranks for status in rank.profiler.armed())
        quiet = 0 if files or waits else quiet + 1
    for rank in ranks:
        assert rank.profiler.flush(30)


def begun(ranks: list[Rank], **request: Any) -> int:
    """Has a window planned that rank 0 has begun, and rank 1 has not; returns its first step."""
    ranks[0].agreement.request(WindowRequest(run_id="w", **request), "file")
    go_on(ranks, lambda: all(rank.outcomes for rank in ranks), 1)
    first = ranks[0].profiler.armed()[0].first
    assert first is not None
    ranks[0].work(first + 3 - ranks[0].profiler.step_num)
    assert [rank.profiler.armed()[0].state for rank in ranks] == ["running", "queued"]
    return first


@pytest.mark.checklist("A20", "A34", "F5", "F10")
@settings(max_examples=25)
@given(st.lists(st.one_of(turns, turns, work, windows, ends), max_size=60))
def test_any_order_of_turns_and_steps(plan: list[tuple[Any, ...]]) -> None:
    """A rank records the steps that rank 0 has chosen, or says that it missed the window or its end."""
    with job(3) as ranks:
        for number, deed in enumerate(plan):
            which: int = deed[1]
            rank = ranks[which]
            match deed[0]:
                case "turn":
                    rank.agreement.turn()
                case "work":
                    rank.work(deed[2])
                case "window":
                    request = WindowRequest(steps=deed[2], run_id=f"r{number}", overlap="queue", granularity=2)
                    rank.agreement.request(request, "socket")
                case _:
                    end = EndRequest(command="extend" if deed[2] else "abort", steps=deed[2])
                    rank.agreement.request(end, "socket", key=f"{number}")
        end_in_calm(ranks)
    chosen = dict(ranks[0].windows)
    for rank in ranks[1:]:
        late_ends = [answer for answer in rank.ends if "past step" in answer.reason or "too late" in answer.reason]
        found = dict(rank.windows)
        missed = {status.run_id for status in rank.profiler.armed() if status.state == "missed"}
        unable = {answer.run_id for answer in rank.outcomes if not answer}
        for run_id, steps in found.items():
            assert run_id not in missed
            if not late_ends:
                assert steps == chosen[run_id]
            assert steps[0] == chosen.get(run_id, steps)[0]
        if not late_ends:
            assert chosen.keys() - found.keys() <= missed | unable


@pytest.mark.checklist("A34", "F5")
def test_a_window_that_one_rank_has_begun_is_extended_and_aborted() -> None:
    """The other, which has yet to come to it, records the same."""
    with job(2) as ranks:
        first = begun(ranks, steps=LONG, granularity=4)
        ranks[1].agreement.request(EndRequest(command="extend", steps=5), "socket", key="one")
        go_on(ranks, lambda: all(rank.ends for rank in ranks))
        last = first + LONG + 7
        assert {str(rank.ends[0]) for rank in ranks} == {f"recording steps {first}-{last} (extended to step {last})"}
        ranks[0].agreement.request(EndRequest(command="abort", reason="enough"), "socket", key="two")
        go_on(ranks, lambda: all(len(rank.ends) == 2 for rank in ranks))
        end = ranks[0].ends[1].last
        assert end is not None and ranks[0].profiler.step_num <= end < last
        end_in_calm(ranks)
    assert ranks[0].windows == ranks[1].windows == [("w", tuple(range(first, end + 1)))]
    assert ranks[0].complete == ranks[1].complete == [False]


@pytest.mark.checklist("F10")
def test_a_rank_that_is_late_says_missed() -> None:
    """In its answer, its windows, its diagnostics and its metadata; rank 0 names it. Other ranks record."""
    with job(3) as ranks:
        go_on(ranks, lambda: ranks[2].agreement.directory, 1)
        ranks[2].work(5000)
        ranks[1].agreement.request(WindowRequest(start_step=4000, steps=2, run_id="w"), "socket")
        go_on(ranks, lambda: len(ranks[0].outcomes) > 1)
        late = "rank 2 missed the window: it was at step 500"
        assert not ranks[2].outcomes[0] and ranks[2].outcomes[0].reason.startswith(late)
        assert ranks[2].outcomes[0].reason.endswith("starts with step 4000; ask again with a later start_step")
        (status,) = ranks[2].profiler.armed()
        assert (status.state, status.first, status.last) == ("missed", 4000, 4001) and status.reason.startswith(late)
        assert any(f"missed: {late}" in note for note in ranks[2].profiler.diagnostics())
        assert ranks[2].profiler.metadata["missed_windows"]["count"] == 1
        assert ranks[0].outcomes[1].accepted and f"not on rank 2: {late}" in str(ranks[0].outcomes[1])
        finish(ranks, 1, 50)
    assert ranks[0].windows == ranks[1].windows == [("w", (4000, 4001))] and ranks[2].windows == []


def test_a_rank_that_is_past_an_end_says_so() -> None:
    """An abort ends its window where it is."""
    with job(2) as ranks:
        first = begun(ranks, steps=LONG)
        ranks[1].work(first + 4000)
        ranks[0].agreement.request(EndRequest(command="abort", reason="enough"), "file")
        go_on(ranks, lambda: len(ranks[0].ends) > 1)
        assert "was past step" in ranks[1].ends[0].reason and "not on rank 1" in ranks[0].ends[1].reason
        end_in_calm(ranks)
        ranks[0].agreement.request(EndRequest(command="abort", reason="again"), "file", key="again")
        go_on(ranks, lambda: len(ranks[1].ends) > 1)
        assert ranks[1].ends[1].reason == "no armed window runs or waits"
    assert len(ranks[0].windows[0][1]) < 3000 < len(ranks[1].windows[0][1])


def test_requests_are_handed_to_rank_0() -> None:
    """By whichever rank is asked; signals to all ranks are one request while their window is open."""
    with job(3) as ranks:
        for number, rank in enumerate(ranks):
            rank.agreement.request(WindowRequest(steps=5), "signal", key=f"signal {number}")
        go_on(ranks, lambda: all(rank.outcomes for rank in ranks), 1)
        end_in_calm(ranks)
        assert [len(rank.outcomes) for rank in ranks] == [1, 1, 1]
        ranks[2].agreement.request(WindowRequest(steps=5), "signal", key="later")
        finish(ranks, 2)
        ranks[1].agreement.request(WindowRequest(steps=2, ranks=(1, 2), run_id="some"), "socket")
        finish(ranks, 3)
        first = ranks[1].windows[2][1][0]
        assert str(ranks[0].outcomes[2]) == f"recording steps {first}-{first + 1} (by ranks 1-2)"
        assert not list((ranks[0].agreement.directory or Path()).glob("request-*"))
    assert ranks[0].windows == ranks[1].windows[:2] == ranks[2].windows[:2] and ranks[1].windows == ranks[2].windows


@pytest.mark.checklist("F10")
def test_refusals_of_rank_0() -> None:
    """Ranks that the job does not have, and an end that not all ranks could read in time: nothing changes on any rank."""
    with job(2) as ranks:
        ranks[0].agreement.request(WindowRequest(start_step=50, steps=2, ranks=(0, 9)), "file")
        go_on(ranks, lambda: all(rank.outcomes for rank in ranks))
        assert all("rank 9: this job has ranks 0 to 1, so none records" in rank.outcomes[0].reason for rank in ranks)
        ranks[0].agreement.request(WindowRequest(steps=5, run_id="w"), "file")
        go_on(ranks, lambda: all(len(rank.outcomes) == 2 for rank in ranks), 1)
        first = ranks[1].outcomes[1].first
        assert first is not None
        ranks[0].work(first + 3 - ranks[0].profiler.step_num)
        ranks[0].agreement.request(EndRequest(command="extend", steps=5), "file")
        go_on(ranks, lambda: all(rank.ends for rank in ranks))
        assert all("too soon to extend it on all ranks: rank 0 is at step" in rank.ends[0].reason for rank in ranks)
        end_in_calm(ranks)
    assert ranks[0].windows == ranks[1].windows == [("w", tuple(range(first, first + 5)))]


def test_one_rank_records_something_else() -> None:
    """Rank 0's own windows are taken into account, with `queue` also later steps; another rank says why it does not record."""
    with job(2) as ranks:
        go_on(ranks, lambda: ranks[1].agreement.directory)
        ranks[0].profiler.arm(WindowRequest(start_step=1, steps=3000, run_id="own"))
        ranks[0].agreement.request(WindowRequest(start_step=2000, steps=2, run_id="refused"), "file")
        go_on(ranks, lambda: all(rank.outcomes for rank in ranks))
        assert all("rank 0: steps 2000-2001 overlap the window 'own'" in rank.outcomes[0].reason for rank in ranks)
        fixed = WindowRequest(start_step=2990, steps=2, granularity=4, run_id="fixed", overlap="queue")
        ranks[0].agreement.request(fixed, "file")
        finish(ranks, 2, 10)
        ranks[1].profiler.arm(WindowRequest(start_step=8000, steps=3000, run_id="own"))
        ranks[0].agreement.request(WindowRequest(start_step=9000, steps=2, run_id="one"), "file")
        go_on(ranks, lambda: len(ranks[0].outcomes) > 3)
        assert "not on rank 1: steps 9000-9001 overlap the window 'own'" in ranks[0].outcomes[3].reason
        finish(ranks, 3, 50)
    assert ranks[0].windows[1] == ranks[1].windows[0] == ("fixed", (3004, 3005, 3006, 3007))
    assert [run_id for run_id, _ in ranks[0].windows[2:]] == ["one"] and "one" not in dict(ranks[1].windows)


# rank 0 that has ended, and directories that cannot be used


def abandoned(place: Path) -> Path:
    """Makes the directory of a run whose rank 0 shows no sign of life, with a plan."""
    directory = JobDirectory(place / "stepscope.json", "job")
    directory.make()
    run = directory.path / "run-0"
    run.mkdir()
    request = WindowRequest(start_step=3, steps=2, run_id="old")
    Plans(run).publish(Plan("key", Request("1 ", "file", request), request))
    (directory.path / "current.json").write_bytes(encode(Current("run-0")))
    return run


@pytest.mark.checklist("A23")
def test_rank_0_that_does_not_answer(tmp_path: Path) -> None:
    """It has ended, or has never come: the request says so, and is not planned later. Its old plans are not followed."""
    run = abandoned(tmp_path)
    rank = Rank(tmp_path, 1, 2, patience=0.3)
    for trigger in ("file", "socket"):
        rank.agreement.request(WindowRequest(steps=1, run_id=trigger), trigger)
    go_on([rank], lambda: len(rank.outcomes) == 2)
    assert all("rank 0, which chooses the steps, did not answer in 0.3 s" in answer.reason for answer in rank.outcomes)
    first = Rank(tmp_path, 0, 2)
    ranks = [first, rank]
    end_in_calm(ranks)
    assert not run.exists() and rank.windows == first.windows == []
    rank.agreement.request(WindowRequest(steps=1, run_id="again"), "socket")
    go_on(ranks, lambda: first.outcomes, 1)
    end_in_calm(ranks)
    for each in ranks:
        each.close()
    assert first.windows == rank.windows and len(rank.windows) == 1


def test_a_run_is_joined_after_a_sign_of_life(tmp_path: Path) -> None:
    """Of whichever machine rank 0 is on. A request of the file stays with a rank 0 that runs."""
    run = abandoned(tmp_path)
    rank = Rank(tmp_path, 1, 2, patience=0.3)
    rank.agreement.turn()
    assert rank.agreement.directory is None
    os.utime(run.parent / "current.json", (1, 1))
    rank.agreement.turn()
    assert rank.agreement.directory == run and rank.outcomes[0].first == 3
    for trigger in ("socket", "file"):
        rank.agreement.request(WindowRequest(steps=1, run_id=trigger), trigger)
    signs = itertools.count(2)

    def answered() -> bool:
        os.utime(run.parent / "current.json", (1, next(signs)))
        return len(rank.outcomes) > 1

    go_on([rank], answered)
    assert [answer.run_id for answer in rank.outcomes] == ["old", "socket"]
    rank.close()


def test_a_second_rank_0(tmp_path: Path) -> None:
    """It takes part only when the first shows no sign of life any more, and so does the first when the second does not."""
    with closing(Rank(tmp_path, 0, 1)) as first, closing(Rank(tmp_path, 0, 1)) as second:
        first.agreement.turn()
        run = first.agreement.directory
        assert run is not None
        second.agreement.request(WindowRequest(start_step=LONG, steps=1, run_id="second"), "file")
        go_on([first, second], lambda: second.outcomes)
        assert "another process is rank 0 of this job; set STEPSCOPE_JOB" in second.outcomes[0].reason
        go_on([second], lambda: second.agreement.directory)
        assert second.agreement.directory != run and not run.exists()
        while not any(first.outcomes):  # until the second one has been silent for long enough
            number = len(first.outcomes)
            first.agreement.request(WindowRequest(start_step=LONG, steps=1, run_id=f"first-{number}"), "file")
            go_on([first], lambda: len(first.outcomes) > number)  # noqa: B023
        assert first.agreement.directory not in (run, second.agreement.directory)


def test_a_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is refused with the reason, and recorded on no rank; what is asked for later is."""

    def fails(path: Path, content: bytes) -> bool:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with job(2) as ranks:
        go_on(ranks, lambda: ranks[1].agreement.directory, 1)
        for rank in ranks:
            with monkeypatch.context() as patch:
                patch.setattr(job_directory, "create_once", fails)
                rank.agreement.request(WindowRequest(start_step=3000, steps=1, run_id="no"), "socket")
                go_on(ranks, lambda: rank.outcomes)  # noqa: B023
            assert os.strerror(errno.ENOSPC) in rank.outcomes[0].reason
        ranks[0].agreement.request(WindowRequest(start_step=3000, steps=1, run_id="yes"), "socket")
        finish(ranks, 2, 50)
    assert ranks[0].windows == ranks[1].windows == [("yes", (3000,))]


def test_a_directory_that_is_still_to_be_made_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The watched file's is made by rank 0: until then there is nothing to complain about, and requests stay."""
    place = tmp_path / "new"
    ranks = [Rank(place, number, 2) for number in range(2)]
    assert not place.exists() or not list(place.glob(".stepscope-*"))
    ranks[1].agreement.request(WindowRequest(start_step=50, steps=1, run_id="early"), "socket")
    ranks[1].agreement.turn()
    assert (ranks[1].agreement.trouble, ranks[1].outcomes, caplog.records) == ("", [], [])
    finish(ranks, 1)
    for rank in ranks:
        rank.close()
    assert ranks[0].windows == ranks[1].windows == [("early", (50,))]


def test_forged_files_are_passed_over(tmp_path: Path) -> None:
    """Those that are too large, links, damaged, or not as they should be; what comes after them is followed."""
    request = Request("1 ", "file", WindowRequest(start_step=100, steps=1, run_id="forged"))
    good = encode(Plan("key", request, request.window))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(good)
    with job(2) as ranks:
        go_on(ranks, lambda: ranks[1].agreement.directory)
        run = ranks[0].agreement.directory
        assert run is not None
        (run / "plan-1.json").write_bytes(b"{")
        (run / "plan-2.json").write_bytes(good + b" " * MAX_RECORD_BYTES)
        (run / "plan-3.json").mkdir()
        (run / "plan-4.json").symlink_to(elsewhere)
        (run / f"plan-{10**12}.json").write_bytes(b"{}")
        change = EndChange(command="extend", first=7, until=8, last=9)
        (run / "plan-5.json").write_bytes(encode(Plan("key", request, None, change)))
        (run / "request-key.json").write_bytes(b'{"trigger": 1}')
        (run / "request-two.json").symlink_to(elsewhere)
        (run / "unable-6-1.json").write_bytes(b"[]")
        ranks[0].agreement.request(WindowRequest(start_step=9000, steps=1, run_id="good"), "file")
        go_on(ranks, lambda: any(answer.first == 9000 for answer in ranks[1].outcomes))
        (run.parent / "current.json").write_bytes(b'{"run": "run-/../.."}')
        ranks[0].agreement.request(WindowRequest(start_step=9005, steps=1, run_id="after"), "file")
        go_on(ranks, lambda: any(answer.first == 9005 for answer in ranks[1].outcomes))
        finish(ranks, 2, 100)
    assert ranks[0].windows == ranks[1].windows == [("good", (9000,)), ("after", (9005,))]


# the pace, from which rank 0 chooses


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
