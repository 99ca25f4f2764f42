"""The limit of a collector's disk with journals of real runs, and a directory that is removed while a rank sends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stepscope.collector.files.disk import disk_use
from stepscope.collector.files.store import Store
from stepscope.collector.runs.evicted import read_evicted
from stepscope.collector.settings import CollectorSettings
from stepscope.runtime.events.record import EventBatch
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.windows.window import Window
from tests.support import rotation
from tests.support.basics import ROOT
from tests.support.collecting import CollectorProcess, collecting, send_request, wait_until
from tests.support.launch import run_to_end, start
from tests.support.messages import refused
from tests.support.viewers.browser import open_page

STREAM = "0123456789abcdef" * 2


RECORDING = """
import os
import sys
from pathlib import Path
import stepscope as sc
path, windows, spans = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
exporter = sc.exporters.JournalExporter(path, segment_bytes=1)
options = sc.Options(journal=False)
schedule = sc.schedule(wait=0, warmup=0, active=2)
with sc.trace(output_dir=path.parent.parent / "run", schedule=schedule, exporters=[exporter], options=options) as profiler:
    for number in range(2 * windows):
        for _ in range(spans):
            with sc.span("work", noise=os.urandom(24).hex()):
                pass
        profiler.step()
        if number % 2:
            profiler.flush()  # frames of events for each window, however late the loop is
assert exporter.path == path
"""


def record(store: Store, windows: int, spans: int = 4000) -> Path:
    """A stream with windows of two steps each, in segments of their own, by a process of its own: one has the names of all tests
    before."""
    path = store.path(STREAM)
    path.parent.mkdir(parents=True, exist_ok=True)
    run_to_end([sys.executable, "-c", RECORDING, str(path), str(windows), str(spans)], check=True)
    assert len(segment_paths(path)) > windows
    return path


def read(path: Path) -> tuple[Counter[int], list[int]]:
    """Events of each window in a stream, and the windows that ended."""
    counts = Counter[int]()
    ended: list[int] = []
    with JournalReader(path) as reader:
        for item in reader:
            if isinstance(item, EventBatch):
                counts[item.window] += len(item)
            elif isinstance(item, Window):
                ended.append(item.index)
    return counts, ended


def test_evicted_windows_are_shown(tmp_path: Path) -> None:
    """In the API, on the page and after a start of the collector without a limit: which windows, and how many events of the stream."""
    store = Store(CollectorSettings(directory=tmp_path))
    path = record(store, 6)
    before, ended = read(path)
    limit = disk_use(store.directory).total * 2 // 3

    def shown(collector: CollectorProcess) -> Counter[int] | None:
        counts, _ = read(path)
        windows = {window["index"]: window["partly_evicted"] for window in collector.get("/v1/windows")}
        missing = before - counts
        return missing if missing and all(windows.get(index, True) for index in missing) else None

    with collecting(tmp_path, "--disk", str(limit), "--keep-newest", "2", "--keep-slowest", "0") as collector:
        wait_until(lambda: (now := collector.get("/v1/job")["storage"]) and now["used_bytes"] <= limit)
        missing = wait_until(lambda: shown(collector))
        total = missing.total()
        storage = wait_until(lambda: (now := collector.get("/v1/job")["storage"])["discarded_events"] == total and now)
        assert storage["used_bytes"] <= limit == storage["limit_bytes"] and total > 0
        assert storage["free_bytes"] > 0 and storage["problem"] == ""
        assert (
            f"stepscope_discarded_events_total {float(total)}" in send_request(f"{collector.url}/metrics").body.decode()
        )
        (rank,) = collector.get("/v1/ranks")
        assert rank["windows"] == len(ended) and rank["events"] == before.total()
        (stream,) = collector.get(f"/v1/ranks/{rank['id']}")["streams"]
        gone = read_evicted(path)
        assert (stream["evicted_segments"], stream["evicted_events"]) == (len(gone), total)
        assert stream["evicted_bytes"] == sum(one.nbytes for one in gone)
        with open_page() as page:
            page.goto(collector.url)
            page.get_by_role("cell", name="partly evicted").first.wait_for()
            assert "evicted" in page.locator("#summary").inner_text()
    with collecting(tmp_path) as collector:
        wait_until(lambda: not collector.get("/v1/job")["restoring"])
        assert collector.get("/v1/job")["storage"]["discarded_events"] == total
        assert collector.get("/v1/job")["storage"]["limit_bytes"] is None
        (rank,) = collector.get("/v1/ranks")
        assert rank["windows"] < len(ended) and rank["events"] == before.total()


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


SCENARIOS = sorted(name for name in vars(rotation) if name.startswith("test_"))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rotation(scenario: str, tmp_path: Path) -> None:
    """The scenario holds."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    case = f"{Path(rotation.__file__).relative_to(ROOT)}::{scenario}[asyncio]"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "t"), case]
    done = run_to_end(command, timeout=280, cwd=ROOT, environment=environment, server=None)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout[-5000:] + done.stderr[-1000:]


RANK = """
import shutil, sys, time
import stepscope as sc
url, output, streams = sys.argv[1:4]
profiler = sc.trace(exporters=[sc.CollectorExporter(url)], output_dir=output, options=sc.Options(journal=False))
profiler.start()
for step in range(100):
    with sc.span("work"):
        time.sleep(0.01)
    profiler.step()
    if step == 50:
        shutil.rmtree(streams)
profiler.close()
print(profiler.report())
"""


def test_a_rank_whose_journal_was_deleted_keeps_its_buffer(tmp_path: Path) -> None:
    """In its buffer, which can be delivered; the collector logs what is wrong, and goes on when it was started again."""
    streams = tmp_path / "c" / "streams"
    with collecting(tmp_path / "c") as collector:
        arguments = [sys.executable, "-c", RANK, collector.url, str(tmp_path / "run"), str(streams)]
        done = run_to_end(arguments, check=True)
        assert "kept in" in done.stdout and "cannot write" in done.stdout
        assert "deleted while it was written" in collector.stop()[1]
    (buffer,) = (path for path in (tmp_path / "run").rglob("*") if path.is_file())
    with collecting(tmp_path / "c") as collector:
        deliver = [sys.executable, "-m", "stepscope", "deliver", str(buffer), "--url", collector.url]
        run_to_end(deliver, check=True)
        rank = wait_until(lambda: next(iter(collector.get("/v1/ranks")), None))
        assert rank["state"] == "ended" and rank["events"] > 200
    assert list(streams.glob("*/journal"))


FULL = """
import os, sys
import stepscope as sc
exporter = sc.CollectorExporter(sys.argv[1], settings=sc.exporters.LinkSettings(closing_seconds=60))
with sc.trace(exporters=[exporter], output_dir=sys.argv[2], options=sc.Options(close_timeout=60)):
    for _ in range(2000):
        sc.instant("note", text=os.urandom(1000).hex())
assert exporter.unsent_files is None
"""


def test_a_full_disk_is_shown_until_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    """Ranks keep what cannot be written, and send it then."""
    with collecting(small_disk / "collector") as collector:

        def problem() -> str:
            storage = collector.get("/v1/job")["storage"]
            return storage["problem"] if storage else ""

        rank = start([sys.executable, "-c", FULL, collector.url, str(tmp_path / "run")])
        assert "No space left" in wait_until(problem)
        subprocess.run(["mount", "-o", "remount,size=64M", str(small_disk)], check=True)
        assert rank.wait() == 0
        wait_until(lambda: not problem())
