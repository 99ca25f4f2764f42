"""Spans of generators and callbacks that take turns for long: never more than a few are open, and none is left in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepscope as sc
from stepscope.runtime import _core
from stepscope.runtime._core import span
from stepscope.runtime.events.record import Block, Flag, Kind
from stepscope.runtime.recording.joined_processes import Worker
from stepscope.runtime.recovery.session_files import SessionFiles
from stepscope.runtime.session.directory import parts, read_identity
from tests.support.basics import ROOT, pause_process
from tests.support.recording import Log, Row, recording
from tests.unit.runtime.annotations.test_task_tracks import check_rows
from tests.unit.runtime.core.test_span import KEPT_FRAMES, check_stack_is_empty, in_thread
from tests.unit.runtime.core.test_stack import open_rows

OPEN = 120
"""Open spans of FIFO: room for few others, so dead frames are removed all the time."""
LATER = 1_000_000_000
"""ns, so that those count which begin while it is read."""
FIFO = f"""
import collections
open_spans = collections.deque()
outer = sc.span("outer")
outer.__enter__()
def turn():
    if len(open_spans) >= {OPEN}:
        open_spans.popleft().__exit__(None, None, None)
    open_spans.append(sc.span("held"))
    open_spans[-1].__enter__()
for _ in range(500):
    turn()
