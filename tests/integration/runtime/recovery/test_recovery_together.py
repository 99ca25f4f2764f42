"""Profilers of one process share its session: recovering one of them leaves the others what they need."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stepscope.cli.main import main
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.session.note import notes_in, replace_note
from tests.support.crashes import Crash, names

BOTH = """
import pathlib, time
profiler.start()
other = sc.trace(output_dir=OTHER, name="other")
other.start()
def begun():
    journals = {path for place in (sys.argv[1], OTHER) for path in pathlib.Path(place).glob("journal*")}
    return sum(path.stat().st_size > 100 for path in journals)
while begun() < 2:
    time.sleep(0.01)
for number in range(100):
    with sc.span("both"):
        pass
die()
"""
"""Both journals have begun; nothing is drained: all events are in the session."""


def killed(tmp_path: Path, other: Path) -> Crash:
    """A process with two profilers that was killed; the one writes to `run`, and the other one elsewhere."""
    program = BOTH.replace("OTHER", repr(str(other)))
    return Crash(tmp_path).of(program, drain_interval=1000.0)


@pytest.mark.parametrize("order", [("run", "other"), ("other", "run")])
def test_runs_in_two_directories(order: tuple[str, str], tmp_path: Path) -> None:
    """Whichever comes first, the session goes with the last, and the notes of both with it."""
    crash = killed(tmp_path, tmp_path / "other")
    session = crash.directory()
    first = recover(tmp_path / order[0], remove_session=True)
    assert any("not removed" in said and str(tmp_path / order[1]) in said for said in first.notes)
    assert session.is_dir()
    last = recover(tmp_path / order[1], remove_session=True)
    assert not last.notes and not last.missing and not session.exists()
    assert names(first.journal)["both"] == names(last.journal)["both"] == 100
    assert not (tmp_path / "run" / "session").exists() and not (tmp_path / "other" / "session").exists()


def test_a_journal_that_was_created_and_not_written(tmp_path: Path) -> None:
    """A run that is killed before its note names the journal leaves an empty file, which needs no recovery."""
    killed(tmp_path, tmp_path / "other")
    other = tmp_path / "other"
    for journal in other.glob("journal*"):
        journal.unlink()
    (other / "journal").touch()
    ((path, note),) = notes_in(other, [])
    replace_note(path, msgspec.structs.replace(note, outputs=()))
    result = recover(other)
    assert not result.notes and not result.missing
    assert names(result.journal)["both"] == 100


def test_what_was_recovered_before_there_was_more_is_needed_still(tmp_path: Path) -> None:
    """A journal that was completed before the session was written to is not all that there is."""
    crash = killed(tmp_path, tmp_path / "other")
    recover(tmp_path / "run")
    ((path, note),) = notes_in(tmp_path / "run", [])
    replace_note(path, msgspec.structs.replace(note, recovered_ns=1))
    last = recover(tmp_path / "other", remove_session=True)
    assert any("not removed" in said for said in last.notes) and crash.directory().is_dir()


def test_runs_in_one_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command recovers both, and then removes the session."""
    crash = killed(tmp_path, tmp_path / "run")
    session = crash.directory()
    assert main(["recover", "--remove-session", str(crash.run)]) == 0
    said = capsys.readouterr().out
    assert "not removed" not in said and "cannot be used" not in said
    assert not session.exists() and not list(crash.run.glob("session*"))
    recovered = sorted(crash.run.glob("journal*"))
    assert [names(path)["both"] for path in recovered] == [100, 100]
