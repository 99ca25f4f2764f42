"""Ranks agree, in whatever order they and their files come to run: all of them record the same steps, or none does."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope import schedule
from stepscope.control import WindowRequest
from stepscope.runtime.control.agreement.agreed_gate import AgreedGate
from stepscope.runtime.control.agreement.agreement import Agreement
from stepscope.runtime.control.agreement.coordinator import ATTEMPTS
from stepscope.runtime.control.agreement.job_directory import Current, JobDirectory, Member, read_record
from stepscope.runtime.control.agreement.peer import Peer
from stepscope.runtime.control.agreement.rate import StepRate
from stepscope.runtime.control.agreement.records import Decision, Proposal, Records, Start
from stepscope.runtime.control.requests.end_change import EndRequest
from tests.support.agreeing import Rank, job, settle

encode = msgspec.json.encode

deeds = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 2)),
        st.tuples(st.just("turn"), st.integers(0, 2)),
        st.tuples(st.just("work"), st.integers(0, 2), st.integers(1, 30)),
        st.tuples(st.just("wish"), st.integers(0, 2), st.integers(0, 3), st.sampled_from(["refuse", "queue"])),
    ),
    max_size=60,
)


@pytest.mark.checklist("A20", "F10")
@settings(max_examples=15)
@given(deeds)
def test_any_order_of_turns_and_steps(plan: list[tuple[Any, ...]]) -> None:
    """The windows of all ranks are the same, and so is what their requests are answered."""
    wished = {(deed[2], deed[3]) for deed in plan if deed[0] == "wish"}
    with job(3) as ranks:
        for deed in plan:
            number: int = deed[1]
            rank = ranks[number]
            match deed[0]:
                case "turn":
                    rank.agreement.turn()
                case "work":
                    rank.work(deed[2])
                case _:
                    rank.agreement.wish(WindowRequest(steps=1 + deed[2], run_id=f"r{deed[2]}", overlap=deed[3]), "file")
        settle(ranks, len(wished))
    assert len({tuple(rank.windows) for rank in ranks}) == 1
    recorded = ranks[0].windows
    assert bool(recorded) == bool(wished)
    assert len(recorded) == sum(map(bool, ranks[0].outcomes))
    for run_id, steps in recorded:
        assert len(steps) == 1 + int(run_id[1:])


def calm(ranks: list[Rank]) -> bool:
    """Whether nothing is left to agree on, and no window runs or waits."""
    directory = ranks[0].agreement.directory
    if directory is None or any(status.open for rank in ranks for status in rank.profiler.armed()):
        return False
    records = Records(directory)
    decision, proposal = records.read(Decision, records.latest()), records.read(Proposal, records.latest())
    if records.wishes() or (proposal is not None and decision is None):
        return False
    return decision is None or proposal is None or not decision.again or proposal.attempt == ATTEMPTS - 1


def end_in_calm(ranks: list[Rank]) -> None:
    """Everybody goes on until nothing is left to do."""
    deadline, since = time.monotonic() + 90, 0
    while since < 5:
        assert time.monotonic() < deadline
        for rank in ranks:
            rank.agreement.turn()
            rank.work(3)
        since = since + 1 if calm(ranks) else 0
    for rank in ranks:
        assert rank.profiler.flush(30)


changes = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 2)),
        st.tuples(st.just("turn"), st.integers(0, 2)),
        st.tuples(st.just("work"), st.integers(0, 2), st.integers(1, 30)),
        st.tuples(st.just("wish"), st.integers(0, 2), st.sampled_from([2, 40, 400])),
        st.tuples(st.just("extend"), st.integers(0, 2), st.integers(1, 5)),
        st.tuples(st.just("abort"), st.integers(0, 2)),
    ),
    max_size=60,
)


@pytest.mark.checklist("A34", "F5", "F10")
@settings(max_examples=15)
@given(changes)
def test_windows_end_with_the_same_step_in_any_order(plan: list[tuple[Any, ...]]) -> None:
    """However they are extended and aborted while some ranks have begun them and others have not."""
    with job(3) as ranks:
        for number, deed in enumerate(plan):
            asked: int = deed[1]
            rank = ranks[asked]
            match deed[0]:
                case "turn":
                    rank.agreement.turn()
                case "work":
                    rank.work(deed[2])
                case "wish":
                    request = WindowRequest(steps=deed[2], run_id=f"r{number}", overlap="queue", granularity=2)
                    rank.agreement.wish(request, "file")
                case "extend":
                    rank.agreement.wish(EndRequest(command="extend", steps=deed[2]), "file", key=f"{number}")
                case _:
                    rank.agreement.wish(EndRequest(command="abort", reason="enough"), "file", key=f"{number}")
        end_in_calm(ranks)
    assert len({tuple(rank.windows) for rank in ranks}) == 1
    assert len({tuple(rank.complete) for rank in ranks}) == 1


def both_turn(ranks: list[Rank], condition: Any) -> None:
    """Goes on agreeing, without a step, until something holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        for rank in ranks:
            rank.agreement.turn()


