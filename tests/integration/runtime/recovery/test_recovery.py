"""Events of a killed process are recovered: none lost, none twice, none invented."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.runtime.errors import ProfilerStateError
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Kind
from stepscope.runtime.journal.frame_reader import Damage
from stepscope.runtime.recovery.recover import Recovery, recover
from stepscope.runtime.session.file_lock import lock
from tests.support.journals import described
from tests.support.killed_programs import BODY, Crash, batches, names, open_names, windows
from tests.support.messages import refused
from tests.support.nesting import chrome_problems


@pytest.mark.parametrize(
    ("between", "drain_interval", "interval_ns"),
    [
        ("pass", 1000.0, 60_000_000_000),
        ("pass", 0.001, -1),
        ("number % 10 == 5 and profiler.flush()", 1000.0, -1),
        ("number % 10 == 5 and profiler.flush()", 0.001, 60_000_000_000),
    ],
    ids=["in rings", "indexed", "flushed and indexed", "flushed and drained"],
)
def test_each_event_is_recovered_once(crash: Crash, between: str, drain_interval: float, interval_ns: int) -> None:
    """Whether events were drained, journaled, indexed, or neither: each is recovered once, with its arguments and step. Open spans
    have their place in the tree, and their self time is what their children leave."""
    program = (
        f"import stepscope.runtime.journal.index as index\nindex.INTERVAL_NS, index.MIN_BYTES = {interval_ns}, 0\n"
    )
    program += textwrap.dedent(BODY.format(between=between))
    recovery = crash.execute(program, drain_interval=drain_interval).recover()
    steps = {f"ProfilerStep#{number}": 1 for number in range(41)}
    assert names(recovery.journal) == {"forward": 40, "inner": 40, "outer": 1, "done": 1, "innermost": 1, **steps}
    assert names(recovery.journal, Kind.INSTANT) == {"instant": 40}
    assert names(recovery.journal, Kind.COUNTER) == {"counter": 40}
    assert open_names(recovery.journal) == ["outer", "innermost", "ProfilerStep#40"]
    rows = [row for batch in batches(recovery.journal) for row in described(batch)]
    forward = sorted(row[10] for row in rows if row[2] == "forward")
    assert forward == list(range(40))
    arguments = {row[4] for row in rows if row[2] == "forward"}
    assert repr({"number": 39, "text": "ü" * 39}) in arguments
    assert len(arguments) == 40
    assert (recovery.windows, recovery.unfinished, recovery.open_spans, recovery.dropped) == (1, 1, 2, 0)
    (window,) = windows(recovery.journal)
    assert not window.complete
    assert "the process ended inside this window" in window.diagnostics[0]
    assert [step.number for step in window.steps] == list(range(41))
    assert window.metadata == ({"model": "m"} if recovery.events else {})
    assert window.ledger.sources["recorder"].balanced()
    spans = {
        strings.name_of(event): event
        for batch in batches(recovery.journal)
        for event in batch.events
        if event["kind"] == Kind.SPAN
    }
    outer, done, innermost = spans["outer"], spans["done"], spans["innermost"]
    assert done["parent"] == innermost["parent"] == outer["id"]
    assert outer["self_dur"] == outer["dur"] - done["dur"] - innermost["dur"]


def test_a_damaged_header_is_made_whole(killed: Crash) -> None:
    """Recovery reports it; later readers, and a second recovery, find a whole journal."""
    with open(killed.run / "journal", "r+b") as file:
        file.write(bytes(20))
    recovery = killed.recover()
    assert recovery.damage.header
    assert names(recovery.journal)["forward"] == 40
    assert not killed.recover().damage


def test_threads_and_tasks_are_recovered(crash: Crash) -> None:
    """Events of every thread and task come back on tracks of their own."""
    recovery = crash.execute(
        """
        profiler.start()
        def work(name):
            for _ in range(100):
                with sc.span(name):
                    pass
        async def task(name):
            with sc.span(name):
                await asyncio.sleep(0)
        async def tasks():
            await asyncio.gather(*(task(f"task {number}") for number in range(5)))
        threads = [threading.Thread(target=work, args=(f"thread {number}",), name=f"T{number}") for number in range(5)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        asyncio.run(tasks())
        die()
        """
    ).recover()
    found = names(recovery.journal)
    assert all(found[f"thread {number}"] == 100 and found[f"task {number}"] == 1 for number in range(5))
    where = {
        strings.name_of(event): tracks.get(int(event["track"]))
        for batch in batches(recovery.journal)
        for event in batch.events
    }
    thread, task = where["thread 3"], where["task 3"]
    assert thread is not None
    assert task is not None
    assert (thread.kind, thread.name) == (tracks.TrackKind.THREAD, "T3")
    assert task.kind == tracks.TrackKind.TASK


def test_closed_windows_stay_as_they_were(crash: Crash) -> None:
    """Windows that the run closed are copied; one that had just begun is recognised by the gap before it."""
    recovery = crash.execute(
        """
        profiler.schedule = sc.schedule(wait=1, warmup=1, active=2, repeat=0)
        profiler.start()
        for step in range(11):
            with sc.span(f"step {step}"):
                pass
            profiler.step()
            if step in (3, 7):
                profiler.flush()
        with sc.span("in step 11"):
            die()
        """,
        drain_interval=1000.0,
    ).recover()
    found = windows(recovery.journal)
    assert [(window.index, window.complete, [step.number for step in window.steps]) for window in found] == [
        (0, True, [2, 3]),
        (1, True, [6, 7]),
        (2, False, [10, 11]),
    ]
    assert recovery.unfinished == 1
    spans = {name for name in names(recovery.journal) if not name.startswith("ProfilerStep")}
    assert spans == {"step 2", "step 3", "step 6", "step 7", "step 10", "in step 11"}
    by_window = {strings.name_of(event): batch.window for batch in batches(recovery.journal) for event in batch.events}
    assert by_window["step 10"] == by_window["in step 11"] == by_window["ProfilerStep#10"] == 2


def test_a_crash_between_windows_adds_none(crash: Crash) -> None:
    """Step marks that are written while nothing is recorded are no window."""
    recovery = crash.execute(
        """
        profiler.schedule = sc.schedule(wait=0, warmup=0, active=2, repeat=1)
        profiler.start()
        for step in range(6):
            with sc.span(f"step {step}"):
                pass
            profiler.step()
            if step == 2:
                profiler.flush()
        die()
        """,
        drain_interval=1000.0,
    ).recover()
    assert [(window.index, window.complete) for window in windows(recovery.journal)] == [(0, True)]
    assert (recovery.unfinished, recovery.from_rings) == (0, 0)


def test_a_span_across_a_window_is_cut_at_its_border(crash: Crash) -> None:
    """A span that was written as open when a window closed goes on in the next one, from its start."""
    recovery = crash.execute(
        """
        profiler.schedule = sc.schedule(wait=0, warmup=0, active=1, repeat=0)
        profiler.start()
        outer = sc.span("outer")
        outer.__enter__()
        profiler.step()
        profiler.flush()
        with sc.span("inside"):
            pass
        die()
        """
    ).recover()
    found = windows(recovery.journal)
    assert [(window.index, window.complete) for window in found] == [(0, True), (1, False)]
    parts = [
        (batch.window, int(event["ts"]), int(event["ts"] + event["dur"]))
        for batch in batches(recovery.journal)
        for event in batch.events
        if strings.name_of(event) == "outer"
    ]
    assert [index for index, _, _ in parts] == [0, 1]
    assert parts[0][2] <= parts[1][1]
    assert parts[1][1] == found[1].start_ns


def test_without_a_journal_the_rings_are_enough(killed: Crash) -> None:
    """A run whose journal is lost, or was switched off, is recovered from the session directory alone."""
    (killed.run / "journal").unlink()
    recovery = killed.recover()
    assert recovery.source is None
    assert names(recovery.journal)["forward"] == 40
    assert [step.number for step in windows(recovery.journal)[0].steps] == list(range(41))


def test_without_a_session_the_journal_is_completed(killed: Crash) -> None:
    """When the rings are gone, as after a restart, the journal's windows are closed all the same."""
    shutil.rmtree(killed.directory())
    recovery = killed.recover()
    assert any("cannot be used" in note for note in recovery.missing)
    assert recovery.session is None
    assert names(recovery.journal)["forward"] == 21
    (window,) = windows(recovery.journal)
    assert not window.complete
    assert [step.number for step in window.steps] == list(range(21))


@pytest.mark.parametrize(
    ("options", "count", "least", "most"),
    [("ring_slots=64, ring_bytes=4096", 1000, 1, 64), ("ring_slots=1 << 15, journal=False", 20_000, 1001, 15_999)],
    ids=["the ring is full", "the disk of the ring is full"],
)
def test_events_that_are_in_no_ring_are_counted(
    crash: Crash, small_disk: Path, options: str, count: int, least: int, most: int
) -> None:
    """Those that did not fit a ring, and those of a part of it that never came to the file, are a gap and a number."""
    recovery = crash.execute(
        f"""
        profiler = sc.trace(output_dir=sys.argv[1], options=sc.Options(session_dir={str(small_disk)!r}, {options},
                            drain_interval=1000.0))
        profiler.start()
        profiler.flush()
        _core.changing(1)  # the loop decides nothing more, and so drains nothing that it keeps
        drain, _core.drain = _core.drain, lambda *_: (b"", b"", False)
        for number in range({count}):
            with sc.span("x"):
                pass
        die()
        """,
        drain_interval=1000.0,
    ).recover()
    recovered = names(recovery.journal)["x"]
    assert least <= recovered <= most
    assert recovered + recovery.dropped == count
    ledger = windows(recovery.journal)[0].ledger.sources["recorder"]
    assert ledger.dropped == {"overflow": count - recovered}
    gaps = names(recovery.journal, Kind.GAP)
    assert set(gaps) == {"dropped"} and gaps["dropped"] >= 1


@pytest.mark.parametrize("size", [0, 1 << 13])
def test_a_kill_while_a_ring_is_made_loses_nothing(killed: Crash, size: int) -> None:
    """Its file is there, and is no ring yet: nothing is reported as missing."""
    (killed.directory() / "ring-00099").write_bytes(bytes(size))
    recovery = killed.recover()
    assert not recovery.missing
    assert names(recovery.journal)["forward"] == 40


def test_other_profilers_steps_are_left_out(crash: Crash) -> None:
    """Two profilers in one process: each run gets its own step marks only."""
    recovery = crash.execute(
        """
        other = sc.trace(output_dir=sys.argv[1] + "-other", name="other")
        profiler.start(), other.start()
        for number in range(3):
            with sc.span("x"):
                pass
            profiler.flush()
            profiler.step(), other.step(), other.step()
        die()
        """
    ).recover()
    assert names(recovery.journal, Kind.STEP) == {"ProfilerStep": 4}
    other = recover(crash.run.with_name("run-other"))
    assert names(other.journal, Kind.STEP) == {"ProfilerStep": 7}
    assert names(other.journal)["x"] == 3


def test_recovery_can_be_repeated(killed: Crash) -> None:
    """Recovering twice, also after a first time that was interrupted, gives the same; links are not followed."""
    first = killed.recover()
    rows = [row for batch in batches(first.journal) for row in described(batch)]
    os.truncate(first.journal, first.journal.stat().st_size - 100)
    second = killed.recover()
    assert second.journal == first.journal == second.source and second.from_rings == first.from_rings
    assert [row for batch in batches(second.journal) for row in described(batch)] == rows
    assert sorted(path.name for path in killed.run.iterdir()) == ["journal", "session"]
    precious = killed.run / "precious"
    first.journal.rename(precious)
    first.journal.symlink_to(precious)
    before = precious.read_bytes()
    third = killed.recover()
    assert precious.read_bytes() == before and third.journal.name == "journal-2"


def test_two_at_once(killed: Crash) -> None:
    """One journal is not completed by two processes."""
    descriptor = lock(killed.run / "journal", alone=True)
    with refused(ProfilerStateError, killed.run / "journal"):
        killed.recover()
    os.close(descriptor)
    assert names(killed.recover().journal)["forward"] == 40


def test_a_copy(killed: Crash) -> None:
    """With another file to write to the run's journal stays as it is, and may be recovered later."""
    before = (killed.run / "journal").read_bytes()
    copied = recover(killed.run, killed.run / "copies" / "copy.journal").journal
    assert (killed.run / "journal").read_bytes() == before
    assert names(copied) == names(killed.recover().journal)


EPOCHS = """
with sc.span("setup"):
    profiler.start()
    sc.instant("begin")
    profiler.step()
    profiler.flush()
    with sc.span("epoch"):
        profiler.step()
        profiler.step()
    with sc.span("epoch"):
        {next_epoch}
        die()
"""


@pytest.mark.parametrize(("next_epoch", "last_is_apart"), [("profiler.step()", False), ("sc.instant('x')", True)])
def test_the_rows_of_steps(crash: Crash, next_epoch: str, last_is_apart: bool) -> None:
    """A step that overlaps an epoch in part is not on its row; one that was cut off within an epoch is."""
    recovery = crash.execute(EPOCHS.format(next_epoch=next_epoch)).recover()
    trace = crash.run / "trace.json"
    assert main(["convert", str(recovery.journal), str(trace)]) == 0
    assert chrome_problems(trace) == []
    apart = {
        event["name"]: event["tid"] == tracks.STEPS_TID for event in json.loads(trace.read_text()) if "tid" in event
    }
    last = 3 if last_is_apart else 4
    assert [apart[f"ProfilerStep#{number}"] for number in (0, 1, 2, last)] == [False, True, False, last_is_apart]


@pytest.mark.parametrize(
    ("windows", "unfinished", "text"),
    [(1, 1, "1 window, unfinished"), (3, 2, "3 windows, 2 of them unfinished"), (2, 0, "2 windows")],
)
def test_recovered_windows_are_reported_in_words(windows: int, unfinished: int, text: str, tmp_path: Path) -> None:
    """How many windows, and how many of them the run had not closed."""
    recovery = Recovery(
        journal=tmp_path / "journal",
        source=None,
        session=None,
        processes=0,
        windows=windows,
        unfinished=unfinished,
        total=0,
        events=0,
        from_rings=0,
        open_spans=0,
        dropped=0,
        damage=Damage(),
    ).text()
    assert text in [line.strip() for line in recovery.splitlines()]
    assert "no journal" not in recovery and "0 events in all" in recovery
