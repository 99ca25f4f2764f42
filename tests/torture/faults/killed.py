"""Faults that end the process: killed, crashed, out of memory, or asked to stop."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from stepscope.exporters.repair import repair_chrome
from stepscope.runtime import _core, strings
from stepscope.runtime.events import EventBatch, Flag, Kind
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.recovery.recover import recover
from tests.support import ROOT
from tests.torture.diary import ENTERED, LANES, LEFT, Diary
from tests.torture.fault import Outcome

CRASHES = {
    "segfault": -signal.SIGSEGV,
    "abort": -signal.SIGABRT,
    "abort_in_a_foreign_thread": -signal.SIGABRT,
    "leave_at_once": 7,
    "out_of_memory": -signal.SIGKILL,
    "overflow_the_stack": -signal.SIGSEGV,
}
"""Endings of the victim that run none of our code, and what its parent sees of them."""


def start(place: Path, seed: int, ending: str = "wait") -> subprocess.Popen[bytes]:
    """Starts the victim and returns when it records."""
    (place / "session").mkdir()
    command = [sys.executable, "-m", "tests.torture.victim", str(place), str(seed), ending]
    with (place / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=errors, stderr=errors
        )
    deadline = time.monotonic() + 60
    while not (place / "ready").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return process


class Found:
    """The spans of the victim in a journal."""

    def __init__(self, journal: Path) -> None:
        self.ended: dict[tuple[int, int], int] = {}
        """Id of each span (lane, number) whose end is there."""
        self.open: Counter[int] = Counter()
        """Spans of each lane that had not ended."""
        self.gaps = 0
        """Events that gaps count."""
        self.repeated = 0
        """Records that are there twice."""
        ids: Counter[tuple[int, int]] = Counter()
        opened: dict[int, int] = {}
        closed: set[int] = set()
        with JournalReader(journal) as reader:
            for item in reader:
                if isinstance(item, EventBatch):
                    self._add(item, ids, opened, closed)
            self.problems = () if reader.end is not None and not reader.damage else ("the journal is not whole",)
        self.repeated += sum(count - 1 for count in ids.values())
        for span, lane in opened.items():
            if span not in closed:
                self.open[lane] += 1

    def _add(self, batch: EventBatch, ids: Counter[tuple[int, int]], opened: dict[int, int], closed: set[int]) -> None:
        self.gaps += int(batch.events["id"][batch.events["kind"] == int(Kind.GAP)].sum())
        lanes = {strings.intern(f"lane {lane}"): lane for lane in range(LANES)}
        for event in batch.events[batch.events["kind"] == int(Kind.SPAN)]:
            lane = lanes.get(int(event["name"]))
            if lane is None:
                continue
            span = int(event["id"])
            ids[batch.window, span] += 1
            if event["flags"] & int(Flag.OPEN):
                opened[span] = lane
            else:
                closed.add(span)
                # A span that crosses the border of two windows has a part in each.
                self.repeated += self.ended.setdefault((lane, _number(batch, event)), span) != span


def _number(batch: EventBatch, event: Any) -> int:
    if event["flags"] & int(Flag.ARG_INLINE):
        return int(event["args_len"])
    return int(_core.decode_arguments(batch.args, int(event["args_at"]), int(event["args_len"])).get("n", -1))


def settle(place: Path, journal: Path) -> Outcome:
    """Compares a journal with the diary of the process that it tells of."""
    found = Found(journal)
    diary = Diary(place / "diary")
    problems = list(found.problems)
    produced = exported = 0
    for lane in range(LANES):
        notes = diary.lane(lane)
        ended = {number for at, number in found.ended if at == lane}
        left = {number for number, note in enumerate(notes) if note == LEFT}
        entered = {number for number, note in enumerate(notes) if note == ENTERED}
        produced += len(left)
        exported += len(left & ended)
        # The process may have died between what it did and the note of it: in one span of each lane.
        if len(ended - left) > 1 or not ended - left <= entered | {len(notes)}:
            problems.append(f"lane {lane}: {len(ended - left)} spans came back that had not ended")
        if not len(entered - ended) <= found.open[lane] <= len(entered - ended) + 1:
            problems.append(f"lane {lane}: {len(entered - ended)} spans were open, {found.open[lane]} came back")
    if found.repeated:
        problems.append("spans came back twice")
    dropped = min(found.gaps, produced - exported)
    return Outcome(produced=produced, exported=exported, dropped=dropped, problems=tuple(problems))


def recovered(place: Path) -> Outcome:
    """Recovers what the victim left, and settles accounts."""
    began = time.monotonic_ns()
    result = recover(place / "run")
    took = time.monotonic_ns() - began
    problems: list[str] = []
    for path in [*place.glob("run/*.json*"), *place.glob("run/tb/*.json*")]:
        try:
            complete = repair_chrome(path).path
            text = complete.read_bytes()
            json.loads(zlib.decompress(text, 31) if complete.name.endswith(".gz") else text)
        except Exception as error:
            problems.append(f"{path.name}: {error!r}")
    outcome = settle(place, result.journal)
    return outcome + Outcome(tried=0, shutdown_ns=took, problems=tuple(problems))


def kill(place: Path, seed: int) -> Outcome:
    """SIGKILL at a random moment."""
    process = start(place, seed)
    time.sleep(random.Random(seed).uniform(0.0, 1.0))
    process.kill()
    process.wait()
    return recovered(place)