def proposed(ranks: list[Rank], number: int) -> Start:
    """Waits for a proposal's steps; the first rank, which leads, has armed them then, and the others have not."""
    records = Records(ranks[0].agreement.directory or Path())
    while True:
        for rank in ranks:
            rank.agreement.turn()
            found = records.read(Start, number)
            if found is not None:
                assert rank is ranks[0]
                return found


def begun(ranks: list[Rank], **request: Any) -> int:
    """Has a window agreed on that the first rank has begun, and the second has not; returns its first step."""
    ranks[0].agreement.wish(WindowRequest(run_id="w", **request), "file")
    both_turn(ranks, lambda: all(rank.outcomes for rank in ranks))
    first = ranks[0].profiler.armed()[0].first
    assert first is not None
    ranks[0].work(first + 3)
    assert [rank.profiler.armed()[0].state for rank in ranks] == ["running", "queued"]
    return first


@pytest.mark.checklist("A34", "F5")
def test_a_window_that_one_rank_has_begun_is_extended_and_aborted(tmp_path: Path) -> None:
    """The other, which has yet to come to it, records the same."""
    with job(2) as ranks:
        first = begun(ranks, steps=500, granularity=4)
        ranks[1].agreement.wish(EndRequest(command="extend", steps=5), "socket", key="one")
        both_turn(ranks, lambda: all(rank.ends for rank in ranks))
        assert {str(rank.ends[0]) for rank in ranks} == {
            f"recording steps {first}-{first + 507} (extended to step {first + 507})"
        }
        ranks[0].agreement.wish(EndRequest(command="abort", reason="enough"), "socket", key="two")
        both_turn(ranks, lambda: all(len(rank.ends) == 2 for rank in ranks))
        last = ranks[0].ends[1].last
        assert last is not None and ranks[0].profiler.step_num <= last < first + 507
        end_in_calm(ranks)
    assert ranks[0].windows == ranks[1].windows == [("w", tuple(range(first, last + 1)))]
    assert ranks[0].complete == ranks[1].complete == [False]


def test_an_end_that_a_rank_has_behind_it_stays(tmp_path: Path) -> None:
    """A rank that comes to the end before all have agreed to another one decides that it stays."""
    with job(2) as ranks:
        first = begun(ranks, steps=50)
        ranks[0].agreement.wish(EndRequest(command="extend", steps=5), "file")
        proposed(ranks, 2)
        ranks[0].work(60)
        both_turn(ranks, lambda: all(rank.ends for rank in ranks))
        end_in_calm(ranks)
        assert {rank.ends[0].reason for rank in ranks} == {
            f"rank 0 came to step {first + 50} before all ranks had answered"
        }
        ranks[0].agreement.wish(EndRequest(command="extend", steps=5), "file", key="again")
        both_turn(ranks, lambda: all(len(rank.ends) == 2 for rank in ranks))
        assert {rank.ends[1].reason for rank in ranks} == {"no armed window runs"}
    assert ranks[0].windows == ranks[1].windows == [("w", tuple(range(first, first + 50)))]


def test_an_abort_that_a_rank_is_faster_than_comes_later(tmp_path: Path) -> None:
    """The step that was chosen is behind a rank before all have agreed to it: another one is."""
    with job(2) as ranks:
        begun(ranks, steps=1_000_000)
        ranks[0].agreement.wish(EndRequest(command="abort"), "file")
        start = proposed(ranks, 2)
        assert start.end is not None
        ranks[0].work(start.end.last + 5 - ranks[0].profiler.step_num)
        end_in_calm(ranks)
        assert ranks[0].windows == ranks[1].windows
        assert ranks[0].windows[0][1][-1] > start.end.last
        assert ranks[0].complete == ranks[1].complete == [False]


