"""Running statistics: exact counts and sums, quantiles within the stated error, bounded, safe on many threads."""

from __future__ import annotations

import os
import statistics
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime._core import Aggregates
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind, empty_block

ERROR = 1 / 128
FIRST = strings.FIRST_NAME
MAX_KEYS = 65_536
LONGEST = 2**63 - 1

durations = st.one_of(st.integers(0, 300), st.integers(0, 10**10), st.integers(0, LONGEST))
spans = st.lists(st.tuples(st.integers(FIRST, FIRST + 3), st.integers(0, 2), durations, st.integers(0, 10**9)))


class Row(msgspec.Struct, frozen=True):
    """One row of `Aggregates.rows()`."""

    name: int
    category: int
    count: int
    total: int
    self: int
    min: int
    max: int
    p50: float
    p95: float
    p99: float
    std: float


def block(kind: Kind, values: Sequence[tuple[Any, ...]], fields: Sequence[str]) -> Block:
    """Events of one kind with these fields."""
    events: Any = empty_block(len(values))
    events["kind"] = kind
    for i, field in enumerate(fields):
        events[field] = [value[i] for value in values]
    return events  # type: ignore[no-any-return]


def span_block(values: Sequence[tuple[int, int, int, int]]) -> Block:
    """Spans of (name, category, duration, self time)."""
    return block(Kind.SPAN, values, ["name", "category", "dur", "self_dur"])


def counter_block(values: Sequence[float], start: int = 0) -> Block:
    """A counter's values, 1 ns apart."""
    return block(Kind.COUNTER, [(FIRST, start + i, value) for i, value in enumerate(values)], ["name", "ts", "value"])


def of(*blocks: Block) -> Aggregates:
    """The statistics of these blocks."""
    aggregates = Aggregates()
    for events in blocks:
        aggregates.update(events)
    return aggregates


def rows(aggregates: Aggregates) -> dict[tuple[int, int], Row]:
    """The rows by name and category."""
    return {(row[0], row[1]): Row(*row) for row in aggregates.rows()}


