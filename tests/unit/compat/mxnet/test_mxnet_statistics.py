"""The numbers behind `dumps`: against numpy, for any values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.compat.mxnet.statistics import EXACT, CounterSeries, SpanSeries, Statistics, Values
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind, empty_block

numbers = st.floats(-1e9, 1e9, allow_nan=False)
parts = st.lists(st.lists(numbers, min_size=1, max_size=30), min_size=1, max_size=8)


def close(value: float, expected: float, scale: float) -> bool:
    """Whether two numbers are alike, for values as large as `scale`."""
    return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9 * max(scale, 1e-3))


@given(parts=parts)
def test_moments_are_those_of_all_values(parts: list[list[float]]) -> None:
    """However they are cut into batches."""
    made = Values()
    for part in parts:
        made.add(np.array(part))
    every = np.array([value for part in parts for value in part])
    scale = float(np.abs(every).max())
    assert (made.count, made.min, made.max) == (len(every), every.min(), every.max())
    assert close(made.total, float(every.sum()), scale * len(every))
    assert close(made.mean, float(every.mean()), scale)
    assert abs(made.std - float(every.std())) <= 1e-6 * max(scale, 1e-3)
    ordered = np.sort(every)
    shares = (0.5, 0.95, 0.99, 1.0)
    assert made.quantiles(*shares) == tuple(ordered[math.ceil(share * len(every)) - 1] for share in shares)


def test_many_different_values_are_rounded() -> None:
    """The error stays below one part in 256; memory stays bounded."""
    values = Values()
    every = np.random.default_rng(0).lognormal(10, 3, 100_000)
    for part in np.array_split(every, 20):
        values.add(part)
    for share in (0.5, 0.95, 0.99):
        (found,) = values.quantiles(share)
        assert found == pytest.approx(float(np.sort(every)[math.ceil(share * len(every)) - 1]), rel=1 / 256)
    assert len(values._counts) < 2 * EXACT  # pyright: ignore[reportPrivateUsage]
    assert math.isnan(Values().quantiles(0.5)[0]) and math.isnan(Values().std)


@given(
    changes=st.lists(st.tuples(st.integers(1, 10**9), st.floats(-1e6, 1e6)), min_size=2, max_size=40),
    at=st.integers(0, 40),
)
def test_the_mean_over_time(changes: list[tuple[int, float]], at: int) -> None:
    """Each value counts for as long as it lasted, whether they came in one batch or in two."""
    times = np.cumsum([step for step, _ in changes]).astype(np.int64)
    values = np.array([value for _, value in changes])
    series = CounterSeries()
    for part in (slice(None, at), slice(at, None)):
        if len(times[part]):
            series.add(times[part], values[part])
    durations = np.diff(times)
    assert series.weighted == pytest.approx(
        float((values[:-1] * durations).sum() / durations.sum()), rel=1e-6, abs=1e-3
    )
    assert series.last == values[-1] and series.values.count == len(values)


def test_a_counter_that_changed_once() -> None:
    """No time has passed: the mean is its value. A later value counts, but takes no time."""
    series = CounterSeries()
    series.add(np.array([100]), np.array([7.0]))
    assert series.weighted == 7
    series.add(np.array([200]), np.array([9.0]))
    series.add(np.array([150]), np.array([1000.0]))
    assert series.weighted == 7 and series.values.count == 3


def spans(*rows: tuple[str, int, int, int, int]) -> Block:
    """Spans: (name, id, ts, dur, flags)."""
    block: Any = empty_block(len(rows))
    for at, (name, number, ts, dur, flags) in enumerate(rows):
        block["name"][at], block["id"][at], block["ts"][at], block["dur"][at] = strings.intern(name), number, ts, dur
        block["flags"][at], block["kind"][at] = flags, Kind.SPAN
    return block  # type: ignore[no-any-return]


def test_parts_of_a_span_are_one_pass() -> None:
    """Those that a pause has cut; parts of others, and spans of one number that are whole, are not put together."""
    cut = int(Flag.CLIPPED)
    made = Statistics()
    made.add(
        spans(
            ("a", 1, 0, 10, cut), ("a", 1, 100, 20, cut), ("a", 2, 0, 1, 0), ("b", 3, 0, 5, cut), ("a", 4, 50, 7, 0),
            ("step", 5, 0, 1000, int(Flag.NUMBERED)),
        ),
        b"",
    )  # fmt: skip
    assert {row.name: (row.count, round(row.total * 1e6)) for row in made.rows()} == {"a": (3, 38), "b": (1, 5)}
    made.reset()
    assert made.rows() == []


def test_more_names_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted, and those that are known go on."""
    monkeypatch.setattr("stepscope.compat.mxnet.statistics.MAX_NAMES", 2)
    made = Statistics()
    for _ in range(2):
        made.add(
            spans(("room a", 1, 0, 1, 0), ("room b", 2, 0, 1, 0), ("room c", 3, 0, 1, 0), ("room c", 4, 0, 1, 0)), b""
        )
    assert {row.name: row.count for row in made.rows()} == {"room a": 2, "room b": 2}
    assert made.left_out == 4


def test_a_frame_alone_has_no_rate() -> None:
    """There is none before the second begins."""
    series = SpanSeries()
    assert math.isnan(series.rate)
    series.add_passes([(0, 100, 5)])
    assert math.isnan(series.rate) and math.isnan(series.listed()[0].rate)
    series.add_passes([(1, 500_000_100, 5)])
    assert series.rate == pytest.approx(2) == series.listed()[1].rate
