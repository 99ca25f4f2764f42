"""Spans: what is recorded of them, however they are entered and left: also out of order, in another thread, too deep, or never."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime._core import counter, flow, instant, span
from stepscope.runtime.events.record import Flag, Kind
from tests.support.messages import refused
from tests.support.recording import Row, check_self_times, recording

KEPT_FRAMES = 126
"""Open spans of one stack that have a parent and self time of their own (`core.h`: STACK_FRAMES)."""

trees: st.SearchStrategy[Any] = st.recursive(st.just([]), lambda inside: st.lists(inside, max_size=4), max_leaves=25)


@given(tree=trees)
def test_self_times_and_parents_are_exact(tree: list[Any]) -> None:
    """A span's self time is its duration less that of its children, to the nanosecond."""

    def walk(inside: list[Any]) -> None:
        for children in inside:
            with span("node"):
                walk(children)

    def shape(rows: list[Row], parent: int) -> list[Any]:
        children = sorted((row for row in rows if row.parent == parent), key=lambda row: row.id)
        return [shape(rows, row.id) for row in children]

    with recording() as log:
        walk(tree)
    assert shape(log.spans, 0) == tree
    assert not any(row.flags for row in log.spans)
    check_self_times(log.spans)


def test_an_object_is_used_again_and_inside_itself() -> None:
    """Each entry of one object is a span of its own."""
    again = span("again", number=7)
    with recording() as log:
        for _ in range(3):
            with again:
                pass
        with again, again, again:
            pass
    assert [row.arguments for row in log.spans] == [{"number": 7}] * 6
    first, second, third = log.spans[3:]
    assert (first.parent, second.parent, third.parent) == (second.id, third.id, 0)
    check_self_times(log.spans)


def test_methods_keep_their_span() -> None:
    """`__enter__` and `__exit__` belong to their span, also when nothing else refers to it any more."""
    with recording() as log:
        leave = span("kept", number=7).__exit__
        assert leave(None, None, None) is None  # it was not entered
        enter = span("entered", number=8).__enter__
        again = enter()
        del enter
        again.__exit__(None, None, None)
        with ExitStack() as stack:  # asks the type for its methods
            stack.enter_context(span("pushed"))
            stack.push(span("exit only"))
    assert [(row.name, row.arguments) for row in log.spans] == [("entered", {"number": 8}), ("pushed", {})]
    with pytest.raises(TypeError, match="takes no arguments"):
        span("x").__enter__(1)  # type: ignore[call-arg]
    assert "span('x')" in repr(span("x").__exit__) or sys.version_info >= (3, 14)


def test_an_object_is_shared_by_threads() -> None:
    """Each thread leaves its own entry, whatever the order."""
    shared = span("shared")
    turns = [threading.Event() for _ in range(4)]

    def first() -> None:
        with shared:
            turns[0].set()
            turns[1].wait()
        turns[2].set()

    def second() -> None:
        turns[0].wait()
        with shared, shared:
            turns[1].set()
            turns[2].wait()

    with recording() as log:
        threads = [threading.Thread(target=work) for work in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [row.flags for row in log.spans] == [Flag(0)] * 3
    early, inner, outer = log.spans if log.spans[0].ts < log.spans[1].ts else [log.spans[i] for i in (2, 0, 1)]
    assert early.track != inner.track == outer.track
    assert (early.parent, inner.parent, outer.parent) == (0, outer.id, 0)
    check_self_times(log.spans)


def test_spans_across_switches_of_recording() -> None:
    """A span that begins while recording is recorded, whenever it ends; each exit belongs to its own entry."""
    outer, again = span("outer"), span("again")
    with recording() as log:
        log.record(False)
        outer.__enter__()
        log.record(True)
        with again:  # recorded
            log.record(False)
            with again:  # not recorded
                instant("unseen")
                log.record(True)
                with again:  # recorded
                    pass
            outer.__exit__(None, None, None)
            log.record(False)
    assert [row.name for row in log.rows] == ["again", "again"]
    assert log.rows[0].parent == log.rows[1].id
    check_self_times(log.spans)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, type("Ä" * 3000, (Exception,), {})])
def test_exceptions_are_noted_and_pass(error: type[BaseException]) -> None:
    """A span left by an exception says by which."""
    with recording() as log, pytest.raises(error), span("failing", number=1), span("inner"):
        raise error("why")
    assert [row.flags for row in log.spans] == [Flag.ERROR, Flag.ERROR]
    name = error.__name__.encode()[:4096].decode()
    assert [row.arguments for row in log.spans] == [{"error": name}, {"number": 1, "error": name}]


def test_misuse_is_named_at_construction() -> None:
    """A name that is no str, or an argument too many, raises; nothing else does."""
    wrong: Any = 3
    for make in (span, instant):
        with refused(TypeError, "name", "3"):
            make(wrong)
        with refused(TypeError, "category", "3"):
            make("x", category=wrong)
        with refused(TypeError, "0"):
            make()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    with refused(TypeError, "name", "3"):
        counter(wrong, 1)
    with refused(TypeError, "name", "3"):
        flow(wrong, 1, "start")


