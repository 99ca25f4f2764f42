"""MindSpore's door where the journal has lost a part: the analysis says so, and keeps the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.mindspore import Profiler, schedule
from tests.support import mindspore_output as output
from tests.support.messages import said


def half(data: bytes) -> bytes:
    """Cut by a crash of the file system."""
    return data[: len(data) // 2]


def damaged(data: bytes) -> bytes:
    """Some of its middle was overwritten."""
    middle = len(data) // 2
    return data[:middle] + bytes(2_000) + data[middle + 2_000 :]


def work(_: int) -> None:
    for number in range(2_000):
        with sc.span(f"operator {number % 7}", text="x" * 40):
            pass


@pytest.mark.parametrize("spoil", [half, damaged])
def test_an_incomplete_journal_is_not_deleted(
    spoil: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the only copy of what it has."""
    plan = schedule(wait=0, active=1, warmup=0, repeat=2, skip_first=0)
    profiler = Profiler(output_path=tmp_path, schedule=plan, start_profile=False, data_simplification=True)
    profiler.start()
    output.loop(3, work, lambda _: profiler.step())
    profiler.stop()
    (journal,) = tmp_path.rglob("journal")
    journal.write_bytes(spoil(journal.read_bytes()))
    analysis = profiler.analyse()
    assert analysis is not None and not analysis.complete
    assert "INCOMPLETE" in str(analysis) and said(caplog.records, "journal", snapshot=False)
    assert journal.exists()
