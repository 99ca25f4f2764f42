"""The flight recorder: the last steps are kept at all times, and saved when something happens."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import stepscope as sc
from stepscope.exporters.base import EventBatch, Window
from stepscope.runtime.errors import TriggerError
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.flight.triggers.trigger import Evaluator
from stepscope.runtime.journal.reader import JournalReader
from tests.support.flight_recording import Profile, When
from tests.support.killed_programs import windows as read_windows


def test_nothing_fires_nothing_is_written(output_dir: Path) -> None:
    """The run's directory stays empty, no exporter hears of anything, and the report says why."""
    profile = Profile(output_dir, triggers=(sc.triggers.NotFinite(),))
    with profile.profiler:
        profile.steps(20)
    assert not profile.memory.windows and not profile.memory.batches
    assert not list(output_dir.iterdir())
    assert any(note.startswith("nothing saved: of not_finite none fired") for note in profile.profiler.diagnostics())
    report = str(profile.profiler.report())
    assert "flight    fired never" in report and not profile.profiler.saved()
    outputs = [line for line in report.splitlines() if line.startswith("  output ")]
    assert outputs and all(
        line.endswith(": wrote nothing, as no trigger fired and save() was not called") for line in outputs
    )
    profile.check_accounts()


def test_fired_triggers_are_reported(output_dir: Path) -> None:
    """How often it fired and why, and where the latest of the windows that stay are; nothing of those that were deleted."""
    profile = Profile(output_dir, keep_newest=2, keep_slowest=0)
    with profile.profiler as profiler:
        assert profiler.saved() == ()
        for number in range(3):
            profile.steps(5)
            assert profiler.save(f"why {number}") and len(profile.windows) == number + 1
        first_line, *lines = profile.flight.lines(closed=False)
        assert first_line.startswith("keeps 3 steps and the one under way: ")
        assert lines == list(profile.flight.lines(closed=True))
        assert lines[0] == "fired 3 times: why 0 (1), why 1 (1), why 2 (1)"
    names = [path.name for path in profiler.saved()]
    assert names == ["000001-step10-why_1.journal", "000002-step15-why_2.journal"]
    report = str(profiler.report())
    assert [line for line in report.splitlines() if line.startswith("  saved ")] == [
        f"  saved     windows/{n}" for n in names
    ]
    assert f"to see it: stepscope view {profiler.saved()[-1]}" in report
    assert all(path.is_file() for path in profiler.saved())


def test_call(output_dir: Path) -> None:
    """`save()` keeps what was recorded up to the call, in a journal of its own."""
    profile = Profile(output_dir)
    with profile.profiler as profiler:
        profile.steps(10)
        with sc.span("before the call"):
            pass
        assert profiler.save("odd loss / ../x")
        profile.steps(5)
        assert profile.windows == [[8, 9, 10]]
    (path,) = (output_dir / "windows").iterdir()
    assert path.name == "000000-step10-odd_loss_x.journal"
    (window,) = read_windows(path)
    assert window.metadata["flight"]["reason"] == "odd loss / ../x"
    assert window.metadata["flight"]["step"] == 10 and window.complete
    assert profile.memory.names(0, Kind.SPAN).count("work") == 2
    assert set(profile.memory.events(0, Kind.SPAN)["step"].tolist()) == {8, 9, 10}
    assert profile.memory.events(0, Kind.COUNTER)["step"].tolist() == [8, 9]
    assert "before the call" in profile.memory.names(0)
    profile.check_accounts()


def test_an_int_is_enough(output_dir: Path) -> None:
    """`keep_last=2`: an exception that leaves the block is saved; `on_trace_ready` gets the window as any other, and can export it."""
    exported: list[Path] = []

    def export(window: Window) -> None:
        exported.append(window.export(output_dir / f"{window.index}.json"))

    with (
        pytest.raises(RuntimeError),
        sc.trace(keep_last=2, output_dir=output_dir, on_trace_ready=export) as profiler,
    ):
        for _ in range(6):
            with sc.span("forward"):
                pass
            profiler.step()
        with sc.span("backward"):
            raise RuntimeError("out of cheese")
    (path,) = (output_dir / "windows").iterdir()
    (window,) = read_windows(path)
    assert path.name == "000000-step6-raised.journal"
    assert [step.number for step in window.steps] == [5, 6]
    assert "saved: raised in step 6: RuntimeError: out of cheese" in window.diagnostics
    with JournalReader(path) as reader:
        spans = [batch.events[batch.events["kind"] == Kind.SPAN] for batch in reader if isinstance(batch, EventBatch)]
    assert any((block["flags"] & int(Flag.ERROR)).any() for block in spans)
    (chrome,) = exported
    assert {event["name"] for event in json.loads(chrome.read_text())} >= {"backward", "ProfilerStep#5"}


async def test_exception_in_a_coroutine(output_dir: Path) -> None:
    """`async with` reports it as well; a cancellation is no failure."""
    for error in (ValueError("mine"), asyncio.CancelledError()):
        profile = Profile(output_dir, triggers=(sc.triggers.Raised(),))
        with pytest.raises(type(error)):
            async with profile.profiler:
                profile.steps(4)
                await anyio.lowlevel.checkpoint()
                raise error
        assert len(profile.memory.windows) == isinstance(error, ValueError)