def test_copies() -> None:
    """`copy`, and all else that copies or pickles, gives a fresh span of the same name, category and arguments."""
    original = span("original", category="c", a=1)
    made = [original.copy(), copy.copy(original), copy.deepcopy(original), pickle.loads(pickle.dumps(original))]
    with recording() as log, original:
        for each in made:
            with each:
                pass
    assert len({(row.name, row.category, str(row.arguments)) for row in log.spans}) == 1 and len(log.spans) == 5
    assert original.name == "original" and repr(original) == "span('original')"


def in_thread(work: Callable[[], object]) -> None:
    """Does some work in another thread, and waits for it."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def check_stack_is_empty() -> None:
    """Fails if anything is left open on this thread's stack."""
    with recording() as log, span("probe"):
        pass
    probe = log.span("probe")
    assert (probe.parent, probe.flags) == (0, Flag(0))


@given(actions=st.lists(st.one_of(st.none(), st.integers(0, 200)), max_size=200))
def test_any_order_of_exits_is_survived(actions: list[int | None]) -> None:
    """Each span is recorded once; those left out of order are flagged, and the stack is empty in the end."""
    opened: list[span] = []
    names: list[str] = []
    astray: set[str] = set()

    def leave(at: int) -> None:
        if at < len(opened) - 1:
            astray.add(opened[at].name)
        opened.pop(at).__exit__(None, None, None)

    with recording() as log:
        for action in actions:
            if action is None or not opened:
                names.append(f"span {len(names)}")
                opened.append(span(names[-1]))
                opened[-1].__enter__()
            else:
                leave(action % len(opened))
        while opened:
            leave(len(opened) - 1)
    assert sorted(row.name for row in log.spans) == sorted(names)
    if len(names) <= KEPT_FRAMES:
        assert {row.name for row in log.spans if row.flags & Flag.ASYNC} == astray
    check_stack_is_empty()


def test_exit_in_another_thread() -> None:
    """The span lies where it was entered, is drawn apart, and does not stay on the stack of who entered it."""
    with recording() as log:
        with span("here"):
            pass
        for _ in range(2 * KEPT_FRAMES):
            wandering = span("wandering")
            wandering.__enter__()
            in_thread(wandering.__exit__)
        with span("after"):
            instant("inside")
    assert {row.track for row in log.spans} == {log.span("here").track}
    wanderers = log.events(Kind.SPAN, "wandering")
    assert len(wanderers) == 2 * KEPT_FRAMES and all(row.flags == Flag.ASYNC for row in wanderers)
    assert {row.parent for row in wanderers} == {0}
    assert log.span("after").parent == 0 and log.of(Kind.INSTANT)[0].parent == log.span("after").id


def test_exit_without_enter_and_enter_without_exit() -> None:
    """The first records nothing; the second, once the object is gone, is counted and out of the way."""
    lost = _core.counts()["spans_abandoned"]
    with recording() as log:
        span("never entered").__exit__(None, None, None)
        for _ in range(2 * KEPT_FRAMES):
            span("never left").__enter__()
    assert log.rows == []
    assert _core.counts()["spans_abandoned"] == lost + 2 * KEPT_FRAMES
    check_stack_is_empty()


def test_deep_recursion() -> None:
    """Below the frames that are stored, spans hang on the last of these, and are counted."""
    deep = _core.counts()["deep_spans"]

    def descend(depth: int) -> None:
        with span("down", depth=depth):
            if depth:
                descend(depth - 1)
            else:
                instant("bottom")

    with recording() as log:
        descend(299)
    assert len(log.spans) == 300
    assert _core.counts()["deep_spans"] == deep + 300 - KEPT_FRAMES
    by_depth = {299 - row.arguments["depth"]: row for row in log.spans}
    last = by_depth[KEPT_FRAMES - 1]
    assert all(by_depth[at].parent == by_depth[at - 1].id for at in range(1, KEPT_FRAMES))
    assert {by_depth[at].parent for at in range(KEPT_FRAMES, 300)} == {last.id} == {log.of(Kind.INSTANT)[0].parent}
    check_self_times([by_depth[at] for at in range(KEPT_FRAMES + 1)])
    check_stack_is_empty()


def test_deep_spans_left_elsewhere_do_not_stay() -> None:
    """Also a span without a frame of its own is gone when another thread has left it."""
    opened = [span("deep") for _ in range(KEPT_FRAMES + 50)]

    def leave_deep() -> None:
        for one in opened[KEPT_FRAMES:]:
            one.__exit__(None, None, None)

    with recording():
        for one in opened:
            one.__enter__()
        in_thread(leave_deep)
        for one in reversed(opened[:KEPT_FRAMES]):
            one.__exit__(None, None, None)
    check_stack_is_empty()
