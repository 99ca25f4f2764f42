"""Faults by chance: delays, misbehaviour, forks and ends that a plan draws, all at once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import traceback
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.cli.writing.recover import rewrite_traces
from stepscope.runtime.recovery.recover import Recovery, recover
from stepscope.runtime.session.directory import PREFIX
from stepscope.runtime.session.note import SESSION_FILE, WINDOWS
from tests.stress.torture import servers
from tests.stress.torture.diary import LANES, Diary, lane_name
from tests.stress.torture.fault import Fault, Outcome
from tests.stress.torture.faults.killed import bare_ns, started
from tests.stress.torture.journal_check import Found, check_accounts
from tests.stress.torture.plan import Ending, Plan, draw
from tests.stress.torture.planned_victim import ProgramReport
from tests.stress.torture.processes import command
from tests.support import pftrace
from tests.support.basics import ROOT, Deferred

parquet: Any = Deferred("pyarrow.parquet")

LIMIT = 30.0
"""Seconds after which a program that does not end is called deaf."""
SLACK = 1.0
"""Seconds by which the end may exceed the deadline of closing: half of it is promised, and an interpreter ends with all it has imported."""
SHM = Path("/dev/shm")
ROOMY = 64 << 20
"""Bytes of an exporter's queue in which nothing is dropped."""
KEPT = ROOT / "build" / "chance"
"""Where what a failed trial has left is, by its number."""


def trial(place: Path, number: int) -> Outcome:
    """A plan is drawn from the number of the trial: parts delay and misbehave, processes are forked and die, and the program ends
    or is killed, most often while it closes. Files of a failed trial stay below `build/chance`."""
    plan = draw(number)
    try:
        outcome = _tried(plan, place)
    except Exception:  # of a reader, or of recovery
        outcome = Outcome(problems=(traceback.format_exc(),))
    if outcome.problems or outcome.lost:
        shutil.rmtree(KEPT / str(number), ignore_errors=True)
        shutil.copytree(place, KEPT / str(number))
        again = f"--chance --minutes 0 --seed {number} draws {msgspec.json.encode(plan).decode()}"
        outcome += Outcome(tried=0, problems=(again,))
    return outcome


def _tried(plan: Plan, place: Path) -> Outcome:
    server, began_at = getattr(servers, plan.server), time.time()
    with server() as port, started(place, plan.number, str(port), program="planned_victim") as process:
        try:
            ended, began, took = _struck(process, plan.ending, place)
        except subprocess.TimeoutExpired:
            return Outcome(problems=(f"it still runs after {LIMIT:g} s",))
        finally:
            found = SHM.glob(f"{PREFIX}{process.pid}-*")
            sessions = [path for path in found if path.stat().st_ctime >= began_at]  # others had the number before
    problems = _workers(place)
    for path in sessions:
        shutil.copytree(path, place / "session" / path.name, ignore_dangling_symlinks=True)
    try:
        outcome = _left(plan, place, began)
        left = [path.name for path in sessions if path.exists()]
        # A later run frees the session of one that was struck between its last word and the end of its session.
        if left and (plan.ending.in_order or (place / "recovered").exists()):
            problems += [f"/dev/shm still has {', '.join(left)}"]
    finally:
        for path in sessions:
            shutil.rmtree(path, ignore_errors=True)
    problems += _ended(plan, ended, took, place)
    outcome += Outcome(tried=0, shutdown_ns=took, problems=tuple(problems))
    return msgspec.structs.replace(outcome, tried=1)


def _struck(process: subprocess.Popen[bytes], ending: Ending, place: Path) -> tuple[int, int, int]:
    """Sends the signals of the ending; returns the status, when the end began, and the ns from there."""
    if ending.own:
        while process.poll() is None and not (place / "ending").exists():
            time.sleep(0.001)
    else:
        time.sleep(ending.seconds)
    began = Diary(place / "diary").ending_ns or time.monotonic_ns()
    for later, number in ending.signals:
        time.sleep(later)
        process.send_signal(number)
    return process.wait(LIMIT), began, time.monotonic_ns() - began


