"""The table of names: one id per text for ever, bounded, whatever the text is."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime import _core
from stepscope.runtime._core import MAX_NAME, counter, instant, span
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind
from tests.support.messages import refused
from tests.support.recording import recording, run_program

any_text = st.text(st.characters(codec=None), max_size=MAX_NAME // 6)


@given(text=any_text)
def test_texts_come_back(text: str) -> None:
    """Every text has one id, what UTF-8 cannot hold is shown as Python would write it; names and categories are numbered apart."""
    name, category = strings.intern(text), strings.category(text)
    shown = text.encode("utf-8", "backslashreplace").decode()
    assert (strings.text(name), strings.text(category)) == (shown, shown)
    assert (strings.intern(text), strings.category(text)) == (name, category)
    assert category < strings.FIRST_NAME <= name
    assert (category == 0) == (text == "")


@given(character=st.sampled_from("aé€😀"), before=st.integers(0, 5), length=st.integers(MAX_NAME // 4, 2 * MAX_NAME))
def test_long_texts_are_cut_between_characters(character: str, before: int, length: int) -> None:
    """1024 bytes are stored, less a character that would be cut in two; each cut is counted."""
    text = "x" * before + character * length
    cut = _core.counts()["names_cut"]
    stored = strings.text(strings.intern(text))
    size = len(stored.encode())
    assert text.startswith(stored)
    assert (_core.counts()["names_cut"] == cut) == (stored == text)
    assert stored == text or MAX_NAME - len(character.encode()) < size <= MAX_NAME


@pytest.mark.parametrize(
    "name",
    ["x" * (1 << 20), 'quo"ted\\', "\x00\x01\x1f\x7f\n\t", "😀" * 300, "\ud800 lone", "", " ", "</script>", "a\x00b"],
    ids=ascii,
)
def test_any_name_is_recorded(name: str) -> None:
    """As the name of a span, of an argument, as category and as error."""
    numbered: Any = {name: 1}
    with recording() as log:
        with span(name, category=name, **{name: name}):
            pass
        instant(name, **numbered)
        counter(name, 1)
    stored = strings.text(strings.intern(name))
    assert {row.name for row in log.rows} == {stored}
    shown = name.encode("utf-8", "backslashreplace")[:4096].decode(errors="ignore")
    assert log.spans[0].arguments == {stored: shown}
    assert log.spans[0].category == strings.text(strings.category(name))
    assert log.of(Kind.INSTANT)[0].arguments == {stored: 1}


def test_subclasses_of_str_are_names() -> None:
    """Only their text counts, none of their methods is called."""

    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            raise AssertionError

        __repr__ = __hash__ = __str__  # type: ignore[assignment]

    assert strings.text(strings.intern(Loud("loud"))) == "loud"


def test_threads_agree_on_ids() -> None:
    """A text that many threads add at once has one id."""
    names = [f"agreed {number}" for number in range(500)]
    found: list[list[int]] = []
    start = threading.Barrier(8)

    def add() -> None:
        start.wait()
        found.append([strings.intern("".join(name)) for name in names])

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and all(ids == found[0] for ids in found)
    assert [strings.text(number) for number in found[0]] == names


def test_ids_and_texts_that_are_none() -> None:
    """An id from a damaged file gives no text rather than a crash; other types than texts are refused by name."""
    assert [strings.text(number) for number in (0, strings.FIRST_NAME - 1, 1 << 21, (1 << 32) - 1)] == [""] * 4
    with pytest.raises(OverflowError):
        strings.text(-1)
    for function in (strings.intern, strings.category):
        with refused(TypeError, "name", "b'bytes'"):
            function(b"bytes")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_too_many_names_share_one_and_too_many_categories_are_none() -> None:
    """Beyond a million names, recording goes on under a name that says so, beyond a thousand categories an event has none; each use
    is counted."""
    (categories, names, arguments, known, counted) = run_program("""
        for number in range(1100):
            with span("x", category=f"category {number}"):
                pass
        log.drain()
        print_json([log.rows[-1].category, 70 < _core.counts()["categories_full"] < 110])
        log.rows.clear()
        instant("first")
        before = _core.counts()["strings_full"]
        for number in range(1 << 20):
            _core.intern(f"name {number}")
        full = _core.counts()["strings_full"]
        for number in range(10):
            with span(f"new {number}", **{f"key {number}": 1.5}):
                instant(f"new {number}")
        counted = _core.counts()["strings_full"] - full
        log.drain()
        print_json(sorted({row.name for row in log.rows}))
        print_json(log.spans[0].arguments)
        print_json([_core.text(_core.intern("name 17")), before])
        print_json([full > 0, counted])
    """)
    assert categories == ["", True]
    assert names == ["(too many names)", "first"] and arguments == {"(too many names)": 1.5}
    assert known == ["name 17", 0]
    assert counted == [True, 30]
