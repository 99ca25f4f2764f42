"""What is not confirmed is kept: in memory, then on disk, once and in order, within its bounds, whatever happens between."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stepscope.exporters.collector import delivery
from stepscope.exporters.collector.backlog import Backlog
from stepscope.exporters.collector.piece import OVERHEAD, Piece
from stepscope.exporters.collector.spool import DIRECTORY, Spool, StreamNote
from stepscope.exporters.specimens import run_in
from stepscope.runtime.errors import OutputError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import run_record
from tests.support.messages import refused
from tests.support.streams import STREAM, SYNC, frames

MEMORY, DISK = 4 << 10, 64 << 10


def note(pid: int = 0) -> StreamNote:
    """Of a process that has ended."""
    return StreamNote(stream=STREAM, sync=SYNC, run=run_record(run_in(Path("/")), 0), pid=pid, start_time=0)


def piece(first: int, count: int, size: int, window: int = 0) -> Piece:
    """Frames, each of which holds one event, or so it is said."""
    data = frames(first, count, size)
    return Piece(first, count, len(data), Counter({window: count}), data)


class Keeping(RuleBasedStateMachine):
    """A backlog with a spool beside a list of the frames that it must still have, and a collector that is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.spool = Spool(self.place, DISK, note())
        self.backlog = Backlog(MEMORY, self.spool)
        self.next = self.confirmed = self.sent = self.exported = 0
        self.sizes: dict[int, int] = {}

    @rule(count=st.integers(1, 5), size=st.sampled_from([0, 80, 800]), window=st.integers(0, 3))
    def put(self, count: int, size: int, window: int) -> None:
        """Frames are made, if there is room."""
        if self.backlog.room < count * (size + 24) + OVERHEAD + 20:
            return
        for number in range(self.next, self.next + count):
            self.sizes[number] = size
        self.backlog.put(piece(self.next, count, size, window))
        self.next += count

    @rule(most=st.integers(1, 5000))
    def send(self, most: int) -> None:
        """The next pieces are sent: they are what follows, byte by byte."""
        for taken in self.backlog.take(most):
            assert taken.first == self.sent or taken.first <= self.confirmed <= taken.next
            expected = b"".join(frames(number, 1, self.sizes[number]) for number in range(taken.first, taken.next))
            assert taken.read() == expected
            self.sent = taken.next

    @precondition(lambda self: self.sent > self.confirmed)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        """The collector has written more of what was sent."""
        self.confirmed = data.draw(st.integers(self.confirmed, self.sent))
        self.backlog.confirm(self.confirmed)

    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        """Another connection goes on with what the collector lacks; a confirmation may have been lost."""
        self.confirmed = data.draw(st.integers(self.confirmed, max(self.sent, self.confirmed)))
        self.backlog.resume(self.confirmed)
        self.sent = self.backlog.oldest

    @rule()
    def spill(self) -> None:
        """Everything goes to disk."""
        self.backlog.spill()

    @invariant()
    def is_bounded(self) -> None:
        """Neither memory nor disk takes more than it may."""
        assert self.backlog.memory <= MEMORY
        assert sum(path.stat().st_size for path in self.spool.directory.glob("*.journal")) <= DISK
        assert not self.backlog.memory or not self.backlog.on_disk or self.backlog.error
        assert self.backlog.oldest <= self.confirmed or self.backlog.oldest == self.next

    @invariant()
    def accounts_agree(self) -> None:
        """Each event that was put is told of once it is confirmed, and only then."""
        settled = self.backlog.outcomes()
        assert not any(one.dropped for one in settled)
        self.exported += sum(one.exported for one in settled)
        assert self.exported == self.backlog.oldest

    def teardown(self) -> None:
        """What is left is on disk, is all that was not confirmed, and can be delivered from there."""
        self.backlog.spill()
        left = self.backlog.leave("undelivered")
        self.spool.close()
        settled = self.backlog.outcomes()
        kept = sum(one.kept for one in settled)
        assert kept == sum(one.exported for one in settled)
        lost = sum(sum(one.dropped.values()) for one in settled)
        assert (left["kept"], left["lost"]) == (kept, lost)
        assert self.exported + kept + lost == self.next
        found: dict[int, bytes] = {}
        if kept:
            for parcel in delivery.parcels(self.place):
                assert parcel.hello.stream == STREAM
                for one in parcel.pieces:
                    found[one.first] = one.read()
                parcel.close()
        data = b"".join(found[first] for first in sorted(found))
        numbers = [number for _, _, number, _ in fmt.frames_in(data, SYNC)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else not kept
        if kept:
            assert numbers[0] <= max(self.confirmed, self.exported) and numbers[-1] == self.next - 1 - lost
        else:
            assert not (self.place / DIRECTORY).exists()
        shutil.rmtree(self.place)


TestKeeping = Keeping.TestCase
TestKeeping.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_full_disk_leaves_memory(small_disk: Path) -> None:
    """What cannot be written waits in memory, the file holds no half of it, and it goes to disk when there is room."""
    spool = Spool(small_disk, 64 << 20, note())
    backlog = Backlog(1 << 20, spool)
    (small_disk / "ballast").write_bytes(b"x" * (900 << 10))
    for first in range(0, 80, 10):
        backlog.put(piece(first, 10, 10_000))
    backlog.spill()
    assert "No space left" in backlog.error
    assert 0 < backlog.memory <= 1 << 20
    assert backlog.room <= 1 << 20  # the spool does not count
    (small_disk / "ballast").unlink()
    backlog.spill()
    assert (backlog.memory, backlog.error) == (0, "")
    assert b"".join(one.read() for one in backlog.take(1 << 30)) == frames(0, 80, 10_000)
    assert backlog.leave("undelivered") == {"kept": 80}
    spool.close()


def test_segments_go_when_they_are_confirmed(tmp_path: Path) -> None:
    """A stream whose collector is always a little behind does not fill the disk with what is done."""
    spool = Spool(tmp_path, 1 << 20, note())
    backlog = Backlog(4 << 10, spool)
    for first in range(0, 4000, 10):
        backlog.put(piece(first, 10, 1000))
        backlog.take(1 << 30)
        backlog.confirm(first - 50)
        assert not backlog.error
        assert len(list(spool.directory.glob("*.journal"))) <= 3
    backlog.confirm(4000)
    spool.close()
    assert not list(tmp_path.iterdir())


def test_many_small_pieces_become_few(tmp_path: Path) -> None:
    """On disk, that is: a long absence of the collector does not cost memory for each frame."""
    backlog = Backlog(1 << 16, Spool(tmp_path, 64 << 20, note()))
    for first in range(20_000):
        backlog.put(piece(first, 1, 40))
    assert len(backlog) < 300
    assert b"".join(one.read() for one in backlog.take(1 << 30)) == frames(0, 20_000)


def test_files_are_private_and_belong_to_one_stream(tmp_path: Path) -> None:
    """A directory that is there already is somebody else's."""
    spool = Spool(tmp_path / "run", DISK, note())
    spool.append(piece(0, 1, 40))
    for path in (tmp_path / "run").rglob("*"):
        assert path.stat().st_mode & 0o77 == 0
    with refused(OutputError, "unsent"):
        Spool(tmp_path / "run", DISK, note())
    spool.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / DIRECTORY).symlink_to(tmp_path)
    with refused(OutputError, "other"):
        Spool(tmp_path / "other", DISK, note())


def test_a_segment_has_no_gap(tmp_path: Path) -> None:
    """Frames that were confirmed from memory, after others had been on disk, are missing nowhere."""
    spool = Spool(tmp_path, DISK, note())
    backlog = Backlog(MEMORY, spool)
    for first, spilled in ((0, True), (2, False), (4, True)):
        backlog.put(piece(first, 2, 40))
        if spilled:
            backlog.spill()
        backlog.take(1 << 20)
        backlog.confirm(min(first + 2, 4))
    assert backlog.leave("undelivered") == {"kept": 2}
    spool.close()
    (parcel,) = delivery.parcels(tmp_path)
    assert [(one.first, one.read()) for one in parcel.pieces] == [(4, frames(4, 2))]
    parcel.close()
