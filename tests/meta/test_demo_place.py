"""Where a demonstration puts what it makes, and what stays of that."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tools.demo_place import place_for


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_went_well_leaves_nothing(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says how to have it."""
    with place_for(None, "cluster") as place:
        assert place.path.parent == temporary and place.path.name.startswith("cluster-")
        (place.path / "file").touch()
        place.succeeded = True
    assert not list(temporary.iterdir())
    assert "removed; --dir DIR" in capsys.readouterr().out


@pytest.mark.parametrize("raises", [True, False])
def test_what_failed_stays(raises: bool, temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a line that says where it is."""
    try:
        with place_for(None, "cluster"):
            if raises:
                raise KeyError
    except KeyError:
        assert raises
    (left,) = temporary.iterdir()
    assert f"what it made is in {left}" in capsys.readouterr().out


def test_what_was_asked_for_stays(temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever becomes of it; the directory is made."""
    with place_for(temporary / "a" / "b", "cluster") as place:
        assert place.stays
        place.succeeded = True
    assert (temporary / "a" / "b").is_dir()
    assert f"what it made is in {temporary / 'a' / 'b'}" in capsys.readouterr().out