def test_the_same_command_of_a_file_is_one(tmp_path: Path) -> None:
    """All ranks read it, some of them late; after another window it is asked for anew."""
    with job(2) as ranks:
        first = begun(ranks, steps=50)
        for rank in ranks:
            rank.agreement.wish(EndRequest(command="extend", steps=5), "file")
            both_turn(ranks, lambda: all(rank.ends for rank in ranks))
        assert [len(rank.ends) for rank in ranks] == [1, 1]
        end_in_calm(ranks)
        ranks[0].agreement.wish(WindowRequest(steps=50, run_id="x"), "file")
        both_turn(ranks, lambda: all(len(rank.outcomes) == 2 for rank in ranks))
        second = ranks[0].outcomes[1].first
        assert second is not None
        ranks[0].work(second + 3 - ranks[0].profiler.step_num)
        for rank in ranks:
            rank.agreement.wish(EndRequest(command="extend", steps=5), "file")
        both_turn(ranks, lambda: all(len(rank.ends) == 2 for rank in ranks))
        end_in_calm(ranks)
    assert ranks[0].windows == ranks[1].windows
    assert [(steps[0], len(steps)) for _, steps in ranks[0].windows] == [(first, 55), (second, 55)]


def test_a_rank_that_comes_late_joins_what_was_decided(tmp_path: Path) -> None:
    """Of a window that lies ahead of it, and of its other end."""
    with TemporaryDirectory() as directory:
        ranks = [Rank(Path(directory), 0, 2, patience=0.01)]
        both_turn(ranks, lambda: ranks[0].agreement.directory)
        ranks[0].agreement.wish(WindowRequest(start_step=50, steps=10, run_id="w"), "file")
        both_turn(ranks, lambda: ranks[0].outcomes)
        ranks[0].work(52)
        ranks[0].agreement.wish(EndRequest(command="extend", steps=5), "file")
        both_turn(ranks, lambda: ranks[0].ends)
        ranks.append(Rank(Path(directory), 1, 2, patience=0.01))
        both_turn(ranks, lambda: ranks[1].profiler.armed() and ranks[1].profiler.armed()[0].last == 64)
        end_in_calm(ranks)
        for rank in ranks:
            rank.close()
    assert ranks[0].windows == ranks[1].windows == [("w", tuple(range(50, 65)))]


def test_a_rank_that_comes_back_records_nothing_twice(tmp_path: Path) -> None:
    """Its next profiler takes part in the run that the others have not left; what the one before had a part in is over."""
    ranks = [Rank(tmp_path, number, 2, patience=0.4) for number in range(2)]
    both_turn(ranks, lambda: all(rank.agreement.directory for rank in ranks))
    ranks[0].agreement.wish(WindowRequest(start_step=50, steps=2, run_id="before"), "file")
    settle(ranks, 1)
    ranks[1].close()
    pair = [ranks[0], Rank(tmp_path, 1, 2, patience=0.4)]
    both_turn(pair, lambda: pair[1].agreement.directory)
    assert pair[1].agreement.directory == pair[0].agreement.directory
    pair[0].agreement.wish(WindowRequest(steps=2, run_id="after"), "file")
    both_turn(pair, lambda: pair[1].outcomes)
    end_in_calm(pair)
    for rank in pair:
        rank.close()
    assert ranks[1].windows == [("before", (50, 51))] == pair[0].windows[:1]
    assert [run_id for run_id, _ in pair[1].windows] == ["after"] and pair[1].windows == pair[0].windows[1:]


def test_a_rank_that_comes_to_the_step_first_decides(tmp_path: Path) -> None:
    """Before everybody has answered: then nobody records these steps, and later ones are agreed on."""
    with job(3) as ranks:
        ranks[0].agreement.turn()
        for rank in ranks:
            rank.agreement.turn()
        ranks[0].agreement.wish(WindowRequest(steps=2, run_id="x"), "file")
        for _ in range(3):
            for rank in ranks:
                rank.agreement.turn()
        for _ in range(20):
            if ranks[0].profiler.armed():
                break
            ranks[0].agreement.turn()
        status = ranks[0].profiler.armed()[0]
        assert status.first is not None
        ranks[0].work(status.first + 10)  # nobody else may have answered by then
        settle(ranks, 1)
    assert len({tuple(rank.windows) for rank in ranks}) == 1
    ((run_id, steps),) = ranks[0].windows
    assert run_id == "x" and len(steps) == 2


