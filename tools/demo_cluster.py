"""The demonstration of a cluster: four ranks that train together and stream to a collector, while things break.

One rank is slow, one is killed half-way and all go on from a checkpoint, and the collector is killed once. In the end
everything is merged into one trace, and every span is counted: what the ranks noted is what the collector's files hold, and
what the merged trace shows, each once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from stepscope.collector.merge.report import MergeReport
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import EventBatch, Flag, Kind
from stepscope.runtime.journal.reader import JournalReader

RANKS, STEPS, SLOW, KILLED = 4, 200, 2, 3
DRAWING_MS = 500
"""Until the page has drawn its charts in other colours."""
SPAN = "forward and backward"
TRACE, BOARD = "merged.pftrace", "tensorboard"


class _Collector:
    """`stepscope collect` on a port that stays the same."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._port = directory, 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "stepscope",
            "collect",
            "--dir",
            str(self._directory),
            "--port",
            str(self._port),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self.url = process.stdout.readline().split()[-1].rstrip("/")
        self._port = int(self.url.rpartition(":")[2])
        return process

    def kill(self) -> None:
        """Ends it as a crash does, and starts it again."""
        self._process.kill()
        self._process.wait()
        time.sleep(1)
        self._process = self._start()

    def ask(self, path: str) -> Any:
        """The answer of its interface."""
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)

    def stop(self) -> None:
        """Ends it in order."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def noted(place: Path) -> Counter[tuple[int, int]]:
    """Spans that the ranks have noted, by (rank, step): some steps were done twice, before and after the restart."""
    found: Counter[tuple[int, int]] = Counter()
    for path in place.glob("diary-*"):
        rank = int(path.name.split("-")[1])
        found.update((rank, int(step)) for step in path.read_text().split())
    return found


def collected(directory: Path) -> Counter[tuple[int, int]]:
    """Spans that the collector's files hold."""
    found: Counter[tuple[int, int]] = Counter()
    name = strings.intern(SPAN)
    for path in directory.glob("streams/*/journal"):
        with JournalReader(path) as reader:
            for item in reader:
                if not isinstance(item, EventBatch) or reader.run is None or reader.run.rank is None:
                    continue
                ended = (item.events["kind"] == int(Kind.SPAN)) & (item.events["flags"] & int(Flag.OPEN) == 0)
                spans = item.events[ended & (item.events["name"] == name)]
                found.update((reader.run.rank, int(step)) for step in spans["step"])
    return found


