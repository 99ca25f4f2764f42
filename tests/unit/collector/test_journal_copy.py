"""The segments of a stream are downloaded as one journal, while it grows and segments are evicted."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collector.downloads.downloads import READ_BYTES, journal_copy
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.segments import segment_paths
from tests.support.journals import batch_with_arguments, events_of, read_journal, write_journal


def journal(path: Path, count: int, *, segment_bytes: int, many: int = 1) -> Path:
    """A journal of so many batches, each of so many spans with arguments that cannot be compressed much."""
    noise = random.Random(0)
    batches = [
        batch_with_arguments(
            [f"n{at}"] * many, [{"x": noise.randbytes(64).hex()} for _ in range(many)], start_ns=100_000 * (at + 1)
        )
        for at in range(count)
    ]
    path.parent.mkdir(exist_ok=True)
    return write_journal(path, batches, segment_bytes=segment_bytes)


def copied(copy: Iterator[bytes]) -> bytes:
    """All that is left of a copy."""
    found = b""
    for piece in copy:
        assert len(piece) <= READ_BYTES
        found += piece
    return found


@given(st.integers(1, 12), st.integers(0, 30), st.integers(0, 4))
def test_a_copy_is_a_whole_journal(
    tmp_path_factory: pytest.TempPathFactory, count: int, cut: int, evicted: int
) -> None:
    """Of all segments that are there; a stream may be in the middle of a write."""
    place = tmp_path_factory.mktemp("copy")
    path = journal(place / "journal", count, segment_bytes=1)
    for one in segment_paths(path)[:-1][:evicted]:
        one.unlink()
    last = segment_paths(path)[-1]
    left = len(events_of(path))
    last.write_bytes(last.read_bytes() + fmt.encode_file_header(b"\xf5abc")[:cut])
    (place / "copied").write_bytes(copied(journal_copy(path)))
    assert events_of(place / "copied") == events_of(path) and len(events_of(place / "copied")) == left
    items, damage = read_journal(place / "copied")
    assert items and not damage.harm()


def test_a_segment_that_is_evicted_meanwhile_ends_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The copy has whole frames up to then, and a segment that is being read stays until its end; the log has a line."""
    path = journal(tmp_path / "journal", 120, segment_bytes=3 << 19, many=500)
    files = segment_paths(path)
    copy = journal_copy(path)
    found = next(copy)
    wanted = files[0].read_bytes() + files[1].read_bytes()[fmt.MAX_FILE_HEADER :]
    files[0].unlink()
    while len(found) < len(wanted) - READ_BYTES:
        found += next(copy)
    files[2].unlink()
    with caplog.at_level(logging.WARNING, "stepscope.collector"):
        found += copied(copy)
    assert found == wanted and str(files[2]) in caplog.text
