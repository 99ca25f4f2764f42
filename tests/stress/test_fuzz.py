"""Every decoder under arbitrary bytes, and under damaged ones that make sense, briefly; `make fuzz` goes on for long."""

from __future__ import annotations

import functools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stress.fuzz.seeds import seeds
from tests.stress.fuzz.targets import NEEDS, TARGETS
from tests.support.basics import require

seeds_of = functools.cache(seeds)


@pytest.fixture(autouse=True)
def needs(request: pytest.FixtureRequest) -> None:
    """The modules of a target."""
    for module in NEEDS.get(request.node.callspec.params["target"], ()):
        require(module)


@pytest.mark.parametrize("target", TARGETS)
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(data=st.binary(max_size=4096))
def test_arbitrary_bytes(target: str, data: bytes) -> None:
    """Nothing but what the decoder promises comes of them."""
    TARGETS[target](data)


Edit = tuple[int, int, bytes]


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 9),
    edits=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 9), st.binary(max_size=9)), max_size=6),
    cut=st.none() | st.integers(0, 1 << 16),
)
def test_damaged_input(target: str, which: int, edits: list[Edit], cut: int | None) -> None:
    """Bytes of a seed that are changed, left out, added or cut off."""
    known = seeds_of(target)
    data = bytearray(known[which % len(known)])
    for at, length, junk in edits:
        at %= len(data) + 1
        data[at : at + length] = junk
    TARGETS[target](bytes(data if cut is None else data[:cut]))
