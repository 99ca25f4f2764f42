"""`mstx`: marks and ranges that are really recorded."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.compat.mindspore import mstx as module
from stepscope.mindspore import mstx
from stepscope.runtime import strings
from tests.recording import recording


def test_marks_and_ranges() -> None:
    """An instant and a span, with the domain in the category."""
    with recording() as log:
        mstx.mark("here")
        mstx.mark("there", None, "mine")
        number = mstx.range_start("outer", None, "mine")
        inner = mstx.range_start("inner")
        mstx.range_end(inner)
        mstx.range_end(number, "mine")
    assert [(row.name, row.category) for row in log.of(sc.Kind.INSTANT)] == [("here", "mstx"), ("there", "mstx:mine")]
    outer, within = log.span("outer"), log.span("inner")
    assert (outer.category, within.category) == ("mstx:mine", "mstx")
    assert within.parent == outer.id
    assert outer.dur >= within.dur > 0


def test_ranges_need_not_nest(output_dir: Path) -> None:
    """Ranges that overlap, and end on another thread, are all there."""
    memory = sc.MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=output_dir, options=sc.Options(journal=False)):
        first = mstx.range_start("first")
        second = mstx.range_start("second")
        mstx.range_end(first)
        thread = threading.Thread(target=mstx.range_end, args=(second,))
        thread.start()
        thread.join()
    events = memory.events()
    found = {strings.name_of(event) for event in events if strings.text(int(event["category"])) == "mstx"}
    assert found == {"first", "second"}


def test_wrong_arguments_are_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing raises into training: 0 is returned, nothing is recorded, and the log says why, once for each call."""
    monkeypatch.setattr(module, "_said", set[str]())
    with recording() as log, caplog.at_level(logging.WARNING, "stepscope"):
        for _ in range(3):
            assert mstx.range_start("") == 0
            mstx.mark(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            mstx.range_end(123_456_789)
        assert mstx.range_start("x", None, "") == 0
        mstx.range_end(0)
    assert log.rows == []
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "mstx.range_start: message must be a non-empty str, got str: ''",
        "mstx.mark: message must be a non-empty str, got int: 7",
        "mstx.range_end: no range 123456789 is open; give what range_start() returned, once",
    ]


def test_a_range_belongs_to_its_domain(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended in another domain it goes on; ended twice it stays ended."""
    monkeypatch.setattr(module, "_said", set[str]())
    with recording() as log:
        number = mstx.range_start("one", None, "mine")
        mstx.range_end(number)
        assert log.take() == 0
        mstx.range_end(number, "mine")
        mstx.range_end(number, "mine")
    assert len(log.spans) == 1
    assert "is of domain 'mine', not 'default': it goes on" in caplog.text


def test_ranges_that_are_never_ended(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not fill the memory: beyond a number none is begun."""
    monkeypatch.setattr(module, "_said", set[str]())
    monkeypatch.setattr(module, "MAX_OPEN", len(module._open) + 2)  # pyright: ignore[reportPrivateUsage]
    numbers = [mstx.range_start("leak") for _ in range(3)]
    assert numbers[2] == 0 < numbers[0] < numbers[1]
    assert "ranges are open already: range_end() is missing somewhere" in caplog.text
    for number in numbers:
        mstx.range_end(number)
