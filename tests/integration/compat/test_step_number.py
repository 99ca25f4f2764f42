"""Numbers of steps and schedules that a program sets while the profiler runs, as resumed trainings do."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope as sc
import stepscope.torch as ours
from stepscope.exporters.memory import MemoryExporter
from tests.support.messages import check_messages, refused
from tests.support.operators import cpu, torch


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals go where the test ends."""
    monkeypatch.chdir(tmp_path)


def set_to(step: Any) -> Callable[[Any], None]:
    """Sets the number."""

    def change(prof: Any) -> None:
        prof.step_num = step

    return change


def use_other_schedule(prof: Any) -> None:
    """Replaces the schedule by one of the same module."""
    module = torch.profiler if type(prof) is torch.profiler.profile else ours
    prof.schedule = module.schedule(wait=1, warmup=1, active=3)


def windows(module: Any, change: Callable[[Any], None], at: int) -> tuple[int, list[int]]:
    """The number at the end, and at the end of each whole window, of a loop in which something is set before step `at`
    ends."""
    seen: list[int] = []

    def ready(prof: Any) -> None:
        if not hasattr(prof, "window") or prof.window.complete:
            seen.append(prof.step_num)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with module.profile(
            activities=cpu(),
            schedule=module.schedule(wait=3, warmup=1, active=2),
            on_trace_ready=ready,
        ) as prof:
            for step in range(20):
                if step == at:
                    change(prof)
                torch.ones(2).tanh()
                prof.step()
            last = prof.step_num
    return last, seen


CHANGES: dict[str, Callable[[Any], None]] = {
    "later": set_to(100),
    "earlier": set_to(1),
    "number of NumPy": set_to(np.int64(101)),
    "tensor": lambda prof: set_to(torch.tensor(102))(prof),
    "whole float": set_to(103.0),
    "schedule": use_other_schedule,
}


@pytest.mark.parametrize("at", [0, 4, 7])
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_windows_are_where_torch_has_them(change: Callable[[Any], None], at: int) -> None:
    """Whether it is set in a wait, a warmup or a window. At the last step torch may call back twice."""
    last, seen = windows(ours, change, at)
    expected_last, expected = windows(torch.profiler, change, at)
    assert last == expected_last
    assert [number for number in seen if number != last] == [number for number in expected if number != last]


@pytest.mark.parametrize("wrong", [-1, 1.5, "100", None, True, 1 << 40, "tensor"])
def test_a_step_number_that_is_no_number_does_not_end_training(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged while the profile runs, and an error before."""
    wrong = torch.ones(2) if wrong == "tensor" else wrong
    prof = ours.profile(activities=cpu())
    with refused(ValueError, "step_num"):
        prof.step_num = wrong
    with prof, caplog.at_level(logging.ERROR, "stepscope"):
        prof.step()
        prof.step_num = wrong
        assert prof.step_num == 1
    check_messages(caplog.records, "step_num", "step 1")


def test_other_states_that_torch_lets_programs_write(caplog: pytest.LogCaptureFixture) -> None:
    """A state that cannot be read is logged; nothing raises."""
    with ours.profile(activities=cpu(), schedule=ours.schedule(wait=1, warmup=0, active=1)) as prof:
        for name in ("current_action", "schedule", "profiler", "step_rec_fn", "action_map", "record_steps"):
            setattr(prof, name, None)
        for name in ("record_shapes", "with_stack", "profile_memory", "on_trace_ready", "use_device", "mem_tl"):
            setattr(prof, name, None)
        assert prof.current_action is ours.ProfilerAction.NONE
        prof.step()
        torch.ones(2).tanh()
        prof.step()
    assert [row.count for row in prof.key_averages() if row.key == "aten::tanh"] == [1]
    for name in ("current_action", "schedule", "profiler"):
        assert name in caplog.text
    prof.raise_errors()


def test_a_callback_that_is_set_later() -> None:
    """It gets the windows that end from then on."""
    seen: list[int] = []

    def ready(view: Any) -> None:
        seen.append(view.step_num)

    with ours.profile(activities=cpu(), schedule=ours.schedule(wait=0, warmup=0, active=1)) as prof:
        prof.step()
        prof.run.flush()
        prof.on_trace_ready = ready
        torch.ones(2)
        prof.step()
        prof.step()
    assert seen[-2:] == [2, 3]


def test_the_profiler_counts_the_steps_that_were(tmp_path: Path) -> None:
    """Accounts and explanations count calls of `step()`, whatever numbers the steps have."""
    memory = MemoryExporter()
    with sc.trace(
        schedule=sc.schedule(wait=1, warmup=0, active=2, skip_first=500), exporters=[memory], output_dir=tmp_path
    ) as profiler:
        for _ in range(2):
            profiler.step()
        profiler.step_num = 500
        for _ in range(4):
            profiler.step()
        profiler.step_num = 0
        profiler.step()
    assert [[step.number for step in window.steps] for window in memory.windows] == [[501, 502], [504]]
    assert [window.complete for window in memory.windows] == [True, False]
    assert profiler.statistics().steps == 7


def test_an_armed_window_keeps_its_length(tmp_path: Path) -> None:
    """Of steps that a request asks for by their count, a jump of the number in between leaves out none."""
    memory = MemoryExporter()
    with sc.trace(control=sc.Control(), exporters=[memory], output_dir=tmp_path) as profiler:
        profiler.arm(sc.control.WindowRequest(steps=4))
        for _ in range(3):
            profiler.step()
        profiler.step_num = 1000
        for _ in range(5):
            profiler.step()
    assert [len(window.steps) for window in memory.windows] == [4]
    assert memory.windows[0].complete