def test_the_first_decision_counts(tmp_path: Path) -> None:
    """The gate publishes its own in one call, or follows the one that is there."""
    records = Records(tmp_path)
    gates: list[AgreedGate] = []
    for rank in range(3):
        own = records.private_copy(Decision("aborted", f"rank {rank} was first", again=True), 1, rank)
        gates.append(AgreedGate(records.path("decision", 1), own))
    assert {gate(5) for gate in gates} == {"rank 0 was first"}
    assert not records.write(Decision("committed"), 1)
    records.write(Decision("committed"), 2)
    own = records.private_copy(Decision("aborted", "late"), 2, 0)
    assert AgreedGate(records.path("decision", 2), own)(5) == ""
    gone = AgreedGate(tmp_path / "gone" / "decision", own)
    assert "cannot be used any more" in gone(5)


def test_one_rank_records_something_else(tmp_path: Path) -> None:
    """What one cannot record nobody does; with `queue` steps are found that all can."""
    with TemporaryDirectory() as directory:
        ranks = [Rank(Path(directory), number, 2) for number in range(2)]
        for rank in ranks:
            rank.agreement.turn()
        ranks[1].profiler.arm(WindowRequest(start_step=1, steps=3000, run_id="own"))
        ranks[0].agreement.wish(WindowRequest(steps=2, run_id="refused"), "file")
        while not all(rank.outcomes for rank in ranks):
            for rank in ranks:
                rank.agreement.turn()
                rank.work(1)
        assert "rank 1: " in ranks[0].outcomes[-1].reason and "overlap the window 'own'" in ranks[0].outcomes[-1].reason
        ranks[0].agreement.wish(WindowRequest(steps=2, run_id="queued", overlap="queue"), "file")
        fixed = WindowRequest(start_step=2990, steps=2, granularity=4, run_id="fixed", overlap="queue")
        ranks[0].agreement.wish(fixed, "file")
        settle(ranks, 3, 10)
        for rank in ranks:
            rank.close()
    own = [window for window in ranks[1].windows if window[0] != "own"]
    found = dict(own)  # in whichever order they were asked for: files may have the same time
    assert own == ranks[0].windows and found.keys() == {"queued", "fixed"}
    assert found["fixed"][0] % 4 == 0 and len(found["fixed"]) == 4