@contextmanager
def watching(url: str, path: Path | None) -> Generator[Callable[[], None]]:
    """Opens the page in a browser, which sees everything that happens inside. The yielded function takes two pictures of it, if
    there is a path: this one in light colours, and one whose name ends in `-dark` in dark ones."""
    if path is None:
        yield lambda: None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("STEPSCOPE_CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)

        def take() -> None:
            page.locator("#findings").get_by_text(f"Rank {SLOW} holds").wait_for()
            page.emulate_media(color_scheme="light")
            page.screenshot(path=str(path))
            page.emulate_media(color_scheme="dark")
            page.wait_for_timeout(DRAWING_MS)
            page.screenshot(path=str(path.with_stem(f"{path.stem}-dark")))
            print(f"the page's picture: {path}", flush=True)

        yield take
        browser.close()


def _launch(place: Path, url: str, attempt: int, steps: int) -> list[subprocess.Popen[bytes]]:
    """Starts all ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "DEMO_PLACE": place, "DEMO_URL": url, "DEMO_STEPS": steps, "DEMO_SLOW": SLOW, "DEMO_KILLED": KILLED,
        "DEMO_ATTEMPT": attempt, "OMP_NUM_THREADS": 1, "WORLD_SIZE": RANKS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    environment = {**os.environ, **{name: str(value) for name, value in shared.items()}}
    command = [sys.executable, str(Path(__file__).with_name("demo_cluster_rank.py"))]
    return [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in range(RANKS)]


def _train(place: Path, collector: _Collector, steps: int, take_picture: Callable[[], None]) -> int:
    """Trains to the end, as a launcher does: when a rank dies all are started again, once. The picture is taken before anything
    is killed.

    Returns:
        0, or how it failed: a rank did, or the page did not name the slow one.
    """
    attempt, reported, pictured, killed, worst = 0, False, False, False, 0
    ranks = _launch(place, collector.url, attempt, steps)
    while any(rank.poll() is None for rank in ranks) or any(rank.returncode for rank in ranks):
        if any(rank.poll() for rank in ranks):
            for rank in ranks:
                rank.terminate()
            statuses = [rank.wait() for rank in ranks]
            if attempt:
                return max(map(abs, statuses))
            print(f"a rank has died: {statuses}; all go on from the checkpoint", flush=True)
            attempt += 1
            ranks = _launch(place, collector.url, attempt, steps)
        done = sum(noted(place).values())
        if not pictured and done > RANKS * steps // 5:
            pictured = True
            take_picture()
        if not killed and done > RANKS * steps // 4:
            print("the collector is killed, and started again", flush=True)
            collector.kill()
            killed = True
        if not reported and done > RANKS * steps * 9 // 10:
            reported = True
            slow = [view["rank"] for view in collector.ask("/v1/ranks") if view["slow"]]
            print(f"slow, as the page has it: ranks {slow}", flush=True)
            if SLOW not in slow:
                worst = 1
        time.sleep(0.1)
    return worst


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it.

    Returns:
        0 if nothing was lost, nothing was written twice, the slow rank was named and all times have a bound; else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.demo_cluster", description=__doc__)
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where to leave everything; default: nothing stays if all goes well"
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="pictures of the page in light and dark, taken in Chromium: this one, and one that ends in -dark",
    )
    parser.add_argument("--steps", type=int, metavar="N", default=STEPS, help=f"steps of each rank; default: {STEPS}")
    options = parser.parse_args(arguments)
    place: Path = options.dir or Path(tempfile.mkdtemp(prefix="cluster-"))
    place.mkdir(parents=True, exist_ok=True)
    status = _demonstrate(place, options.steps, options.picture)
    if options.dir is None and not status:
        shutil.rmtree(place)
        print("what it made is removed; --dir DIR leaves it there, to be looked at", flush=True)
    else:
        print(f"what it made is in {place}: {TRACE} for https://ui.perfetto.dev, {BOARD} for TensorBoard", flush=True)
    return status


def _demonstrate(place: Path, steps: int, picture: Path | None) -> int:
    collector = _Collector(place / "collected")
    print(f"the collector's page: {collector.url}", flush=True)
    with watching(collector.url, picture) as take_picture:
        status = _train(place, collector, steps, take_picture)
    for note in sorted((place / "runs").glob("*/*/session")):
        print(f"{note.parent.parent.name} was killed: what it left is delivered", flush=True)
        command = [sys.executable, "-m", "stepscope", "deliver", str(note.parent), "--url", collector.url]
        subprocess.run(command, check=True)
    collector.stop()
    report = _merge(place)
    known = [member.bound_ns for member in report.members if member.bound_ns is not None]
    within = f"within {max(known) / 1e3:,.0f} us" if len(known) == len(report.members) else "without a bound"
    print(f"merged: {report.events:,} events of {len(report.members)} processes, their times {within}", flush=True)
    made = noted(place)
    for found, what in ((collected(place / "collected"), "kept"), (_merged_spans(place), "merged")):
        lost, twice = (made - found).total(), (found - made).total()
        print(f"{made.total()} spans were made, {found.total()} are {what}; lost: {lost}, twice: {twice}", flush=True)
        status = status or int(bool(lost or twice))
    return int(bool(status or len(known) < len(report.members)))


def _merge(place: Path) -> MergeReport:
    """Merges everything into `merged.pftrace` and `tensorboard`."""
    report = place / "merge.json"
    command = [sys.executable, "-m", "stepscope", "merge", str(place / "collected")]
    for more in (
        ["--out", str(place / TRACE), "--report", str(report)],
        ["--out", str(place / BOARD), "--format", "tensorboard"],
    ):
        subprocess.run([*command, *more], check=True, stdout=subprocess.DEVNULL)
    return msgspec.json.decode(report.read_bytes(), type=MergeReport)


def _merged_spans(place: Path) -> Counter[tuple[int, int]]:
    """Spans in what was written for TensorBoard, by (rank, step)."""
    found: Counter[tuple[int, int]] = Counter()
    for path in place.glob(f"{BOARD}/window_*/*.pt.trace.json"):
        rank = int(path.name.split(".")[0].rpartition("_")[2])
        events = json.loads(path.read_bytes())["traceEvents"]
        found.update(
            (rank, int(event["args"]["step"]))
            for event in events
            if event.get("ph") == "X" and event["name"] == SPAN and "had not ended" not in event["args"]
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
