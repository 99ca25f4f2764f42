"""Storage governance: the limit holds, what is dear stays, and every file can be read as before."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope as sc
from stepscope.collector.discarding.discard import discard, free, places
from stepscope.collector.files.store import Store
from stepscope.collector.retention.inventory import Inventory
from stepscope.collector.retention.retention import Held, StoragePolicy, ranking
from stepscope.collector.retention.storage import Storage
from stepscope.collector.settings import CollectorSettings
from stepscope.runtime.errors import FormatError
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.windows.window import Window
from tests.support.collecting import CollectorProcess, ask, collecting, until
from tests.support.launch import run_to_end
from tests.support.messages import refused
from tests.support.viewers.browser import open_page

STREAM = "0123456789abcdef" * 2


RECORDING = """
import os
import sys
from pathlib import Path
import stepscope as sc
path, windows, spans = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
exporter = sc.exporters.JournalExporter(path)
options = sc.Options(journal=False)
schedule = sc.schedule(wait=0, warmup=0, active=2)
with sc.trace(output_dir=path.parent / "run", schedule=schedule, exporters=[exporter], options=options) as profiler:
    for number in range(2 * windows):
        for _ in range(spans):
            with sc.span("work", noise=os.urandom(24).hex()):
                pass
        profiler.step()
        if number % 2:
            profiler.flush()  # frames of events for each window, however late the loop is
assert exporter.path == path
"""


def record(path: Path, windows: int, spans: int = 2000) -> Path:
    """A journal with windows of two steps each, by a process of its own: one has the names of all tests before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    run_to_end([sys.executable, "-c", RECORDING, str(path), str(windows), str(spans)], check=True)
    return path


def read(path: Path) -> tuple[dict[int, int], list[int], int]:
    """(events of each window, windows that ended, events taken out); the file must be whole."""
    counts: dict[int, int] = {}
    ended: list[int] = []
    with JournalReader(path) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                counts[item.window] = counts.get(item.window, 0) + len(item)
            elif isinstance(item, Window):
                ended.append(item.index)
        assert not reader.damage and reader.end is not None
        return counts, ended, reader.discarded


def test_discarded_events_free_the_disk_and_are_counted(tmp_path: Path) -> None:
    """Steps, ends of windows and all other events stay; discarding again changes nothing."""
    path = record(tmp_path / "journal", 4)
    before, ended, _ = read(path)
    size, blocks = path.stat().st_size, path.stat().st_blocks
    chosen = [place for place in places(path) if place.header.window in (0, 2)]
    freed = discard(path, chosen).freed
    counts, still_ended, gone = read(path)
    assert path.stat().st_size == size and still_ended == ended
    assert gone == before[0] + before[2] and counts == {1: before[1], 3: before[3]}
    if freed:
        assert path.stat().st_blocks < blocks
    assert {place.header.window for place in places(path)} == {1, 3}


