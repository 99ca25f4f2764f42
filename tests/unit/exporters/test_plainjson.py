"""JSON text of values from anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.exporters.files.trace_file import dumps
from stepscope.runtime.accounting.ledger import Ledger, SourceLedger
from stepscope.runtime.events.json_values import plain

DATA: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.builds(object)),
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner), st.dictionaries(st.one_of(st.text(), st.integers(), st.booleans()), inner)
    ),
    max_leaves=20,
)


def refuse(name: str) -> float:
    """Called for NaN and Infinity, which JSON does not have."""
    raise AssertionError(f"{name} was written")


@given(DATA)
def test_always_json(value: Any) -> None:
    """Any value becomes one line of JSON, in UTF-8."""
    text = dumps(value)
    assert "\n" not in text
    json.loads(text.encode(), parse_constant=refuse)


@given(
    st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), st.text(st.characters(codec="utf-8"))), st.lists)
)
def test_plain_data_comes_back_unchanged(value: Any) -> None:
    """Plain data is not changed."""
    assert json.loads(dumps(value)) == value


class Colour(Enum):
    """Some enumeration."""

    RED = "red"


class Hostile:
    """Its texts must not be asked for."""

    def __repr__(self) -> str:
        raise AssertionError("repr was called")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Hostile(), "<Hostile>"),
        (b"bytes", "<bytes>"),
        (float("-inf"), "-inf"),
        ("\ud800", "\\ud800"),
        ({1: {Colour.RED: PurePosixPath("a/b")}}, {"1": {"red": "a/b"}}),
        (np.float32(0.5), 0.5),
        (
            Ledger(sources={"a": SourceLedger(1, 1)}).sources,
            {"a": {"produced": 1, "accepted": 1, "dropped": {}, "outside": 0, "superseded": 0, "missing": {}}},
        ),
        ({3}, [3]),
        (2**64, "0x10000000000000000"),
    ],
)
def test_values(value: Any, expected: Any) -> None:
    """Data in types of other libraries are unwrapped; a value that is no data is named by its type."""
    assert plain(value) == expected


def in_list(value: Any) -> Any:
    """The value in a list."""
    return [value]


def in_dict(value: Any) -> Any:
    """The value in a dictionary."""
    return {"k": value}


@pytest.mark.parametrize("wrap", [in_list, in_dict])
def test_depth_and_cycles_end(wrap: Callable[[Any], Any]) -> None:
    """Depth is bounded, and so are cycles."""
    deep: Any = 1
    for _ in range(10_000):
        deep = wrap(deep)
    assert len(dumps(deep)) < 100_000  # whole, where Python encodes lists and dicts of any depth
    cycle: list[Any] = []
    cycle.append(wrap(cycle))
    assert "<" in dumps(cycle)
    cycle.append(cycle)
    assert len(dumps(cycle)) < 10_000_000


def test_containers_that_hold_each_other_many_times() -> None:
    """A small value may stand for 10^16: a bounded number of containers is looked into."""
    tree: list[Any] = []
    tree.extend([tree] * 10)
    assert len(dumps(tree)) < 100_000_000
