"""Ranks agree, in whatever order they and their files come to run: all of them record the same steps, or none does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepscope
from stepscope import Armed, Options, Profiler, WindowRequest, schedule
from stepscope.runtime.control.agreed_gate import AgreedGate
from stepscope.runtime.control.agreement import Agreement
from stepscope.runtime.control.job_directory import Current, JobDirectory, Member
from stepscope.runtime.control.peer import Peer
from stepscope.runtime.control.proposal import Decision, Proposal, Records, Start
from stepscope.runtime.control.rate import StepRate
from stepscope.runtime.schedule import never

encode = msgspec.json.encode
QUICK = Options(journal=False, drain_interval=0.01)


class Rank:
    """One rank: its profiler and its part in the agreement."""

    def __init__(self, directory: Path, number: int, ranks: int, own: Any = never, patience: float = 0.05) -> None:
        self.number = number
        self.outcomes: list[Armed] = []
        self.profiler: Profiler = stepscope.trace(
            schedule=own, output_dir=directory / "run", rank=number, options=QUICK, on_trace_ready=self._ready
        )
        self.windows: list[tuple[str, tuple[int, ...]]] = []
        self.agreement = Agreement(
            JobDirectory(directory / "stepscope.json", "job"),
            self.profiler,
            rank=number,
            world_size=ranks,
            patience=patience,
            outcome=lambda request, trigger, armed: self.outcomes.append(armed),
        )
        self.profiler.start()

    def _ready(self, window: stepscope.Window) -> None:
        armed = window.metadata.get("armed", {})
        self.windows.append((armed.get("run_id", "-"), tuple(step.number for step in window.steps)))

    def work(self, steps: int) -> None:
        """Goes on with its loop."""
        for _ in range(steps):
            with stepscope.span("work"):
                pass
            self.profiler.step()

    def close(self) -> None:
        """Ends in order."""
        self.agreement.close()
        self.profiler.close()
        self.profiler.raise_errors()


@contextlib.contextmanager
def job(ranks: int, **more: Any) -> Generator[list[Rank]]:
    """Ranks that share a directory, on one thread: what happens when is what the test says."""
    with TemporaryDirectory() as directory:
        made = [Rank(Path(directory), number, ranks, **more) for number in range(ranks)]
        try:
            yield made
        finally:
            for rank in made:
                rank.close()


def settle(ranks: list[Rank], requests: int, steps: int = 3) -> None:
    """Everybody goes on, one as fast as the other, until all requests are answered on all ranks and nothing waits."""
    deadline = time.monotonic() + 90
    open_states = ("queued", "running")
    while any(
        len(rank.outcomes) < requests or any(status.state in open_states for status in rank.profiler.armed())
        for rank in ranks
    ):
        assert time.monotonic() < deadline, [rank.outcomes for rank in ranks]
        for rank in ranks:
            rank.agreement.turn()
            rank.work(steps)
    for rank in ranks:
        assert rank.profiler.flush(30)


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
            rank = ranks[deed[1]]
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
        settle(ranks, 2, 10)
        for rank in ranks:
            rank.close()
    own = [window for window in ranks[1].windows if window[0] != "own"]
    assert own == ranks[0].windows and [run_id for run_id, _ in own] == ["queued"]


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