def test_a_crash_between_the_two_writes_leaves_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames are marked before their blocks are freed, which the next collector does."""

    def refuse(*_: int) -> int:
        return -1

    path = record(tmp_path / "journal", 2)
    before, _, _ = read(path)
    monkeypatch.setattr("stepscope.collector.discarding.holes._fallocate", refuse)
    chosen = [place for place in places(path) if place.header.window == 0]
    with pytest.raises(OSError):
        discard(path, chosen)
    counts, ended, gone = read(path)
    assert 0 < gone <= before[0] and sum(counts.values()) == sum(before.values()) - gone and ended == [0, 1]
    monkeypatch.undo()
    inventory = Inventory(path)
    inventory.look()
    assert inventory.unfreed and inventory.events == sum(before.values())
    assert free(path, inventory.unfreed) >= 4096 and read(path) == (counts, ended, gone)


def test_what_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"text" * 100)
    with pytest.raises(FormatError):
        list(places(path))
    with pytest.raises(FormatError):
        discard(path, [])
    link = tmp_path / "link"
    link.symlink_to(record(tmp_path / "journal", 1))
    with pytest.raises(OSError):
        list(places(link))


def test_the_limit_holds_and_the_newest_stay(tmp_path: Path) -> None:
    """Of old windows steps and accounts are left; the newest are whole."""
    store = Store(CollectorSettings(directory=tmp_path))
    path = record(store.path(STREAM), 6, spans=4000)
    before, ended, _ = read(path)
    limit = path.stat().st_blocks * 512 * 2 // 3
    done = Storage(store, StoragePolicy(max_bytes=limit, newest=2, slowest=0)).enforce()
    counts, still_ended, gone = read(path)
    assert done.used <= limit and done.freed > 0
    assert done.events == gone == sum(before.values()) - sum(counts.values())
    assert still_ended == ended and counts[5] == before[5] and counts[4] == before[4]
    assert 0 not in counts
    again = Storage(store, StoragePolicy(max_bytes=limit, newest=2, slowest=0)).enforce()
    assert again.windows == 0


def test_what_is_not_copied_yet_goes_last() -> None:
    """Where everything is to be copied elsewhere, the oldest that was not is dearer than the newest that was."""
    held = [Held(STREAM, window, window, 100, window, 1.0, copied=window not in (1, 4)) for window in range(8)]
    found = ranking(held, StoragePolicy(newest=2, slowest=0))
    assert [one.window for group in found.given_up for one in group] == [0, 2, 3, 5, 6, 1, 4]
    assert [one.window for one in found.last] == [7] and not found.trimmed


def test_what_was_given_up_is_shown(tmp_path: Path) -> None:
    """In the API, on the page and after a start of the collector without a limit: which windows, and how many events."""
    path = record(Store(CollectorSettings(directory=tmp_path)).path(STREAM), 6, spans=4000)
    before, _, _ = read(path)
    limit = path.stat().st_blocks * 512 * 2 // 3

    def shown(collector: CollectorProcess, total: int) -> dict[int, int] | None:
        windows = {window["index"]: window["discarded"] for window in collector.get("/v1/windows")}
        return windows if len(windows) == 6 and sum(windows.values()) == total else None

    with collecting(tmp_path, "--disk", str(limit), "--keep-newest", "2", "--keep-slowest", "0") as collector:
        # There when the first look is over: until then the file is read back while events are taken out of it.
        until(lambda: collector.get("/v1/job")["storage"])
        counts, _, total = read(path)
        gone = until(lambda: shown(collector, total))
        assert {window for window, count in gone.items() if count} == set(before) - set(counts) and total > 0
        storage = until(lambda: (now := collector.get("/v1/job")["storage"])["discarded_events"] == total and now)
        assert storage["used_bytes"] <= limit == storage["limit_bytes"]
        assert storage["free_bytes"] > 0 and storage["problem"] == ""
        assert f"stepscope_discarded_events_total {float(total)}" in ask(f"{collector.url}/metrics").body.decode()
        with open_page() as page:
            page.goto(collector.url)
            page.get_by_role("cell", name=f"complete, {gone[0]:,} events given up").first.wait_for()
            assert "given up" in page.locator("#summary").inner_text()
            page.get_by_role("button", name="Ranks of window 0").click()
            page.get_by_role("dialog").get_by_text(f"complete, {gone[0]:,} events given up").wait_for()
    with collecting(tmp_path) as collector:
        assert until(lambda: shown(collector, total)) == gone
        assert until(lambda: collector.get("/v1/job")["storage"])["limit_bytes"] is None


def test_a_window_without_an_end_gives_up_its_oldest(tmp_path: Path) -> None:
    """A run that is one window for weeks stays within the limit as well."""
    store = Store(CollectorSettings(directory=tmp_path))
    path = store.path(STREAM)
    exporter = sc.exporters.JournalExporter(path)
    options = sc.Options(journal=False, drain_interval=0.01)
    with sc.trace(output_dir=tmp_path / "run", exporters=[exporter], options=options) as profiler:
        for _ in range(40):
            for _ in range(1000):
                with sc.span("work", noise=os.urandom(24).hex()):
                    pass
            profiler.step()
            profiler.flush(0.2)
        limit = path.stat().st_blocks * 512 - (1 << 20)
        done = Storage(store, StoragePolicy(max_bytes=limit)).enforce()
        assert done.events and done.used <= limit
    counts, _, gone = read(path)
    assert gone == done.events and counts[0] > 0


windows = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 1000), st.integers(0, 99), st.booleans()),
    max_size=30,
    unique_by=lambda row: row[:2],
)


@given(windows, st.integers(0, 4), st.integers(0, 4))
def test_what_is_chosen(rows: list[tuple[int, int, int, int, bool]], newest: int, slowest: int) -> None:
    """Each window is in one place, on all ranks; what is dear goes after what is not, and of equals the oldest first."""
    held = [
        Held(str(stream), window, window, nbytes, 1000 * window + stream, float(pace), closed)
        for stream, window, nbytes, pace, closed in rows
    ]
    found = ranking(held, StoragePolicy(newest=newest, slowest=slowest))
    order = [group[0].window if group else None for group in found.given_up]
    opened = {one.window for one in held if not one.closed}
    assert {one.window for one in found.trimmed} == opened
    assert all(one in found.trimmed for one in held if one.window in opened)
    closed = sorted({one.window for one in held} - opened)
    last = {one.window for one in found.last}
    assert last == (set(closed[-1:]) if newest else set())
    everything = [*(one for group in found.given_up for one in group), *found.trimmed, *found.last]
    whole = [one for one in held if one.nbytes or one in found.trimmed or one in found.last]
    assert sorted(everything, key=repr) == sorted(whole, key=repr)
    assert len(found.given_up) == len(set(closed) - last)
    pace = {window: max(one.step_ns for one in held if one.window == window) for window in closed}
    dear = set(closed[max(len(closed) - newest, 0) :])
    slow = [window for window in sorted(closed, key=lambda window: pace[window])][max(len(closed) - slowest, 0) :]
    others = [window for window in closed if window not in dear and window not in slow]
    known = [window for window in order if window is not None]
    assert [window for window in known if window in others] == [window for window in others if window in known]
    assert known == [window for window in known if window in others] + [
        window for window in known if window not in others
    ]


def test_a_directory_has_one_name(tmp_path: Path) -> None:
    """It is drawn once; one that was lost with the machine's power is drawn anew, and another file is left alone."""
    name = Store(CollectorSettings(directory=tmp_path)).identity()
    assert Store(CollectorSettings(directory=tmp_path)).identity() == name
    (tmp_path / "identity").write_text("")
    other = Store(CollectorSettings(directory=tmp_path)).identity()
    assert other != name and (tmp_path / "identity").read_text() == other
    (tmp_path / "identity").write_text("something else")
    with refused(OSError, "identity"):
        Store(CollectorSettings(directory=tmp_path)).identity()
    assert (tmp_path / "identity").read_text() == "something else"
