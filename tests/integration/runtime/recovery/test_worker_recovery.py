"""The process that drains is killed while others record for it: recovery brings back theirs as well, each once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.recovery.recover import Recovery, recover
from tests.support.killed_programs import batches
from tests.support.launch import launched
from tests.support.process_trees import START, ProcessTree, pair

PROGRAM = """
def work(number):
    assert sc.join(f"worker {number}")
    with sc.span("whole"):
        count = 0
        while True:
            with sc.span("work", number=count):
                pass
            count += 1
            if count % 500 == 0:
                os.write(1, f"{number} {count}\\n".encode())
                time.sleep(0.001)
if __name__ == "__main__":
    session = sys.argv[2]
    options = sc.Options(session_dir=session, drain_interval=float(sys.argv[3]))
    profiler = trace(options=options)
    profiler.start()
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            work(number)
    signal.pause()
"""


@pytest.mark.parametrize("drain_interval", [0.01, 100.0])
def test_a_killed_parent(tmp_path: Path, drain_interval: float) -> None:
    """Of each worker every span whose exit had returned is there, and the one that was open, flagged."""
    (tmp_path / "session").mkdir()
    program = tmp_path / "program.py"
    program.write_text(START + PROGRAM)
    command = [sys.executable, str(program), str(tmp_path / "run"), str(tmp_path / "session"), str(drain_interval)]
    counts: dict[int, int] = defaultdict(int)
    with launched(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = (pair(line) for line in process.stdout)
        while len(counts) < 3 or min(counts.values()) < 3000:
            number, count = next(lines)
            counts[number] = count
        process.kill()  # and not waited for yet: so long, its number and its group are nobody else's
        for _ in range(20):
            number, count = next(lines)
            counts[number] = count
        os.killpg(process.pid, signal.SIGKILL)
        counts |= dict(lines)
    recovery = recover(tmp_path / "run")
    assert recovery.processes == 3
    numbers, opened = found(recovery)
    for worker in range(3):
        mine = sorted(numbers[f"worker {worker}"])
        assert mine == list(range(len(mine)))
        assert len(mine) >= counts[worker]
        assert "whole" in opened[f"worker {worker}"]
    (session,) = (tmp_path / "session").iterdir()
    parts = sorted(session.glob("[0-9]*-*"))
    assert len(parts) == 3
    (parts[0] / "ring-99999").mkdir()
    unread = recover(tmp_path / "run", remove_session=True)
    assert any("ring-99999: not a regular file" in counts for counts in unread.missing)
    assert any("the session is not removed" in counts for counts in unread.notes) and (parts[0] / "strings").exists()
    (parts[0] / "ring-99999").rmdir()
    if os.geteuid() == 0:  # root recovers another user's session, all of it
        for path in (tmp_path, *tmp_path.rglob("*")):
            os.chown(path, 12_345, 12_345, follow_symlinks=False)
    last = recover(tmp_path / "run", remove_session=True)
    assert last.processes == 3 and not last.missing and found(last)[0] == numbers
    assert not session.exists()


def found(recovery: Recovery) -> tuple[dict[str, list[int]], dict[str, list[str]]]:
    """The numbers of the spans named `work`, and the names of open spans, of each process."""
    numbers: dict[str, list[int]] = defaultdict(list)
    opened: dict[str, list[str]] = defaultdict(list)
    ids: Counter[int] = Counter()
    read = batches(recovery.journal)
    known = {track.id: track for track in tracks.since(1)}
    for batch in read:
        for event in batch.events[batch.events["kind"] == int(Kind.SPAN)]:
            track = known[int(event["track"])]
            while track.parent:
                track = known[track.parent]
            ids[int(event["id"])] += 1
            if event["flags"] & int(Flag.OPEN):
                opened[track.name].append(strings.name_of(event))
            elif strings.name_of(event) == "work":
                numbers[track.name].append(int(event["args_len"]))
    assert max(count for number, count in ids.items() if number) == 1
    return numbers, opened


def test_a_worker_that_had_ended_before(tmp_path: Path) -> None:
    """Events that were delivered already are not there twice, its open spans included."""
    ProcessTree(tmp_path).execute(
        """
    def work():
        sc.join("worker")
        spans("done", 50)
        with sc.span("outer"):
            spans("inside", 50)
            os._exit(0)
    if __name__ == "__main__":
        with trace() as profiler:
            pid = os.fork()
            work() if pid == 0 else os.waitpid(pid, 0)
            while not any(w.state == "ended" for w in profiler.statistics().recorder.workers):
                time.sleep(0.01)
            profiler.flush(0.5)
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
    """,
        code=-signal.SIGKILL,
    )
    recovery = recover(tmp_path / "run", remove_session=True)
    process_tree = ProcessTree(tmp_path)
    assert process_tree.spans(recovery.journal.name) == {("worker", "done"): 50, ("worker", "inside"): 50}
    assert process_tree.spans(recovery.journal.name, still_open=True) == {("worker", "outer"): 1}
