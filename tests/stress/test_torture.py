"""Every way of breaking the runtime, in short; `make torture` does it at length. And the runner, by faults of its own."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from benchmarks.harness.document import markers
from tests.stress.torture import table
from tests.stress.torture.command import main
from tests.stress.torture.diary import Diary
from tests.stress.torture.fault import Fault, description, label, load
from tests.stress.torture.faults.killed import started
from tests.stress.torture.journal_check import Found, check_accounts
from tests.stress.torture.processes import command
from tests.stress.torture.run import Tally, torture
from tests.stress.torture.victim import MAIN
from tests.stress.torture.worker import Worker
from tests.support.messages import refused

CATALOG = load()
SPECIMENS = "tests.stress.torture.specimens"


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, Worker]]:
    """A worker for each family, made when it is needed."""
    made: dict[str, Worker] = {}
    yield made
    for worker in made.values():
        worker.close()


@pytest.mark.parametrize("fault", [fault for fault in CATALOG.faults if fault.short], ids=label)
def test_fault(fault: Fault, workers: dict[str, Worker]) -> None:
    """Nothing is lost without a count, and everything is as promised."""
    if fault.family not in workers:
        workers[fault.family] = Worker()
    worker = workers[fault.family]
    tally = Tally(fault, fault.short)
    while not tally.done:
        tally.add(tally.attempts, worker.try_fault(fault, tally.attempts), 0.0)
    if tally.missing:
        pytest.skip(tally.missing)
    assert tally.good, table.remarks([tally])


def test_every_family_can_be_imported() -> None:
    """A module that fails would go missing from the table."""
    assert not CATALOG.broken
    assert CATALOG.faults


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where specimens write down what they started."""
    monkeypatch.setenv("TORTURE_NOTES", str(tmp_path))
    return tmp_path


def _specimens(*names: str) -> list[Tally]:
    faults = [fault for fault in load(SPECIMENS).faults if fault.name in names]
    return torture(faults, short=True, package=SPECIMENS, limit=5.0)


def test_a_thread_that_was_blocked_is_a_problem() -> None:
    """Nothing blocked is promised as well."""
    (tally,) = _specimens("holding")
    assert not tally.good and "blocked for 2.00 s" in tally.problems[0]


def test_counts_are_added_and_the_longest_times_stay() -> None:
    """The row of a fault is the sum of its trials; each has an empty directory and a number of its own."""
    (tally,) = _specimens("good")
    assert tally.good and tally.done
    outcome = tally.outcome
    assert (outcome.tried, outcome.produced, outcome.exported, outcome.dropped) == (2, 200, 181, 19)
    assert (outcome.blocked_ns, outcome.shutdown_ns) == (1, 7)


def test_a_loss_is_not_hidden_by_something_written_twice() -> None:
    """One event lost in one trial and one too many in the next add up to nothing, and are both reported."""
    (tally,) = _specimens("losing")
    assert tally.lost == 1 and not tally.good
    assert tally.problems == [
        "trial 0: 1 events lost without a count",
        "trial 1: 1 events written twice, or counted as dropped and written",
    ]


def test_an_exception_of_a_trial_is_a_problem() -> None:
    """The message and its place are reported."""
    (tally,) = _specimens("raising")
    assert tally.problems[0].startswith("trial 0: RuntimeError: mine (raising, line ")


def test_a_hanging_trial_is_ended_with_all_that_it_started(notes: Path) -> None:
    """The run goes on with the next fault; the one that hangs is not tried again."""
    hanging, raising = _specimens("hanging", "raising")[::-1]
    assert hanging.fault.name == "hanging"
    assert hanging.problems == ["trial 0: hung: no answer within 5 s"]
    assert "misbehaving/hanging: not tried again after it hung" in table.remarks([hanging])
    assert not any(command(int(pid)) for pid in (notes / "hanging").read_text().split())
    assert raising.attempts == 2


def test_a_trial_that_ends_its_process_is_a_problem() -> None:
    """With the signal and its last words; the next trial has a new process."""
    (tally,) = _specimens("crashing")
    assert tally.problems == [f"trial {number}: its process ended with -11: last words" for number in (0, 1)]


def test_a_process_left_running_is_a_problem_and_is_ended() -> None:
    """Orphans are found, although nobody waits for them."""
    (tally,) = _specimens("leaving")
    assert len(tally.problems) == 2 and all("left running" in problem for problem in tally.problems)
    assert tally.outcome.exported == 2


def test_faults_that_cannot_be_tried_here_are_reported() -> None:
    """It is neither a problem nor a trial."""
    (tally,) = _specimens("absent")
    assert tally.good and tally.outcome.tried == 0
    assert table.remarks([tally]) == ["misbehaving/absent: not tried, a part is missing. Get it."]