@given(st.lists(spans, max_size=4))
def test_spans_add_up_exactly_and_quantiles_keep_their_error(blocks: list[list[tuple[int, int, int, int]]]) -> None:
    """Against numpy: counts, sums and extremes are exact, quantiles are nearest-rank within 1/128."""
    aggregates = Aggregates()
    expected: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for values in blocks:
        aggregates.update(span_block(values))
        for name, category, duration, own in values:
            expected[name, category].append((duration, own))
    found = rows(aggregates)
    assert found.keys() == expected.keys()
    for key, pairs in expected.items():
        row, lengths = found[key], np.sort(np.array([duration for duration, _ in pairs]))
        assert row.count == len(pairs)
        assert row.total == min(sum(lengths.tolist()), LONGEST)
        assert row.self == sum(own for _, own in pairs)
        assert (row.min, row.max) == (lengths[0], lengths[-1])
        for percent, value in ((50, row.p50), (95, row.p95), (99, row.p99)):
            exact = int(lengths[-(-len(lengths) * percent // 100) - 1])
            assert abs(value - exact) <= exact * ERROR


@given(st.lists(st.lists(st.integers(0, 10**12), min_size=1, max_size=20), min_size=1, max_size=4))
def test_the_standard_deviation_is_that_of_all_durations(blocks: list[list[int]]) -> None:
    """However they are cut into blocks and tables; also of long durations that differ little."""
    whole = Aggregates()
    for values in blocks:
        one = of(span_block([(FIRST, 0, value, 0) for value in values]))
        whole.merge(one)
    every = [value for values in blocks for value in values]
    assert rows(whole)[FIRST, 0].std == pytest.approx(statistics.pstdev(every), rel=1e-9)
    alike = of(span_block([(FIRST, 0, 10**12 + value % 2 * 1000, 0) for value in range(1000)]))
    assert rows(alike)[FIRST, 0].std == pytest.approx(500, rel=1e-9)


def test_the_error_of_quantiles_is_as_stated_over_the_whole_range() -> None:
    """Values near every border between buckets, in one key with tiny and huge neighbours."""
    edges = sorted({(64 + sub) << shift for shift in range(57) for sub in (0, 1, 31, 62, 63)})
    for edge in edges:
        for value in (edge - 1, edge, edge + 1):
            aggregates = of(span_block([(FIRST, 0, d, 0) for d in (0, value, LONGEST)]))
            assert abs(rows(aggregates)[FIRST, 0].p50 - value) <= value * ERROR


@given(spans, spans)
def test_merging_is_the_same_as_seeing_all(
    left: list[tuple[int, int, int, int]], right: list[tuple[int, int, int, int]]
) -> None:
    """Statistics of windows can be added up to those of the run."""
    one, both = of(span_block(left)), of(span_block(left + right))
    one.merge(of(span_block(right)))
    assert sorted(one.rows()) == sorted(both.rows())
    assert one.counts() == both.counts()


def test_merging_with_itself_doubles() -> None:
    """It neither hangs nor loses anything."""
    aggregates = of(span_block([(FIRST, 0, 10, 5)]))
    aggregates.merge(aggregates)
    assert aggregates.rows() == [(FIRST, 0, 2, 20, 10, 10, 10, 10.0, 10.0, 10.0, 0.0)]


@given(st.lists(st.floats(-1e100, 1e100), min_size=1))
def test_counters_against_numpy(values: list[float]) -> None:
    """Extremes and the last value are exact, sum and mean within rounding."""
    aggregates = of(counter_block(values))
    [(_, _, count, low, high, last, mean, total)] = aggregates.counter_rows()
    assert (count, low, high, last) == (len(values), min(values), max(values), values[-1])
    slack = float(np.abs(values).sum()) * 1e-15
    assert abs(total - float(np.sum(values))) <= 2 * slack
    assert abs(mean - float(np.mean(values))) <= 2 * slack


def test_the_last_value_of_a_counter_is_the_latest() -> None:
    """Blocks of several threads arrive in any order."""
    aggregates = of(counter_block([7.0], start=100), counter_block([1.0, 2.0], start=50))
    assert aggregates.counter_rows()[0][5] == 7.0


def test_counter_values_that_are_not_finite_are_left_out_and_counted() -> None:
    """One NaN does not spoil the mean of a run."""
    aggregates = of(counter_block([1.0, float("nan"), float("inf"), 3.0, float("-inf")]))
    assert aggregates.counter_rows() == [(FIRST, 0, 2, 1.0, 3.0, 3.0, 2.0, 4.0)]
    assert aggregates.counts()["not_finite"] == 3


def test_kinds_of_one_name_have_own_rows() -> None:
    """A span, a counter and an instant may share a name; other kinds are not counted at all."""
    aggregates = Aggregates()
    for kind in Kind:
        aggregates.update(block(kind, [(FIRST, 3), (FIRST, 3)], ["name", "dur"]))
    assert [row[2] for row in aggregates.rows()] == [2]
    assert [row[2] for row in aggregates.counter_rows()] == [2]
    assert aggregates.instant_rows() == [(FIRST, 0, 2)]


def test_negative_times_count_as_nothing_and_are_counted() -> None:
    """Clocks that run backwards must not subtract from a sum."""
    aggregates = of(span_block([(FIRST, 0, -5, 3), (FIRST, 0, 7, -1), (FIRST, 0, -(2**63), -(2**63))]))
    row = rows(aggregates)[FIRST, 0]
    assert (row.count, row.total, row.self, row.min, row.max) == (3, 7, 3, 0, 7)
    assert aggregates.counts()["negative"] == 3


def test_spans_that_were_cut_are_counted() -> None:
    """Clipped and open spans are part of the sums, and their number is shown."""
    aggregates = Aggregates()
    events: Any = span_block([(FIRST, 0, 5, 5)] * 4)
    events["flags"] = [0, Flag.CLIPPED, Flag.OPEN | Flag.CLIPPED, Flag.ERROR | Flag.ASYNC]
    aggregates.update(events)
    assert aggregates.counts()["cut"] == 2
    assert rows(aggregates)[FIRST, 0].count == 4


def test_names_beyond_the_limit_share_one_row() -> None:
    """Memory is bounded, and nothing is lost from the sums, also by merging."""
    extra = 1000
    names = 2**18 + np.arange(MAX_KEYS + extra)
    events: Any = empty_block(len(names))
    events["kind"], events["name"], events["dur"], events["self_dur"] = Kind.SPAN, names, 3, 1
    aggregates, more = Aggregates(), Aggregates()
    aggregates.update(events)
    assert aggregates.counts()["other"] == extra
    found = aggregates.rows()
    assert len(found) == MAX_KEYS + 1
    assert [row[2:5] for row in found if strings.text(row[0]) == "(other names)"] == [(extra, 3 * extra, extra)]
    events["name"] += 2**19
    more.update(events)
    aggregates.merge(more)
    assert len(aggregates.rows()) == MAX_KEYS + 1
    assert sum(row[2] for row in aggregates.rows()) == 2 * len(names)


def test_quantiles_stay_bounded_in_memory() -> None:
    """Names with durations of every size use up the buckets; sums stay exact, and the blur is counted."""
    lengths = [1 << shift for shift in range(0, 63, 2)]
    aggregates = Aggregates()
    count = 20_000
    for length in lengths:
        events: Any = empty_block(count)
        events["kind"], events["name"], events["dur"] = Kind.SPAN, np.arange(FIRST, FIRST + count), length
        aggregates.update(events)
    assert aggregates.counts()["blurred"] > 0
    for row in aggregates.rows()[:: count // 50]:
        assert row[2:4] == (len(lengths), sum(lengths))
        assert (row[5], row[6]) == (lengths[0], lengths[-1])
        assert lengths[0] <= row[7] <= row[8] <= row[9] <= lengths[-1]


def test_blocks_are_contiguous_and_whole() -> None:
    """Memory need not be aligned; strided memory and half an event are refused."""
    events = span_block([(FIRST, 0, 10, 10), (FIRST, 0, 20, 20), (FIRST, 0, 30, 30)])
    aggregates = of(np.frombuffer(b"x" + events.tobytes(), events.dtype, offset=1))
    wrongs: tuple[tuple[Any, type[Exception], str], ...] = (
        (events[::2], ValueError, "contiguous"),
        (bytes(65), ValueError, "65"),
        (5, TypeError, "int"),
    )
    for wrong, error, word in wrongs:
        with pytest.raises(error, match=word):
            aggregates.update(wrong)
    with pytest.raises(TypeError, match="Aggregates"):
        aggregates.merge([])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    assert rows(aggregates)[FIRST, 0].total == 60


def test_readers_see_whole_updates_only() -> None:
    """Threads that update, read and merge at the same time neither lose nor tear anything."""
    aggregates, sums = Aggregates(), Aggregates()
    events = span_block([(FIRST, 0, 10, 4)] * 2000)
    rounds, torn, done = 50, [0], threading.Event()

    def write() -> None:
        for _ in range(rounds):
            aggregates.update(events)

    def read() -> None:
        while not done.is_set():
            for row in aggregates.rows():
                torn[0] += row[2] % 2000 != 0 or row[3] != 10 * row[2] or row[4] != 4 * row[2]
            sums.merge(aggregates)

    writers = [threading.Thread(target=write) for _ in range(3)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert torn == [0]
    assert rows(aggregates)[FIRST, 0].count == 3 * rounds * 2000


def test_a_table_takes_memory_for_its_keys_only() -> None:
    """A profiler keeps hundreds of tables, of few keys each; also where the allocator serves large sizes from its heap,
    which it does once it has taken one back."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    Aggregates().update(empty_block(1 << 18))  # its block is released here
    few = empty_block(3)
    few["kind"], few["name"], few["dur"] = int(Kind.SPAN), [FIRST, FIRST + 1, FIRST + 2], [10, 1000, 100_000]
    before = resident()
    tables = [Aggregates() for _ in range(300)]
    for table in tables:
        table.update(few)
        Aggregates().merge(table)
    assert resident() - before < 300 * 64 << 10
