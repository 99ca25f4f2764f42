"""The aggregate table as text: aligned whatever names contain, and the same numbers in every format."""

from __future__ import annotations

import json
import re
import unicodedata
from io import StringIO
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime._core import Aggregates
from stepscope.runtime.display.text_table import (
    Column,
    columns,
    human_count,
    human_number,
    human_time,
    markdown_code,
    printable,
    shorten,
    text_table,
)
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind, empty_block
from stepscope.runtime.windows.step_parts import RUNNING
from stepscope.runtime.windows.step_statistics import Part, StepStatistics
from stepscope.runtime.windows.summary import (
    FORMATS,
    NAME_WIDTH,
    NUMBERS_WIDTH,
    SORT_KEYS,
    InstantRow,
    Summary,
    SummaryRow,
)
from tests.support.messages import refused

names = st.text(st.characters(codec="utf-8"), max_size=60)


def row(name: str, self_ns: int = 1000, count: int = 1, **changes: Any) -> SummaryRow:
    """A row of a name, with plain defaults."""
    values: dict[str, Any] = {
        "category": "cpu_op",
        "total_ns": 2000,
        "min_ns": 1,
        "max_ns": 2,
        "mean_ns": 1.5,
        "p50_ns": 1.0,
        "p95_ns": 2.0,
        "p99_ns": 2.0,
    }
    return SummaryRow(name=name, self_ns=self_ns, count=count, **(values | changes))


def recorded() -> Summary:
    """The summary of two kinds of span, a counter and an instant."""
    aggregates = Aggregates()
    events: Any = empty_block(9)
    events["kind"] = [Kind.SPAN] * 4 + [Kind.COUNTER] * 4 + [Kind.INSTANT]
    events["name"] = [strings.intern(name) for name in ["mul", "mul", "mul", "add"] + ["loss"] * 4 + ["checkpoint"]]
    events["category"] = strings.category("cpu_op")
    events["ts"] = range(9)
    events["dur"][:4] = [1000, 2000, 3000, 50_000]
    events["self_dur"][:4] = [1000, 2000, 3000, 4000]
    events["value"][4:8] = [10.0, 15.0, 12.0, float("nan")]
    aggregates.update(events)
    return Summary.of(aggregates)


def test_rows_have_the_recorded_statistics() -> None:
    """Names instead of ids, the mean, and the largest self time first."""
    summary = recorded()
    assert [(row.name, row.category, row.count) for row in summary.rows] == [("mul", "cpu_op", 3), ("add", "cpu_op", 1)]
    mul = summary.rows[0]
    assert (mul.total_ns, mul.self_ns, mul.min_ns, mul.max_ns, mul.mean_ns) == (6000, 6000, 1000, 3000, 2000.0)
    assert abs(mul.p50_ns - 2000) <= 2000 / 128
    assert [(c.name, c.count, c.last, c.sum) for c in summary.counters] == [("loss", 3, 12.0, 37.0)]
    assert summary.instants == (InstantRow("checkpoint", "cpu_op", 1),)
    assert summary.counts == {"not_finite": 1}


def test_the_table_for_a_terminal() -> None:
    """Columns are aligned, units are for people, shares are of the time that was recorded."""
    assert msgspec.structs.replace(recorded(), recorded_ns=20_000).table() == (
        "20.0us recorded, without steps\n"
        "\n"
        "Name  Category  Count    Self  Time %   Total    Mean     Min     P50     P95     P99     Max\n"
        "----  --------  -----  ------  ------  ------  ------  ------  ------  ------  ------  ------\n"
        "mul   cpu_op        3  6.00us   30.0%  6.00us  2.00us  1.00us  2.01us  3.00us  3.00us  3.00us\n"
        "add   cpu_op        1  4.00us   20.0%  50.0us  50.0us  50.0us  50.0us  50.0us  50.0us  50.0us\n"
        "\n"
        "4 spans, 10.0us self time\n"
        "counter values left out because they are no finite numbers: 1\n"
        "\n"
        "Counter  Category  Values  Last   Mean  Min  Max  Sum\n"
        "-------  --------  ------  ----  -----  ---  ---  ---\n"
        "loss     cpu_op         3    12  12.33   10   15   37\n"
        "\n"
        "Instant     Category  Count\n"
        "----------  --------  -----\n"
        "checkpoint  cpu_op        1\n"
    )