def _ended(plan: Plan, ended: int, took: int, place: Path) -> list[str]:
    """Faults of the status and the time of the end."""
    own = {"close": [0], "exit": [0], "raise": [1], "": []}[plan.ending.own]
    expected = own + [-number for _, number in plan.ending.signals]
    if -signal.SIGINT in expected and any(output.file.endswith(".parquet") for output in plan.outputs):
        expected.append(1)  # of the import of pandas that was under way, see `ParquetExporter._begin`
    errors = (place / "stderr").read_text(errors="replace")[-500:]
    problems = [] if ended in expected else [f"it ended with {ended}, not {expected}: {errors}"]
    if (place / "report").exists():
        closed = msgspec.json.decode((place / "report").read_bytes(), type=ProgramReport)
        problems += closed.problems
        took = closed.closing_ns
    most = int((plan.close_timeout + SLACK + plan.on_training_thread) * 1e9)
    if took > most and took > most + (machine := bare_ns()):
        problems.append(f"the end took {took / 1e9:.2f} s of {most / 1e9:.2f} s; an interpreter {machine / 1e9:.2f} s")
    return problems


def _workers(place: Path) -> list[str]:
    """Waits for the end of forked processes, which see that their parent has ended; those that do not are problems."""
    path = place / "workers"
    waiting = path.read_text().split() if path.exists() else []
    until = time.monotonic() + 5
    while waiting and time.monotonic() < until:
        waiting = [pid for pid in waiting if command(int(pid))]
        time.sleep(0.005)
    return [f"process {pid}, which was forked, still runs" for pid in waiting]


def _left(plan: Plan, place: Path, began: int) -> Outcome:
    """Accounts of what the program has left; what it could not complete is recovered."""
    run = place / "run"
    known = run / SESSION_FILE
    if not known.exists():
        journals = sorted((run / WINDOWS).glob("*")) if plan.keep_last else [run / "journal"]
        outcome = sum((_accounts(plan, place, path, True) for path in journals), Outcome())
        problems = ["nothing can be recovered of it"] if plan.ending.abrupt else []
        problems += _files(plan, place, None if plan.keep_last else Found(journals[0]))
        return outcome + Outcome(tried=0, problems=tuple(problems))
    problems = ["there is something to recover"] if plan.ending.in_order else []
    result = recover(run, remove_session=True)
    (place / "recovered").write_text(result.text())
    risk = [text for text in result.missing if text.startswith("at most")]
    problems += [f"missing: {text}" for text in result.missing if text not in risk]
    outcome = _accounts(plan, place, result.journal, not plan.ending.abrupt, recovered=began)
    if risk and outcome.lost > 0:
        outcome = msgspec.structs.replace(outcome, dropped=outcome.dropped + outcome.lost)
    for path in sorted((run / WINDOWS).glob("*")) if plan.keep_last else ():
        if path.suffix != ".journal":
            problems.append(f"{path.name} bears the name that it has while it grows")
        elif "unfinished" not in path.name:
            outcome += _accounts(plan, place, path, True)
    if not result.gap:
        messages: list[str] = []
        _, complete = rewrite_traces(result, run, set(), messages.append)
        # Recovery makes one window of those whose ends no journal has yet, and has no events that rings had no room for, nor the last
        # that a backend has delivered.
        if complete:
            problems += _files(plan, place, Found(result.journal), result)
        elif plan.schedule is None and plan.roomy and not plan.delivers:
            problems.append(f"a trace is not written anew: {'; '.join(messages)}")
    return outcome + Outcome(tried=0, problems=tuple(problems))


def _accounts(plan: Plan, place: Path, journal: Path, closed: bool, *, recovered: int = 0) -> Outcome:
    """Compares a journal with the diary; `recovered` if it was, with the time at which the end began."""
    if plan.exact:
        return check_accounts(place, journal, closed=closed, recovered=closed and bool(recovered), bare=True)
    return within(plan, place, journal, recovered)


