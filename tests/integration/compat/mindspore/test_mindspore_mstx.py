"""`mstx`: marks and ranges that are really recorded."""

from __future__ import annotations

import threading
from pathlib import Path

import stepscope as sc
from stepscope.compat.mindspore.mstx import MAX_OPEN
from stepscope.mindspore import mstx
from stepscope.runtime.events import strings
from tests.support.recording import recording, run_program


def test_marks_and_ranges() -> None:
    """An instant and a span, with the domain in the category."""
    with recording() as log:
        mstx.mark("here")
        mstx.mark("there", None, "mine")
        number = mstx.range_start("outer", None, "mine")
        inner = mstx.range_start("inner")
        mstx.range_end(inner)
        mstx.range_end(number, "mine")
    assert [(row.name, row.category) for row in log.of(sc.exporters.Kind.INSTANT)] == [
        ("here", "mstx"),
        ("there", "mstx:mine"),
    ]
    outer, within = log.span("outer"), log.span("inner")
    assert (outer.category, within.category) == ("mstx:mine", "mstx")
    assert within.parent == outer.id
    assert outer.dur >= within.dur > 0


def test_ranges_need_not_nest(output_dir: Path) -> None:
    """Ranges that overlap, and end on another thread, are all there."""
    memory = sc.exporters.MemoryExporter()
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


SAYING = """
import logging, logging.handlers, queue
from stepscope.mindspore import mstx
records = queue.SimpleQueue()
logging.getLogger("stepscope").addHandler(logging.handlers.QueueHandler(records))
def messages():
    return [records.get().getMessage() for _ in range(records.qsize())]
"""
"""Each is reported once in a process, so the messages are checked in one of its own."""


def test_wrong_arguments_are_reported_once() -> None:
    """Nothing raises into training: 0 is returned, nothing is recorded, and the log says why, once for each call."""
    numbers, logged = run_program(
        SAYING
        + """
numbers = []
for _ in range(3):
    numbers.append(mstx.range_start(""))
    mstx.mark(7)
    mstx.range_end(123_456_789)
numbers.append(mstx.range_start("x", None, ""))
mstx.range_end(0)
print_json(numbers)
print_json(messages())
"""
    )
    assert numbers == [0, 0, 0, 0]
    assert logged == [
        "mstx.range_start: message must be a non-empty str, got str: ''",
        "mstx.mark: message must be a non-empty str, got int: 7",
        "mstx.range_end: no range 123456789 is open; give what range_start() returned, once",
    ]


def test_a_range_belongs_to_its_domain() -> None:
    """Ended in another domain it goes on; ended twice it stays ended."""
    with recording() as log:
        number = mstx.range_start("one", None, "mine")
        mstx.range_end(number)
        assert log.drain() == 0
        mstx.range_end(number, "mine")
        mstx.range_end(number, "mine")
    assert len(log.spans) == 1
    (logged,) = run_program(
        SAYING + 'mstx.range_end(mstx.range_start("one", None, "mine"))\nprint_json(messages())\n',
    )
    assert logged[0].endswith("is of domain 'mine', not 'default': it goes on")


def test_ranges_that_are_never_ended() -> None:
    """They do not fill the memory: beyond a number none is begun."""
    begun, last, logged = run_program(
        SAYING
        + f"""
numbers = {{mstx.range_start("leak") for _ in range({MAX_OPEN})}}
print_json(len(numbers - {{0}}))
print_json(mstx.range_start("one more"))
print_json(messages())
"""
    )
    assert (begun, last) == (MAX_OPEN, 0)
    assert logged == [f"mstx.range_start: {MAX_OPEN} ranges are open already: range_end() is missing somewhere"]
