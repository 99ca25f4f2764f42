"""Events without duration: instants, counters and flows."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from stepscope.runtime import _core
from stepscope.runtime._core import counter, flow, instant, span
from stepscope.runtime.events.record import Flag, Kind
from tests.support.messages import refused
from tests.support.recording import recording


def test_instants() -> None:
    """A moment with arguments, inside of what is open."""
    with recording() as log, span("around"):
        before = _core.now()
        instant("moment", category="c", loss=0.5, tags=["a"])
        after = _core.now()
    (row,) = log.of(Kind.INSTANT)
    assert (row.name, row.category, row.arguments) == ("moment", "c", {"loss": 0.5, "tags": ["a"]})
    assert before <= row.ts <= after and (row.dur, row.flags, row.step) == (0, Flag(0), -1)
    around = log.span("around")
    assert (row.parent, row.track) == (around.id, around.track)
    assert around.self_dur == around.dur


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1, 1.0), (True, 1.0), (-2.5, -2.5), (math.inf, math.inf), (-math.inf, -math.inf), (1 << 60, float(1 << 60)),
        (np.float32(0.25), 0.25), (np.int64(3), 3.0), (np.array(4.0), 4.0), (Decimal("1.5"), 1.5),
    ],
)  # fmt: skip
def test_counters(value: Any, wanted: float) -> None:
    """Any number, and whatever can be made one."""
    with recording() as log:
        counter("loss", value, category="metrics")
    (row,) = log.rows
    assert (row.kind, row.name, row.category, row.value, row.flags) == (
        Kind.COUNTER,
        "loss",
        "metrics",
        wanted,
        Flag(0),
    )


@pytest.mark.parametrize("value", [math.nan, "3", None, [], 10**400, object(), np.zeros(2), 1j])
def test_counters_without_a_number(value: Any) -> None:
    """They show NaN, and what was no number is counted; training goes on."""
    opaque = _core.counts()["counter_values_that_are_no_number"]
    with recording() as log:
        counter("loss", value)
    assert math.isnan(log.rows[0].value)
    assert log.rows[0].flags == (Flag(0) if isinstance(value, float) else Flag.NO_NUMBER)
    assert _core.counts()["counter_values_that_are_no_number"] == opaque + (not isinstance(value, float))


def test_flows() -> None:
    """An arrow from span to span: the same id at each of its points, and any whole number is one."""
    with recording() as log:
        for number in (0, 7, (1 << 64) - 1, -1, 1 << 70):
            for phase in ("start", "step", "end"):
                with span(phase):
                    flow("arrow", number, phase, category="c")
    points = [row for row in log.rows if row.name == "arrow"]
    assert [row.kind for row in points] == [Kind.FLOW_START, Kind.FLOW_STEP, Kind.FLOW_END] * 5
    assert [row.id for row in points[::3]] == [0, 7, (1 << 64) - 1, (1 << 64) - 1, 0]
    assert [row.parent for row in points] == [row.id for row in log.spans]
    assert {row.category for row in points} == {"c"}


@pytest.mark.parametrize("recorded", [True, False])
def test_misuse_of_flows_is_named(recorded: bool) -> None:
    """Whether anything records or not."""
    wrong: Any = 1.5
    with recording() as log:
        log.record(recorded)
        for phase in ("begin", "", "start\0", "\ud800"):
            with refused(ValueError, "phase", "'start'", "'step'", "'end'"):
                flow("x", 1, phase)
        with refused(ValueError, "phase", "'start'", "'step'", "'end'", "1.5"):
            flow("x", 1, wrong)
        with refused(TypeError, "id", "1.5"):
            flow("x", wrong, "start")
        with refused(TypeError, "flow(name, id, phase", "1"):
            flow("x")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    assert log.rows == []
