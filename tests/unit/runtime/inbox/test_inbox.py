"""The inbox keeps its contract: a put that returns is processed, a put after close raises."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.errors import ClosedError
from stepscope.runtime.inbox.inbox import Inbox
from tests.support.messages import refused


@given(st.lists(st.one_of(st.integers(0, 40).map(lambda size: ("put", size)), st.just(("take", 0)))))
def test_accounts_hold_after_any_calls(calls: list[tuple[str, int]]) -> None:
    """Every item put is taken once, in order, or still there; what did not fit is counted and nowhere else."""
    inbox: Inbox[int] = Inbox(100, lambda: None)
    expected: list[int] = []
    taken: list[int] = []
    refused = 0
    for number, (call, size) in enumerate(calls):
        if call == "take":
            taken += inbox.pop_all()
        elif inbox.put(number, size):
            expected.append(number)
        else:
            refused += 1
        assert inbox.statistics().waiting_bytes <= 100
    stats = inbox.statistics()
    assert (stats.put, stats.received, stats.refused) == (len(expected), len(taken), refused)
    assert stats.put == stats.received + stats.waiting
    assert taken + inbox.pop_all() == expected


def test_messages_always_fit() -> None:
    """What has no size, such as the end of a window, is taken when the inbox is full of events."""
    inbox: Inbox[str] = Inbox(10, lambda: None)
    assert inbox.put("events", 10)
    assert not inbox.put("more events", 1)
    assert inbox.put("window ends")
    assert inbox.pop_all() == ["events", "window ends"]


def test_close_gives_back_what_was_put_and_refuses_more() -> None:
    """Nothing is lost at the end: close returns what was never taken."""
    inbox: Inbox[int] = Inbox(10, lambda: None)
    inbox.put(1)
    assert inbox.close() == [1]
    with refused(ClosedError):
        inbox.put(2)


def test_each_put_wakes_the_consumer() -> None:
    """The consumer never sleeps on a full inbox."""
    wakes: list[None] = []
    inbox: Inbox[int] = Inbox(10, lambda: wakes.append(None))
    inbox.put(1)
    inbox.put(2)
    assert len(wakes) == 2


def test_what_may_wait_wakes_the_consumer_later() -> None:
    """Begins and ends of windows are looked at together."""
    wakes: list[str] = []
    inbox: Inbox[int] = Inbox(10, lambda: wakes.append("now"), lambda: wakes.append("later"))
    inbox.put(1, later=True)
    inbox.put(2)
    assert wakes == ["later", "now"]
    assert inbox.pop_all() == [1, 2]


def test_puts_from_many_threads_and_a_close_in_between() -> None:
    """Each put is wholly before the close, and processed, or wholly after, and raises."""
    inbox: Inbox[int] = Inbox(1 << 20, lambda: None)
    accepted: list[int] = []
    started = threading.Barrier(9)

    def produce(base: int) -> None:
        started.wait()
        for number in range(base, base + 2000):
            try:
                inbox.put(number)
            except ClosedError:
                return
            accepted.append(number)

    threads = [threading.Thread(target=produce, args=(base * 10_000,)) for base in range(8)]
    for thread in threads:
        thread.start()
    started.wait()
    taken = inbox.pop_all() + inbox.pop_all() + inbox.close()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(accepted)
