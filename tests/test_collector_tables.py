"""The table of a window, which a process of its own reads, within bounds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stepscope.collector.bounded import ProcessBounds
from stepscope.collector.problems import ProblemError
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.store import Store
from stepscope.collector.tables import Tables
from tests.streams import STREAM
from tests.windowed import END, run_of, stored, windows


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A stream of two windows."""
    return stored(
        Store(CollectorSettings(directory=tmp_path / "c")), STREAM, [run_of(), *windows(range(2), 1 << 16), END]
    )


async def test_it_is_kept_once_it_cannot_change(journal: Path) -> None:
    tables = Tables()
    found = await tables.get(journal, 0, closed=True)
    assert json.loads(found)["left_out"] == 0
    os.unlink(journal)
    assert await tables.get(journal, 0, closed=True) == found
    with pytest.raises(ProblemError, match="could not be read"):
        await tables.get(journal, 1, closed=True)


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (ProcessBounds(seconds=0.001), "may take 0.001 seconds at most"),
        (ProcessBounds(memory_bytes=1 << 20), "could not be read: ."),
    ],
    ids=["time", "memory"],
)
async def test_it_takes_no_more_than_it_may(journal: Path, bounds: ProcessBounds, why: str) -> None:
    with pytest.raises(ProblemError, match=why):
        await Tables(bounds).get(journal, 0, closed=False)
