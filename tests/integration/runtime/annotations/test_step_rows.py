"""Steps and regions of random loops: whatever overlaps on the training thread, every row of the trace nests."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import example, given, note, settings
from hypothesis import strategies as st

import stepscope as sc
from tests.support.nesting import chrome_problems

ACTIONS = st.sampled_from(["enter", "leave", "leave the first", "step", "step", "pause"])


def run(actions: list[str], profiler: sc.Profiler) -> None:
    """Carries out the actions; a second pause ends the first."""
    open_regions: list[sc.span] = []
    paused = False
    with profiler:
        for action in actions:
            if action == "enter":
                open_regions.append(sc.span("region"))
                open_regions[-1].__enter__()
            elif action.startswith("leave") and open_regions:
                open_regions.pop(-1 if action == "leave" else 0).__exit__(None, None, None)
            elif action == "step":
                profiler.step()
            elif action == "pause":
                (profiler.resume if paused else profiler.pause)()
                paused = not paused
    while open_regions:
        open_regions.pop().__exit__(None, None, None)


@settings(max_examples=25)
@example(
    ["step", "enter", "step", "step", "leave", "enter", "step", "step", "leave"], 4
)  # the last step is in two epochs
@example(["enter", "step", "pause", "pause", "step", "leave"], 4)
@given(st.lists(ACTIONS, min_size=4, max_size=40), st.integers(1, 4))
def test_random_loops(actions: list[str], active: int) -> None:
    """No step overlaps a region on its row, and none is there twice."""
    note(f"windows of {active}: {actions}")
    with tempfile.TemporaryDirectory() as directory:
        chrome = Path(directory) / "trace.json"
        profiler = sc.trace(
            schedule=sc.schedule(wait=0, warmup=0, active=active),
            output_dir=directory,
            exporters=[sc.ChromeTraceExporter(chrome)],
        )
        run(["enter", "leave", *actions, "step"], profiler)
        profiler.raise_errors()
        assert chrome_problems(chrome) == []
        steps = [event["name"] for event in json.loads(chrome.read_text()) if event["name"].startswith("ProfilerStep")]
    assert "ProfilerStep#0" in steps and len(steps) == len(set(steps))