@pytest.mark.checklist("D9")
def test_steps_come_first_and_other_processes_last() -> None:
    """Parts add up to the step, shares are of the steps' time, and workers have none."""
    steps = StepStatistics(
        steps=12,
        steady=10,
        mean=1e6,
        p50=9e5,
        p95=2e6,
        rate=1e3,
        slowest=7,
        slowest_ns=3e6,
        slowest_why="2.00ms more in data",
    )
    summary = Summary(
        rows=(row("load", self_ns=6_000_000),),
        steps=steps,
        parts=(Part("data", 6_000_000, 0.6), Part(RUNNING, 4_000_000, 0.4)),
        elsewhere=tuple(row(f"worker {number}") for number in range(7)),
        startup_ns=3 * 10**9,
        steps_ns=12_000_000,
        recorded_ns=3 * 10**9 + 12_000_000,
    )
    lines = summary.table().splitlines()
    assert lines[:3] == [
        "12 steps: mean 1.00ms, p50 900us, p95 2.00ms, 1,000 steps/s, without the first 2",
        "slowest: step 7, 3.00ms: 2.00ms more in data",
        "beside steps: startup 3.00s",
    ]
    cells = [re.split(r" {2,}", line) for line in lines[6:9]]
    assert cells == [
        ["data", "600us", "60.0%"],
        ["not covered by any span, running", "400us", "40.0%"],
        ["a step", "1.00ms", "100.0%"],
    ]
    # Rows also have spans of the startup, so that their shares are of all that was recorded.
    assert lines[10].split()[:6] == ["Name", "Category", "Count", "Self", "Time", "%"] and "0.2%" in lines[12]
    without = msgspec.structs.replace(summary, startup_ns=0).table().splitlines()
    assert without[9].split()[:6] == ["Name", "Category", "Count", "Self", "Steps", "%"] and "50.0%" in without[11]
    at = lines.index("1 span, 6.00ms self time")
    assert lines[at + 2].startswith("Other processes") and "%" not in "".join(lines[at:])
    assert "2 of 7 rows are not shown" in lines[at:]
    assert "| data | 600us | 60.0% |" in summary.markdown()
    data = json.loads(summary.json())
    assert data["steps"]["slowest"] == 7 and data["parts"][0] == {"name": "data", "total_ns": 6_000_000, "share": 0.6}


def test_markdown_has_full_names_and_the_same_numbers() -> None:
    """Names are code, whatever they contain; nothing is shortened."""
    name = "a|b`c" + "d" * 100
    text = Summary((row(name, self_ns=4000),)).markdown()
    head, rule, line = text.splitlines()[:3]
    assert head.startswith("| Name | Category | Count | Self |")
    assert rule.startswith("| --- | --- | ---: | ---: |")
    assert line.startswith(f"| ``a\\|b`c{'d' * 100}`` | `cpu_op` | 1 | 4.00us | 2.00us |")


def test_json_gives_all_rows_in_full_precision() -> None:
    """The JSON can be read back into the same summary."""
    summary = Summary(tuple(row(f"op{i}", self_ns=i, mean_ns=1 / 3) for i in range(50, 0, -1)))
    data = json.loads(summary.json())
    assert [SummaryRow(**entry) for entry in data["rows"]] == list(summary.rows)
    assert [entry["name"] for entry in json.loads(summary.json("name", top=2))["rows"]] == ["op1", "op10"]


def test_a_summary_of_nothing_says_so() -> None:
    """Every format works without any row."""
    empty = Summary.of(Aggregates())
    assert empty == Summary()
    assert empty.table() == "no spans were recorded\n"
    assert empty.markdown() == "- no spans were recorded\n"
    data = json.loads(empty.json())
    assert data | {"rows": [], "counters": [], "instants": [], "counts": {}} == data


@pytest.mark.parametrize("key", SORT_KEYS)
def test_every_key_sorts(key: str) -> None:
    """Numbers with the largest first, texts from A to Z; equal rows by name, so that two alike runs have one table."""
    numbers = [("b", 3), ("d", 1), ("c", 1), ("a", 2)]
    rows = [
        SummaryRow(name, name, n, n * 10, n * 10, n * 10, n * 10, n * 10.0, n * 10.0, n * 10.0, n * 10.0)
        for name, n in numbers
    ]
    shown = [entry["name"] for entry in json.loads(Summary(tuple(rows)).json(key))["rows"]]
    assert shown == (["a", "b", "c", "d"] if key in ("name", "category") else ["b", "a", "c", "d"])


def test_top_says_how_much_is_left_out() -> None:
    """A table never looks complete when it is not; shares are of all rows."""
    text = Summary(tuple(row(f"op{i}", self_ns=1000) for i in range(10)), recorded_ns=10_000).table(top=4)
    assert "6 of 10 rows are not shown" in text
    assert text.count("10.0%") == 4
    assert "10 spans, 10.0us self time" in text


@pytest.mark.parametrize("format", FORMATS)
def test_render_is_each_format_by_name(format: str) -> None:
    """`render` and the methods give the same text, and refuse the same values."""
    summary = recorded()
    assert summary.render("name", 1, format) == getattr(summary, format)("name", 1)
    with refused(ValueError, "avg", "self", "total", "category"):
        summary.render("avg", 1, format)
    with refused(ValueError, "top", "0"):
        summary.render(top=0, format=format)
    with refused(TypeError, "top", "2.5"):
        summary.render(top=2.5, format=format)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with refused(ValueError, "csv", *FORMATS):
        summary.render(format="csv")


