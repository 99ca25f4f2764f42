"""Delays between attempts, and what the other end asks for."""

from __future__ import annotations

import random

from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.exporters.network.backoff import MAX_RETRY_AFTER_S, Backoff, parse_retry_after


def in_upper_half(delay: float, most: float) -> bool:
    return most / 2 <= delay <= most


@given(first=st.floats(0.001, 60.0), longest=st.floats(0.001, 600.0))
def test_delays_double_up_to_the_longest(first: float, longest: float) -> None:
    """Each is in the upper half of its range; a success begins again."""
    backoff = Backoff(first, longest)
    for _ in range(2):
        for attempt in range(30):
            assert in_upper_half(backoff.delay(), min(first * 2**attempt, longest))
        backoff.reset()


def test_delays_of_many_senders_differ() -> None:
    """So those that failed together do not return together."""
    assert len({Backoff(1.0, 10.0).delay() for _ in range(100)}) > 50


def test_a_seeded_program_draws_the_same_numbers() -> None:
    """Delays do not use the program's generator."""
    before = random.getstate()
    Backoff(1.0, 10.0).delay()
    assert random.getstate() == before


def test_a_requested_wait_replaces_the_delay() -> None:
    """The delay does not grow by it."""
    backoff = Backoff(1.0, 10.0)
    assert [backoff.delay(0.0), backoff.delay(600.0)] == [0.0, 600.0]
    assert in_upper_half(backoff.delay(), 1.0)


def test_a_refusal_waits_longest() -> None:
    """The delay after other failures does not grow by it."""
    backoff = Backoff(1.0, 10.0)
    assert in_upper_half(backoff.longest_delay(), 10.0)
    assert in_upper_half(backoff.delay(), 1.0)


DATES = st.from_regex(r"\A[A-Z][a-z]{2}, ?\d{1,3} [A-Z][a-z]{2} \d{1,25} \d{1,3}:\d{1,3}:\d{1,3} ([+-]\d{1,25}|GMT)?\Z")
ZONED = st.builds(
    "Mon, {} Jan {} 00:00:00 {}{}".format, st.integers(0, 40), st.integers(), st.sampled_from("+-"), st.integers(0)
)


@given(text=st.one_of(st.text(), st.integers().map(str), DATES, ZONED), now=st.floats(0.0, 1e11))
@example(text="Mon, 01 Jan 2024 00:00:00 +99999999999999999999999", now=0.0)
@example(text="Mon, 01 Jan 0001 00:00:00 +2359", now=0.0)
@example(text="Fri, 31 Dec 9999 23:59:59 -2359", now=0.0)
@example(text="9" * 5000, now=0.0)
def test_any_retry_after_is_a_wait_or_none(text: str, now: float) -> None:
    """A text that cannot be read counts as no header."""
    wait = parse_retry_after(text, now)
    assert wait is None or 0.0 <= wait <= MAX_RETRY_AFTER_S
