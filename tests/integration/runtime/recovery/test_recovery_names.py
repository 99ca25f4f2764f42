"""Names and numbers in what is recovered that were made to break the one who recovers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.runtime.errors import FormatError
from stepscope.runtime.recovery.flight_files import name_unfinished_windows
from stepscope.runtime.recovery.journals import Journals
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.session.job import rank_from_environment
from stepscope.runtime.session.note import SessionNote, read_note
from tests.support.messages import refused


def test_digits_that_are_no_ascii(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`str.isdigit` takes a superscript for one, `int` does not."""
    (tmp_path / "windows").mkdir()
    (tmp_path / "windows" / "²²²²²²x.journal").touch()
    (tmp_path / "windows" / "000007-x.journal").touch()
    assert name_unfinished_windows(tmp_path, SessionNote(directory="/nowhere", pid=1, start_time=1), set())[0] == 8
    monkeypatch.setenv("RANK", "²")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_from_environment()[1] == 4


@pytest.mark.parametrize("at", [-1, 1 << 62, 1 << 80])
def test_a_time_that_no_calendar_has(tmp_path: Path, at: int) -> None:
    """Such a note is not believed."""
    swept = {"at_ns": at, "events": 1, "why": "x"}
    note = {"directory": "/nowhere", "pid": 1, "start_time": 1, "swept": swept}
    (tmp_path / "session").write_text(json.dumps(note))
    problems: list[str] = []
    assert read_note(tmp_path / "session", problems) is None and problems
    with pytest.raises(FormatError):
        recover(tmp_path)


def test_a_file_of_somebody_else_whose_name_begins_like_a_journals(tmp_path: Path) -> None:
    """It is no problem of the run."""
    with sc.trace(output_dir=tmp_path), sc.span("x"):
        pass
    (tmp_path / "journal.notes").write_text("mine")
    found = Journals.of(tmp_path)
    assert [path.name for path, _ in found.found] == ["journal"] and not found.unusable
    (tmp_path / "journal-2").write_text("mine")
    assert len(Journals.of(tmp_path).unusable) == 1


def test_a_journal_that_is_a_link(tmp_path: Path) -> None:
    """It may lead out of the run's directory, so it is not followed unless it is named itself."""
    with sc.trace(output_dir=tmp_path / "run"), sc.span("x"):
        pass
    place = tmp_path / "place"
    place.mkdir()
    (place / "journal").symlink_to(tmp_path / "run" / "journal")
    found = Journals.of(place)
    assert not found.found and "symbolic link" in found.unusable[0]
    with refused(FormatError, tmp_path, "journal"):
        recover(place)
