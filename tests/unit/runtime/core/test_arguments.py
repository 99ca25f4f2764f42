"""Arguments: every kind of value comes back, bounded and without a leak, no code of the user runs, and damage does no harm."""

from __future__ import annotations

import gc
import math
import struct
import sys
import weakref
from collections import defaultdict
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime._core import instant, span
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Flag
from tests.support.messages import refused
from tests.support.recording import recording, run_program

MAX_VALUE, MAX_BYTES, MAX_ITEMS = 4096, 16384, 256
"""Bounds of one value, of all arguments of an event, and of what one list or dict may hold (`core.h`, `arguments.c`)."""

texts = st.text(st.characters(codec="utf-8"), max_size=50)
numbers = st.integers(-(1 << 63), (1 << 64) - 1)
leaves = st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False), texts)
plain = st.recursive(
    st.one_of(leaves, st.integers(-(1 << 63), (1 << 63) - 1)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=15,
)


def depth_of(value: Any) -> int:
    """How many lists and dicts lie around the innermost value."""
    if not isinstance(value, dict | list):
        return 0
    inner: Any = cast(Any, value)
    return 1 + max(map(depth_of, inner.values() if isinstance(value, dict) else inner), default=0)


def recorded_value(value: Any) -> Any:
    """The value as it comes back."""
    heap = _core.encode_arguments({"value": value})
    return _core.decode_arguments(heap, 0, len(heap))["value"]


def finite(value: Any) -> Any:
    """The value with infinities as texts, as JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    whole: Any = cast(Any, value)
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in whole.items()}
    return [finite(inner) for inner in whole] if isinstance(value, list) else value


@given(arguments=st.dictionaries(texts.filter(lambda name: name != "category"), st.one_of(leaves, numbers), max_size=8))
def test_values_come_back(arguments: dict[str, Any]) -> None:
    """Numbers of 64 bits, truths, nothing and texts, with their types."""
    with recording() as log, span("x"):
        instant("instant", **arguments)
    assert log.rows[0].arguments == arguments
    assert [type(value) for value in log.rows[0].arguments.values()] == [type(value) for value in arguments.values()]


@given(value=plain)
def test_lists_and_dicts_come_back(value: Any) -> None:
    """Up to four levels; what is deeper is named by type and size."""
    if depth_of(value) <= 4:
        assert recorded_value(value) == (finite(value) if isinstance(value, list | dict) else value)
    else:
        assert recorded_value(value) == f"<{type(value).__name__} of {len(value)}>"


class Size(NamedTuple):
    """A tuple, as torch.Size is one."""

    height: int
    width: int


SPECIAL: list[tuple[Any, Any]] = [
    (-(1 << 80), "-1208925819614629174706176"),
    (10**400, "1" + "0" * 400),
    ((1, (2, "3")), [1, [2, "3"]]),
    (Size(3, 4), [3, 4]),
    (defaultdict(int, a=1), {"a": 1}),
    ([math.nan, math.inf, -math.inf, 1e300, 0.1], ["NaN", "inf", "-inf", 1e300, 0.1]),
    (["\ud800", "\x00", "😀", 'q"\\'], ["\\ud800", "\x00", "😀", 'q"\\']),
    (list(range(MAX_ITEMS - 1)), list(range(MAX_ITEMS - 1))),
    (list(range(MAX_ITEMS)), f"<list of {MAX_ITEMS}>"),
    (["x" * MAX_VALUE], "<list of 1>"),
    ([1 << 70], "<list of 1>"),
    ({1: 2}, "<dict of 1>"),
    ([{1, 2}], "<list of 1>"),
    (np.uint64((1 << 64) - 1), (1 << 64) - 1),
    ([np.float16(2), np.int8(1), np.bool_(False)], [2.0, 1, False]),
    (np.zeros(3), "<numpy.ndarray>"),
    (np.complex64(1j), "1j"),
    (b"bytes", "<bytes>"),
]


@pytest.mark.parametrize(("value", "wanted"), SPECIAL, ids=lambda value: ascii(value)[:30])
def test_special_values(value: Any, wanted: Any) -> None:
    """A value that is not plain is recorded as the nearest one, or named by its type; an int beyond 64 bits as its digits."""
    result = recorded_value(value)
    assert (result, type(result)) == (wanted, type(wanted))
    assert math.isnan(recorded_value(math.nan))


def test_large_numbers_run_no_code_and_are_counted_when_cut() -> None:
    """A subclass's idea of its digits is not asked for; what has too many of them is counted."""

    class Named(int):
        def __repr__(self) -> str:
            raise AssertionError("code of the user ran")

        __str__ = __index__ = __repr__  # type: ignore[assignment]

    before = _core.counts()["values_cut"]
    assert recorded_value(Named(1 << 70)) == str(1 << 70)
    assert _core.counts()["values_cut"] == before
    assert recorded_value(10**5000) == "<int>"
    assert _core.counts()["values_cut"] == before + 1


class Hostile(dict[Any, Any]):
    """An object none of whose methods may be called."""

    def fail(self, *_: object) -> NoReturn:
        """Fails the test."""
        raise AssertionError("code of the user ran")

    __repr__ = __str__ = __len__ = __bool__ = __iter__ = __getitem__ = __eq__ = fail
    __float__ = __int__ = __index__ = __hash__ = __format__ = __contains__ = keys = items = fail  # type: ignore[assignment]


def test_no_code_of_the_user_runs() -> None:
    """A tensor's `repr` waits for its device, so nothing of a value is called."""
    hostile = Hostile({1: 2, 3: 4})
    opaque: Any = type(
        "Ö" * 80, (), {name: Hostile.fail for name in ("__repr__", "__len__", "__float__", "__index__")}
    )()
    counts = _core.counts()
    with recording() as log, span("span", hostile=hostile, opaque=opaque, inside=[opaque, hostile]):
        pass
    assert log.spans[0].arguments == {
        "hostile": "<Hostile of 2>", "opaque": f"<{'Ö' * 50}>", "inside": "<list of 2>"
    }  # fmt: skip
    now = _core.counts()
    assert now["arguments_opaque"] == counts["arguments_opaque"] + 1
    assert now["values_cut"] == counts["values_cut"] + 2


@pytest.mark.parametrize(("number", "inline"), [(0, True), ((1 << 32) - 1, True), (1 << 32, False), (-1, False)])
def test_one_small_number_is_in_the_record(number: int, inline: bool) -> None:
    """The usual argument costs no further slot."""
    with recording() as log, span("x", number=number):
        pass
    (row,) = log.rows
    assert row.arguments == {"number": number} and bool(row.flags & Flag.ARG_INLINE) == inline


def test_values_count_as_they_are_at_the_end() -> None:
    """A span holds its arguments by reference: what is added to a list meanwhile is seen."""
    losses: list[float] = []
    with recording() as log, span("step", losses=losses):
        losses.append(0.5)
    assert log.spans[0].arguments == {"losses": [0.5]}


@given(character=st.sampled_from("aé€😀"), before=st.integers(0, 3))
def test_long_texts_are_cut_between_characters(character: str, before: int) -> None:
    """4096 bytes of a value are stored, less a character that would be cut in two."""
    text = "x" * before + character * MAX_VALUE
    cut = _core.counts()["values_cut"]
    heap = _core.encode_arguments({"text": text})
    value = _core.decode_arguments(heap, 0, len(heap))["text"]
    assert text.startswith(value) and MAX_VALUE - 4 < len(value.encode()) <= MAX_VALUE
    assert _core.counts()["values_cut"] == cut + (len(text.encode()) > MAX_VALUE)


def test_all_arguments_together_are_bounded() -> None:
    """Those that do not fit any more are left out and counted; later, smaller ones still come."""
    cut = _core.counts()["arguments_cut"]
    long = {f"long {number}": "x" * MAX_VALUE for number in range(6)}
    with recording() as log, span("many", **long, small=1, category="c"):
        pass
    assert log.spans[0].arguments == {f"long {number}": "x" * MAX_VALUE for number in range(3)} | {"small": 1}
    assert _core.counts()["arguments_cut"] == cut + 3


def test_references_are_released() -> None:
    """Nothing keeps an argument alive, whether the span was entered, left by an exception or never used."""
    value, text = object(), f"a text of its own {id(object())}"
    before = sys.getrefcount(value), sys.getrefcount(text)
    with recording():
        for _ in range(100):
            span("unused", value=value, text=text)
            instant("instant", value=value, text=text)
            with span("span", value=value, text=text, third=3, fourth=4, fifth=value):
                pass
            with pytest.raises(ValueError), span("failing", value=value, text=text):
                raise ValueError
            with pytest.raises(TypeError):
                span("wrong", value=value, category=value)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
            with (nested := span("nested", value=value)), nested, nested.copy():
                methods = [nested.__enter__, nested.__enter__, nested.__exit__]
            del nested, methods
            span("never left", value=value).__enter__()
    assert (sys.getrefcount(value), sys.getrefcount(text)) == before


def test_circles_are_collected() -> None:
    """A span whose argument refers back to it is no leak."""

    class Owner:
        span: Any

    owner = Owner()
    owner.span = span("owned", owner=owner, more=[owner])
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


@given(heap=st.binary(max_size=80), at=st.integers(0, 90), length=st.integers(0, 90))
def test_damaged_arguments_do_no_harm(heap: bytes, at: int, length: int) -> None:
    """Any bytes decode to something, or raise ValueError if they are not there."""
    if at + length > len(heap):
        with refused(ValueError, at, length, len(heap), snapshot=False):  # the values are hypothesis's
            _core.decode_arguments(heap, at, length)
    else:
        assert isinstance(_core.decode_arguments(heap, at, length), dict)


def test_damaged_json_is_shown_as_it_is() -> None:
    """An argument that claims to be JSON and is not stays text."""
    key = strings.intern("key")
    for text in (b"{", b"[" * 60_000, b"1" * 5000, b"\xff"):
        heap = struct.pack("<IHBB", key, len(text), ord("j"), 0) + text
        assert _core.decode_arguments(heap, 0, len(heap)) == {"key": text.decode(errors="replace")}


def test_arguments_larger_than_a_ring() -> None:
    """The event is recorded without them, and that is counted."""
    (outcome,) = run_program(
        """
        with span("large", **{f"key {number}": "x" * 4000 for number in range(4)}):
            pass
        log.drain()
        print_json([[row.name, row.arguments] for row in log.rows] + [_core.counts()["arguments_cut"]])
        """,
        options="ring_slots=64, ring_bytes=4096",
    )
    assert outcome == [["large", {}], 1]