def within(plan: Plan, place: Path, journal: Path, recovered: int) -> Outcome:
    """Compares a journal with the diary where not all that was recorded is known, nor all that was in windows: every span that began
    and ended in one window is there, or its loss is among those that are counted.

    Of a window that recovery has ended, nobody knows for how long it recorded after the end had begun, nor whether there were pauses.
    """
    found, diary = Found(journal, whole=False), Diary(place / "diary")
    problems = list(found.problems)
    produced = exported = last = 0
    for lane in range(LANES):
        entered, left = diary.lane(lane)
        ended = found.ended(lane)
        if (ended > len(entered)).any():
            problems.append(f"lane {lane}: a span came back that was not recorded")
        inside = np.zeros(len(entered), bool)
        for window in found.windows:
            if window.complete or not recovered:
                inside |= (entered >= window.start_ns) & (left > 0) & (left <= window.end_ns)
            elif plan.gapless or plan.keep_last:
                inside |= (entered >= window.start_ns) & (left > 0) & (left <= min(window.end_ns, recovered))
        there = np.zeros(len(entered), bool)
        there[ended[ended < len(entered)]] = True
        produced += int(inside.sum())
        exported += int((inside & there).sum())
        last = max(last, int(left[left <= recovered].max(initial=0)))
    if plan.ending.abrupt and plan.roomy and (plan.gapless or plan.keep_last) and found.end_ns < last:
        problems.append(f"what was recovered ends {(last - found.end_ns) / 1e6:.1f} ms before the last span")
    dropped = min(produced - exported, max(found.gaps, found.counted))
    return Outcome(
        produced=produced, exported=exported, dropped=dropped, blocked_ns=diary.blocked_ns, problems=tuple(problems)
    )


def _files(plan: Plan, place: Path, found: Found | None, recovery: Recovery | None = None) -> list[str]:
    """Faults of the traces: each is to be complete and readable, and to have all events of the journal."""
    report = place / "report"
    whole = msgspec.json.decode(report.read_bytes(), type=ProgramReport).whole if report.exists() else ()
    problems: list[str] = []
    for output in plan.outputs:
        paths = sorted((place / "run").glob(output.file.replace("{window}", "*")))
        parts = sorted((place / "run").glob(output.file.replace("{window}", "*") + ".part"))
        problems += [f"{path.name} is left" for path in parts if recovery is None]
        # Of windows that were not written yet there is no file, and none to be written anew.
        again = recovery is not None and "{window}" not in output.file
        spans = 0
        for path in paths if recovery is None or again else ():
            try:
                spans += _spans(path)
            except Exception as error:  # any exception of a reader
                problems.append(f"{path.name} cannot be read: {error!r}")
        # A span that crosses a border is in both windows, of which recovery may make one.
        alike = again and plan.schedule is None and plan.queue_bytes >= ROOMY
        comparable = alike or ("journal" in whole and any(output.file in name for name in whole))
        if paths and comparable and found is not None and spans != found.parts:
            problems.append(f"{output.file} has {spans} spans, the journal {found.parts}")
    return problems


NAMES = frozenset(map(lane_name, range(LANES)))


def _spans(path: Path) -> int:
    """Spans of the lanes in a trace, and parts of them."""
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = parquet.read_table(path, columns=["kind", "name"]).to_pylist()
        return sum(row["kind"] == "span" and row["name"] in NAMES for row in rows)
    if path.suffix == ".pftrace":
        trace = pftrace.load(path)
        return sum(each.name in NAMES for each in (*trace.slices(), *trace.pairs()))
    data = path.read_bytes()
    events = json.loads(zlib.decompress(data, 31) if path.suffix == ".gz" else data)
    return sum(event["name"] in NAMES and event["ph"] in "XB" for event in events)


FAMILY = "chance"
FAULTS = (Fault(family=FAMILY, name="everything by chance", trial=trial, trials=100, short=4, alone=True),)