def test_caught(output_dir: Path) -> None:
    """An exception that was handled is reported by `caught`; types that do not count are left."""
    profile = Profile(output_dir, triggers=(sc.triggers.Raised(only=(ValueError,)),))
    with profile.profiler as profiler:
        profile.steps(5)
        assert not profiler.caught(KeyError("x"))
        assert profiler.caught(ValueError("handled"))
        assert profile.windows == [[3, 4, 5]]
        assert profile.facts()["value"] == "ValueError"


def test_not_finite(output_dir: Path) -> None:
    """The step in which a counter became NaN is saved to its end, under the counter's name; text by mistake is no NaN."""
    values: dict[int, Any] = {3: "0.93", 4: None, 5: [1.0], 7: math.nan}
    profile = Profile(output_dir, triggers=(sc.triggers.NotFinite(),))
    with profile.profiler:
        profile.steps(12, lambda number: sc.counter("norm", values.get(number, 1.0)))
        assert profile.windows == [[5, 6, 7]]
    facts = profile.facts()
    assert (facts["reason"], facts["step"], facts["value"]) == ("not_finite", 7, "nan")
    assert "'norm'" in facts["text"]
    assert json.loads(json.dumps(facts))  # for every output
    assert (output_dir / "windows" / "000000-step7-not_finite.journal").exists()


def test_stalled(output_dir: Path) -> None:
    """Saved while the step hangs, its open spans marked; once, however long it hangs."""
    profile = Profile(output_dir, triggers=(sc.triggers.Stalled(factor=1, least=0.3),))
    with profile.profiler:
        profile.steps(10)
        with sc.span("hangs"), sc.span("inside"):
            deadline = time.monotonic() + 30
            while not profile.memory.windows and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.7)
        profile.profiler.step()
        assert profile.windows == [[8, 9, 10]]
    spans = profile.memory.events(0, Kind.SPAN)
    opened = spans[spans["flags"] & int(Flag.OPEN) != 0]
    assert len(opened) == 2
    assert profile.facts()["reason"] == "stalled" and profile.facts()["value"] >= 0.3
    profile.check_accounts()


class Unmade:
    """A trigger without an evaluator."""

    name = "unmade"

    def evaluator(self) -> Evaluator:
        raise ZeroDivisionError("no evaluator")


def test_a_trigger_that_cannot_be_made_costs_nothing_else(output_dir: Path) -> None:
    """It is counted, named, and raised when asked for; the others go on."""
    profile = Profile(output_dir, triggers=(Unmade(), sc.triggers.NotFinite()))
    with profile.profiler as profiler:
        profile.steps(5)
        sc.counter("loss", math.inf)
        profile.steps(2)
        assert profile.windows == [[3, 4, 5]]
        assert any(note.startswith("triggers failed") for note in profiler.diagnostics())
        with pytest.raises(ExceptionGroup) as raised:
            profiler.raise_errors()
    assert raised.group_contains(TriggerError, match="no evaluator")


@pytest.mark.parametrize(
    ("steps", "after", "saved", "joined"),
    [((5, 6), 3, [[3, 4, 5, 6, 7, 8]], 1), (range(5, 10), 0, [[3, 4, 5], [6], [7], [8], [9]], 0)],
    ids=["while steps follow", "in consecutive steps"],
)
def test_triggers_close_to_each_other(
    steps: Sequence[int], after: int, saved: list[list[int]], joined: int, output_dir: Path
) -> None:
    """One is another reason of the window that is open, or begins the next; every step is saved once."""
    profile = Profile(output_dir, triggers=(When(*steps),), after=after)
    with profile.profiler:
        profile.steps(15)
        assert profile.windows == saved
    assert sum(profile.flight.triggers.joined.values()) == joined
    if joined:
        assert [cause["value"] for cause in profile.facts()["also"]] == [6]
        assert sum(note.startswith("saved: ") for note in profile.memory.windows[0].diagnostics) == 2
    else:
        assert any("in window 0" in note for note in profile.memory.windows[1].diagnostics)
    assert profile.memory.names(kind=Kind.SPAN).count("work") == sum(map(len, saved))
    profile.check_accounts()


def test_closing_with_a_trigger_pending(output_dir: Path) -> None:
    """The window is saved before the end, without the steps that were to follow."""
    profile = Profile(output_dir, triggers=(When(4),), after=100)
    with profile.profiler:
        profile.steps(8)
        profile.profiler.save()
    (window,) = profile.memory.windows
    assert [step.number for step in window.steps] == [2, 3, 4, 5, 6, 7]
    assert not window.complete
    profile.check_accounts()


def test_a_files_name_that_exists(output_dir: Path) -> None:
    """Another run's window is left alone."""
    for _ in range(2):
        profile = Profile(output_dir, keep_newest=1, keep_slowest=0)
        with profile.profiler as profiler:
            profile.steps(2)
            profiler.save("same")
    names = sorted(path.name for path in (output_dir / "windows").iterdir())
    assert names == ["000000-step2-same-2.journal", "000000-step2-same.journal"]
