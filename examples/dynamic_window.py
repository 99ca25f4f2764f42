"""Trains a line and records nothing, until somebody writes into a file that three steps are to be recorded."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path

import stepscope as sc


def train(slope: float, offset: float) -> tuple[float, float]:
    batch = [(x, 3 * x + 1) for x in (random.uniform(-1, 1) for _ in range(200))]
    errors = [(slope * x + offset - y, x) for x, y in batch]
    slope -= 0.1 * sum(error * x for error, x in errors) / len(batch)
    return slope, offset - 0.1 * sum(error for error, _ in errors) / len(batch)


def operate(file: Path) -> None:
    """Edits the file as an operator does with an editor, while the training runs."""
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps({"start_step": "next", "steps": 3, "run_id": "look"}))
    draft.replace(file)


def report(window: sc.Window) -> None:
    armed = window.metadata["armed"]
    print("recorded", armed["name"], "asked for by", armed["trigger"])


def main() -> None:
    slope = offset = 0.0
    with sc.trace(control=sc.Control(path="control", poll=0.05), output_dir="run", on_trace_ready=report) as profiler:
        operator = threading.Timer(0.3, operate, [Path("control/stepscope.json")])
        operator.start()
        end = time.monotonic() + 60
        while not any(window.state == "recorded" for window in profiler.armed()) and time.monotonic() < end:
            with sc.span("train"):
                slope, offset = train(slope, offset)
            profiler.step()
        operator.join()
    for window in profiler.armed():
        print(window.state, window.requested)


if __name__ == "__main__":
    main()