@given(st.lists(names, min_size=1, max_size=8))
def test_no_name_breaks_the_table(texts: list[str]) -> None:
    """One line for each row, and every line's columns begin where the title's do."""
    lines = Summary(tuple(row(text) for text in texts)).table().split("\n")
    rule = lines[1]
    assert max(len(part) for part in rule.split("  ")[:1]) <= NAME_WIDTH
    start = rule.index("  ") + 2
    shown = len(set(lines[2 : 2 + len(texts)]))
    assert shown >= 1
    for line in lines[2 : 2 + len(texts)]:
        assert not any(unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") for c in line)
        label, _, rest = line.rpartition("cpu_op")
        assert columns(label) == start
        assert re.fullmatch(r" +1 .*", rest)


def test_a_wide_terminal_shows_long_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has no room for them they are shortened in the middle."""
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    for wide, shown in ((80, False), (len(name) + NUMBERS_WIDTH - 1, False), (len(name) + NUMBERS_WIDTH, True)):
        monkeypatch.setenv("COLUMNS", str(wide))
        text = Summary((row(name),)).table()
        assert (name in text) is shown
        assert wide < NAME_WIDTH + NUMBERS_WIDTH or max(map(len, text.splitlines())) <= wide


@given(names)
def test_no_name_breaks_markdown(text: str) -> None:
    """One line, with as many cells as the title has, once escaped pipes are removed."""
    lines = Summary((row(text),)).markdown().split("\n")
    assert lines[2].replace("\\|", "").count("|") == lines[0].count("|")
    assert printable(lines[2]) == lines[2]


@pytest.mark.parametrize(
    ("text", "width"),
    [("add", 3), ("加算", 4), ("🎉", 2), ("❤\ufe0f", 2), ("e\u0301", 1), ("🇩🇪", 2), ("ｱ", 1), ("", 0)],
)
def test_columns_of_a_terminal(text: str, width: int) -> None:
    """Wide characters take two columns, marks none."""
    assert columns(text) == width


@given(names.map(printable), st.integers(10, 40))
def test_shortening_keeps_both_ends(text: str, limit: int) -> None:
    """It fits, and begins and ends as the text does; what fits is not touched."""
    short = shorten(text, limit)
    assert columns(short) <= limit
    if columns(text) <= limit:
        assert short == text
    else:
        cuts = [at for at in range(len(short)) if short.startswith("...", at)]
        assert any(text.startswith(short[:at]) and text.endswith(short[at + 3 :]) for at in cuts)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((human_time(ns), text) for ns, text in [
            (0, "0ns"), (7.4, "7ns"), (999.4, "999ns"), (999.5, "1.00us"), (1234, "1.23us"), (9996, "10.0us"),
            (45_600, "45.6us"), (99_960, "100us"), (999_600, "1.00ms"), (5e9, "5.00s"), (3.6e12, "3,600s"),
        ]),
        *((human_number(value), text) for value, text in [
            (0.0, "0"), (27.3333, "27.33"), (-0.00123456, "-0.001235"), (100.0, "100"), (123456.0, "123,456"),
            (1e20, "1e+20"),
        ]),
        (human_count(1, "step"), "1 step"),
        (human_count(0, "step"), "0 steps"),
        (human_count(12345, "process", "es"), "12,345 processes"),
        # Template arguments at the end tell kernels apart as much as the beginning does.
        (shorten("void gemm_kernel<float, 128, 256, true>(Params)", 24), "void gemm_k...e>(Params)"),
    ],
)  # fmt: skip
def test_values_for_people(text: str, expected: str) -> None:
    """Times have three digits and a unit, also just below the next unit; numbers four, or are whole; one has no plural."""
    assert text == expected


def test_a_table_refuses_ragged_rows() -> None:
    """A cell too few is a fault, not a shifted column."""
    with pytest.raises(ValueError, match="zip"):
        text_table([Column("A"), Column("B")], [["1"]])


def test_code_in_markdown() -> None:
    """The fence is longer than any run of backticks inside, and a blank name is no code."""
    assert markdown_code("a``b") == "```a``b```"
    assert markdown_code("`x`") == "`` `x` ``"
    assert markdown_code("x\ny\u202ez") == "`x\\ny\\u202ez`"
    assert markdown_code("  ") == ""


class Terminal(StringIO):
    """One in memory."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_narrow_terminal_has_fewer_columns(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line fits, and what is left out is what says least."""
    row = SummaryRow("n" * 60, "user_annotation", 1234, *[10**9] * 8)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout", Terminal())
    lines = Summary(rows=(row,), recorded_ns=10**9).table().splitlines()
    assert max(map(len, lines)) <= width
    assert all(title in lines[2] for title in ("Count", "Self", "Total", "Max"))
    assert ("P99" in lines[2]) is (width == 140)