def test_every_fault_is_tried_and_missing_trials_are_reported() -> None:
    """Every fault is tried once, or as often as it insists on, even if there is no time at all."""
    faults = [fault for fault in load(SPECIMENS).faults if fault.name in ("good", "leaving")]
    tallies = torture(faults, package=SPECIMENS, seconds=0.0)
    assert [tally.attempts for tally in tallies] == [1, 1]
    (insisted,) = torture([msgspec.structs.replace(faults[0], least=3)], package=SPECIMENS, seconds=0.0)
    assert insisted.attempts == 3
    assert table.remarks(tallies)[0] == "misbehaving/good: 1 of 4 trials, the time was up"


def test_lanes_try_several_faults_at_a_time(notes: Path) -> None:
    """Each as often as it would be otherwise, with the same numbers; one that fails or hangs is reported as ever."""
    faults = [fault for fault in load(SPECIMENS).faults if fault.name in ("good", "raising", "crashing", "leaving")]
    faults[1] = msgspec.structs.replace(faults[1], alone=True)
    alone = {tally.fault.name: tally for tally in torture(faults, short=True, package=SPECIMENS)}
    parallel = {tally.fault.name: tally for tally in torture(faults, short=True, package=SPECIMENS, lanes=2)}
    assert alone.keys() == parallel.keys()
    for name, tally in parallel.items():
        assert (tally.attempts, len(tally.problems)) == (alone[name].attempts, len(alone[name].problems))
    assert parallel["good"].outcome == alone["good"].outcome


def test_the_command_reports_table_problems_and_seed(
    tmp_path: Path, notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status says that something was wrong, the seed how to see it again; the page has the machine and no path."""
    page, rows = tmp_path / "page.md", tmp_path / "rows.json"
    page.write_text("before\n{}\nold\n{}\nafter\n".format(*markers("torture")))
    arguments = ["--package", SPECIMENS, "--only", "misbehaving/good", "--only", "misbehaving/losing", "--seed", "2"]
    assert main([*arguments, "--short", "--markdown", str(page), "--json", str(rows)]) == 1
    printed = capsys.readouterr().out
    assert "misbehaving/losing, trial 2: 1 events lost" in printed and "--seed 2" in printed
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| misbehaving | good | 2 | 200 |" in text and "Loses nothing" in text
    assert os.uname().nodename not in text and str(Path.home()) not in text
    assert msgspec.json.decode(rows.read_bytes())["faults"][1]["lost"] == 1
    assert main([*arguments[:4], "--seed", "0", "--short"]) == 0


def test_an_unknown_family_is_refused_by_name() -> None:
    """The error of a misspelt family names all families."""
    with refused(ValueError, "spam", "misbehaving"):
        load(SPECIMENS).chosen(["spam"])


def test_every_fault_has_a_description() -> None:
    """The page is made of it."""
    assert not [label(fault) for fault in CATALOG.faults if not description(fault)]


def test_names_of_faults_are_unique() -> None:
    """They are chosen by them."""
    labels = [label(fault) for fault in CATALOG.faults]
    assert len(labels) == len(set(labels))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a victim has traced until it was terminated."""
    place = tmp_path_factory.mktemp("victim")
    with started(place, 2, "terminate") as process:
        assert process.wait(60) == -signal.SIGTERM
    return place


def test_the_accounts_of_a_victim_that_closed_are_exact(ended: Path) -> None:
    """All threads went on until the end and after it."""
    outcome = check_accounts(ended, ended / "run" / "journal", closed=True)
    assert not outcome.problems and outcome.lost == 0
    assert outcome.blocked_ns > 0


@pytest.mark.parametrize(("lane", "before"), [(0, -1000), (2, -1000), (MAIN - 1, -1000), (2, 1000)])
def test_a_span_that_the_journal_lacks_is_lost_if_it_ended_before_the_end(
    ended: Path, tmp_path: Path, lane: int, before: int
) -> None:
    """In any lane, also if it is the last that the diary knows of; what began after the last window may be missing."""
    shutil.copy(ended / "diary", tmp_path)
    diary = Diary(tmp_path / "diary")
    end = Found(ended / "run" / "journal").end_ns
    entered, left = diary.lane(lane)
    inside = int(((left > 0) & (left < end)).sum())
    diary.claim(lane, len(entered), end + before, end + before)
    outcome = check_accounts(tmp_path, ended / "run" / "journal", closed=True)
    assert outcome.lost == int(before < 0)
    assert inside or lane == MAIN - 1