"""
"""Holds spans and leaves the oldest: each frame is moved again and again."""


def loader(name: str) -> Generator[str]:
    """Holds a span while it is suspended."""
    while True:
        with span(name):
            yield name


def work(number: int) -> None:
    """An ordinary span with another in it."""
    with span("forward", number=number), span("layer"):
        pass


def deep_spans() -> int:
    """How many spans had no frame of their own so far."""
    return _core.counts()["deep_spans"]


def check_against_model(log: Log, turns: list[tuple[str, bool]]) -> None:
    """Fails unless parents, self times and flags are those of a stack without limit.

    Args:
        turns: name of a span and whether it began then.
    """
    rows = {row.name: row for row in log.spans}
    live: list[Row] = []
    before, own = 0, dict.fromkeys(rows, 0)
    for name, began in turns:
        row = rows[name]
        now = row.ts if began else row.end
        if live:
            own[live[-1].name] += now - before
        before = now
        if began:
            assert row.parent == (live[-1].id if live else 0)
            live.append(row)
        else:
            assert row.flags == (Flag(0) if live[-1] is row else Flag.ASYNC)
            live.remove(row)
    assert {name: row.self_dur for name, row in rows.items()} == own
    check_rows(log)


@settings(deadline=None, max_examples=60)
@given(
    turns=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    repeat=st.integers(1, 30),
    holding=st.integers(0, 3),
)
def test_any_order_of_turns(turns: list[int], repeat: int, holding: int) -> None:
    """However a few generators take turns, and however often: parents and self times to the ns, as if there was no limit."""
    log_of: list[tuple[str, bool]] = []
    open_spans: dict[int, sc.span] = {}
    deep = deep_spans()

    def enter(key: int) -> None:
        open_spans[key] = span(f"span {len(log_of)}").__enter__()
        log_of.append((open_spans[key].name, True))

    def leave(key: int) -> None:
        one = open_spans.pop(key)
        one.__exit__(None, None, None)
        log_of.append((one.name, False))

    with recording() as log:
        for key in range(holding):
            enter(-1 - key)
        for key in turns * repeat:
            if key in open_spans:
                leave(key)
            if key < 4:  # others begin and end
                enter(key)
            elif key not in open_spans:
                enter(key)
                leave(key)
            assert len(open_rows()) == len(open_spans)
        for key in list(open_spans):
            leave(key)
    assert deep_spans() == deep
    check_against_model(log, log_of)
    check_stack_is_empty()


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), most=st.integers(100, 300))
def test_more_than_there_is_room_for(seed: int, most: int) -> None:
    """Spans without a frame are never drawn across others; once they have ended, all is as before."""
    choice = random.Random(seed)
    open_spans: list[sc.span] = []
    with recording() as log:
        for _ in range(4):
            for want in (choice.randrange(most), choice.randrange(20)):
                while len(open_spans) != want:
                    if len(open_spans) < want:
                        open_spans.append(span("held").__enter__())
                    else:
                        open_spans.pop(choice.choice((-1, -1, choice.randrange(len(open_spans))))).__exit__(
                            None, None, None
                        )
                    if choice.random() < 0.1:
                        with span("work"):
                            pass
        while open_spans:
            open_spans.pop().__exit__(None, None, None)
        log.drain()
        for _ in range(50):
            work(0)
    check_rows(log)
    forward, layer = log.events(Kind.SPAN, "forward"), log.events(Kind.SPAN, "layer")
    assert [row.parent for row in layer] == [row.id for row in forward]
    assert {row.parent for row in forward} == {0} and {row.flags & Flag.ASYNC for row in [*forward, *layer]} == {
        Flag(0)
    }
    check_stack_is_empty()


def test_room_comes_back_under_a_deep_span() -> None:
    """While a span that found no room is open, those that begin after the others have ended have frames again."""
    with recording() as log:
        many = [span("many").__enter__() for _ in range(KEPT_FRAMES)]
        with span("deep"):
            for one in many:
                one.__exit__(None, None, None)
            deep = deep_spans()
            with span("outer"), span("inner"):
                assert [row.name for row in open_rows()] == ["outer", "inner"]
            work(1)
    assert deep_spans() == deep and log.span("inner").parent == log.span("outer").id
    assert log.span("outer").self_dur == log.span("outer").dur - log.span("inner").dur
    assert {row.flags & Flag.ASYNC for row in log.events(Kind.SPAN, "outer", "inner", "forward")} == {Flag(0)}
    check_rows(log)
    check_stack_is_empty()


def test_left_by_another_thread_after_it_was_moved() -> None:
    """A span is found wherever its frame is by then."""
    with recording() as log, closing(loader("left")) as left, closing(loader("right")) as right:
        spans = [span(f"kept {number}").__enter__() for number in range(4)]
        for _ in range(KEPT_FRAMES):
            assert [next(left), next(right)] == ["left", "right"]
            spans.append(spans.pop(0))
            spans[-1].__exit__(None, None, None)
            spans[-1].__enter__()
        in_thread(lambda: spans[1].__exit__(None, None, None))
        shown = {row.name for row in open_rows()}
        for one in (spans[0], spans[2], spans[3]):
            one.__exit__(None, None, None)
    assert shown == {"left", "right", spans[0].name, spans[2].name, spans[3].name}
    check_rows(log)
    check_stack_is_empty()


@pytest.fixture
def member() -> Iterator[tuple[int, Path]]:
    """A process that has joined and moves frames: its number, and its directory."""
    program = (
        f"import os, sys\nsys.path.append({str(ROOT)!r})\nimport stepscope as sc\nassert sc.join('member')\n" + FIFO
    )
    program += "print('ready', flush=True)\nwhile True:\n    turn()\n"
    with recording():
        session = Path(os.environ["STEPSCOPE_SESSION"])
        before = set(parts(session))
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
            try:
                assert child.stdout is not None and child.stdout.readline() == b"ready\n"
                (directory,) = set(parts(session)) - before
                yield child.pid, directory
            finally:
                child.kill()


def check_open_spans(events: Block, least: int = OPEN) -> None:
    """Fails unless each span that FIFO holds is there, once, and the one around them."""
    ids = events["id"].tolist()
    assert len(set(ids)) == len(ids) and least <= len(ids) <= OPEN + 1
    assert ((0 <= events["self_dur"]) & (events["self_dur"] <= events["dur"])).all()


def test_read_while_frames_are_moved(member: tuple[int, Path]) -> None:
    """By another process, while that goes on."""
    _, directory = member
    worker = Worker(directory, read_identity(directory))
    for _ in range(2000):
        check_open_spans(
            worker.open_spans(_core.now() + LATER), OPEN - 1
        )  # while it reads, one may begin and another end


def test_stopped_while_frames_are_moved(member: tuple[int, Path]) -> None:
    """At whatever instruction a process ends, recovery and who attaches find all that is open."""
    pid, directory = member
    worker = Worker(directory, read_identity(directory))
    for _ in range(800):
        pause_process(pid)
        check_open_spans(SessionFiles(directory).open_spans(_core.now()))
        check_open_spans(worker.open_spans(_core.now()))
        os.kill(pid, signal.SIGCONT)
