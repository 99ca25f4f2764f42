"""Small files that are replaced in one step."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stepscope.runtime.files.file_reading import create_once
from stepscope.runtime.files.private_files import replace_private


def at_once(count: int, write: Callable[[int], object]) -> list[Exception]:
    """Calls `write` on several threads, 100 times each; returns what it raised."""
    raised: list[Exception] = []
    ready = threading.Barrier(count)

    def run(number: int) -> None:
        ready.wait()
        for _ in range(100):
            try:
                write(number)
            except Exception as error:
                raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_threads_replace_one_file(tmp_path: Path) -> None:
    """None disturbs another: the file has the content of one of them, and no temporary file stays."""
    path = tmp_path / "note.json"
    contents = [bytes([number]) * 5000 for number in range(8)]
    assert at_once(8, lambda number: replace_private(path, contents[number])) == []
    assert path.read_bytes() in contents
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_threads_create_one_file(tmp_path: Path) -> None:
    """One of them creates it."""
    path = tmp_path / "decision.json"
    created: list[bool] = []
    assert at_once(8, lambda number: created.append(create_once(path, bytes([number])))) == []
    assert created.count(True) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    """As where a directory has the name."""
    (tmp_path / "note.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_private(tmp_path / "note.json", b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["note.json"]