def test_a_directory_that_is_still_to_be_made_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rank 0 makes it: until then there is nothing to complain about, and wishes stay."""
    place = tmp_path / "new"
    rank = Rank(tmp_path, 0, 1, patience=60.0)
    waiting = Agreement(
        JobDirectory(place / "stepscope.json", "job"),
        rank.profiler,
        rank=0,
        world_size=1,
        outcome=lambda asked, trigger, armed: rank.outcomes.append(armed),
    )
    waiting.wish(WindowRequest(steps=1, run_id="early"), "file")
    for _ in range(3):
        waiting.turn()
    assert (waiting.trouble, rank.outcomes, caplog.records) == ("", [], [])
    place.mkdir()
    both_turn([rank], lambda: waiting.turn() and rank.outcomes)
    assert rank.outcomes[0].accepted
    waiting.close()
    rank.close()


@pytest.mark.checklist("A23")
def test_what_dead_processes_left_is_taken_over(tmp_path: Path) -> None:
    """Its records are gone with it: what a run before agreed on is not heeded by the next."""
    ended = Peer(pid=1, start_time=1, machine=Peer.here().machine, host="here")
    old = JobDirectory(tmp_path / "stepscope.json", "job")
    old.make()
    run = old.path / "run-old"
    run.mkdir()
    (run / "member-0.json").write_bytes(encode(Member(0, ended)))
    records = Records(run)
    request = WindowRequest(start_step=3, steps=2, run_id="old")
    records.write(Proposal(1, "key", request, "file"), 1)
    records.write(Start(request, (0,)), 1)
    records.write(Decision("committed"), 1)
    (old.path / "current.json").write_bytes(encode(Current("run-old", ended)))
    rank = Rank(tmp_path, 0, 1)
    rank.agreement.turn()
    rank.work(10)
    rank.agreement.turn()
    assert rank.agreement.directory is not None and rank.agreement.directory.parent == old.path
    rank.close()
    assert rank.windows == [] and not run.exists()


def test_a_rank_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """Two live processes with one number are two jobs with one name: the second takes no part, and says how to help."""
    first = Rank(tmp_path, 0, 2)
    other = tmp_path / "stepscope.json"
    first.agreement.turn()
    assert first.agreement.directory is not None
    member = first.agreement.directory / "member-1.json"
    parent = Peer(pid=1, start_time=int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]),
                  machine=Peer.here().machine, host="here")  # fmt: skip
    member.write_bytes(encode(Member(1, parent)))
    second = Rank(tmp_path, 1, 2)
    try:
        second.agreement.wish(WindowRequest(steps=1), "file")
        second.agreement.turn()
        assert "rank 1 is pid 1 on here in this job already; set STEPSCOPE_JOB" in second.outcomes[0].reason
        assert second.agreement.directory is None and not other.exists()
    finally:
        first.close()
        second.close()


@pytest.mark.checklist("F10")
def test_ranks_that_the_job_does_not_have(tmp_path: Path) -> None:
    """They are named, with those that there are; nobody records a part of what was asked for."""
    with job(2) as ranks:
        both_turn(ranks, lambda: all(rank.agreement.directory for rank in ranks))
        ranks[0].agreement.wish(WindowRequest(start_step="next", steps=2, ranks=(0, 9)), "file")
        both_turn(ranks, lambda: all(rank.outcomes for rank in ranks))
        assert all("rank 9: this job has ranks 0 to 1, so none records" in rank.outcomes[0].reason for rank in ranks)
        assert not any(rank.outcomes[0].accepted for rank in ranks)
        for rank in ranks:
            rank.work(50)
        assert [rank.windows for rank in ranks] == [[], []]


def test_one_of_two_profilers_of_a_process_ends(tmp_path: Path) -> None:
    """The other one goes on to take part as the same rank."""
    with job(2) as ranks:
        both_turn(ranks, lambda: all(rank.agreement.directory for rank in ranks))
        place = ranks[0].agreement.directory
        assert place is not None
        watched = place.parents[1] / "stepscope.json"
        second = Agreement(JobDirectory(watched, "job"), ranks[1].profiler, rank=1, world_size=2)
        second.turn()
        assert second.directory == place
        second.close()
        member = read_record(place / "member-1.json", Member)
        assert member is not None and not member.left
        ranks[0].agreement.wish(WindowRequest(steps=2, run_id="both"), "file")
        settle(ranks, 1)
        assert len(ranks[1].windows) == 1 and ranks[0].windows == ranks[1].windows
        ranks[1].agreement.close()
        member = read_record(place / "member-1.json", Member)
        assert member is not None and member.left


def test_the_schedule_of_a_rank_is_in_the_way(tmp_path: Path) -> None:
    """Each rank's own schedule is taken into account, the same as without an agreement."""
    own = schedule(wait=2, warmup=0, active=2, repeat=0)
    with job(2, own=own) as ranks:
        for rank in ranks:
            rank.agreement.turn()
        ranks[0].agreement.wish(WindowRequest(start_step=20_001, steps=1), "file")
        for _ in range(30):
            for rank in ranks:
                rank.agreement.turn()
        assert [rank.outcomes[0].accepted for rank in ranks] == [True, True]
        ranks[0].agreement.wish(WindowRequest(start_step=20_002, steps=1, run_id="own"), "file")
        for _ in range(30):
            for rank in ranks:
                rank.agreement.turn()
        assert all("overlap the schedule's window with step 20002" in rank.outcomes[1].reason for rank in ranks)


def test_rates_of_steps() -> None:
    """Over the last moments; nothing is known from one reading."""
    rate = StepRate()
    assert rate.per_second == 0
    rate.add(10.0, 0)
    assert rate.per_second == 0
    for tenth in range(1, 60):
        rate.add(10 + tenth / 10, tenth * 5)
    assert rate.per_second == pytest.approx(50)
    for tenth in range(60, 120):
        rate.add(10 + tenth / 10, 59 * 5)
    assert rate.per_second == 0
