"""Spans that are left out of order, in another thread, too deep, or never."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime._core import instant, span
from stepscope.runtime.events.record import Flag, Kind
from tests.support.recording import check_self_times, recording

KEPT_FRAMES = 126
"""Open spans of one stack that have a parent and self time of their own (`core.h`: STACK_FRAMES)."""


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
    """Below the frames that are kept, spans hang on the last of these, and are counted."""
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
