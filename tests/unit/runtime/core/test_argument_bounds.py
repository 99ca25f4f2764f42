"""Arguments: bounded, no leak, and harmless when they are damaged."""

from __future__ import annotations

import gc
import struct
import sys
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime._core import instant, span
from stepscope.runtime.events import strings
from tests.support.messages import refused
from tests.support.recording import recording, run_program

MAX_VALUE = 4096
"""Bytes that are kept of one value (`core.h`)."""


@given(character=st.sampled_from("aé€😀"), before=st.integers(0, 3))
def test_long_texts_are_cut_between_characters(character: str, before: int) -> None:
    """4096 bytes of a value are kept, less a character that would be cut in two."""
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


def test_references_are_given_back() -> None:
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
                pass
            del nested
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
    """The event is kept without them, and that is counted."""
    (outcome,) = run_program(
        """
        with span("large", **{f"key {number}": "x" * 4000 for number in range(4)}):
            pass
        log.take()
        tell([[row.name, row.arguments] for row in log.rows] + [_core.counts()["arguments_cut"]])
        """,
        options="ring_slots=64, ring_bytes=4096",
    )
    assert outcome == [["large", {}], 1]
