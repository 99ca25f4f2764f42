"""A training loop with named regions is recorded with `with_stack=True`, and the trace is opened in a viewer.

A viewer draws one row for each thread, on which slices must nest: it drops a slice that begins inside
another one and ends after it.

Right: on every row slices nest; each region and each step of the window is drawn, and each region
lasts at least as long as the sleep inside it.
"""

import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

try:
    import torch
except ImportError:
    print("skipped: torch is not installed")
    sys.exit(77)
import stepscope.torch as profiler

REGIONS = ("forward", "inner", "backward")
ACTIVE = 3
SLEEP_US = 1000


def record(folder: Path) -> list[dict]:
    layer = torch.nn.Linear(16, 16)
    region = profiler.record_function
    with profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        schedule=profiler.schedule(wait=1, warmup=1, active=ACTIVE, repeat=1),
        with_stack=True,
        output_dir=str(folder / "run"),
    ) as prof:
        for _ in range(1 + 1 + ACTIVE):
            with region("forward"), region("inner"):
                loss = layer(torch.randn(4, 16)).sum()
                time.sleep(SLEEP_US / 1e6)
            with region("backward"):
                loss.backward()
                time.sleep(SLEEP_US / 1e6)
            prof.step()
    prof.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def drawn(slices: list[dict]) -> list[dict]:
    """Slices that a viewer draws: on each row, all but those that end after the slice they began in."""
    rows = defaultdict(list)
    for event in slices:
        begin, duration = round(event["ts"] * 1000), round(event["dur"] * 1000)
        rows[event["pid"], event["tid"]].append((begin, -duration, event))
    drawn_events = []
    for row in rows.values():
        open_ends: list[int] = []
        for begin, minus_duration, event in sorted(row, key=lambda item: item[:2]):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            if not open_ends or begin - minus_duration <= open_ends[-1]:
                open_ends.append(begin - minus_duration)
                drawn_events.append(event)
    return drawn_events


with tempfile.TemporaryDirectory() as folder:
    slices = record(Path(folder))
visible = drawn(slices)
count = Counter(e["name"] for e in visible if e["name"] not in REGIONS or e["dur"] >= SLEEP_US)
regions = sum(min(count[name], ACTIVE) for name in REGIONS)
steps = sum(n for name, n in count.items() if name.startswith("ProfilerStep"))
frames = sum(".py(" in event["name"] for event in slices)
lost = len(slices) - len(visible)
right = lost == 0 and regions == len(REGIONS) * ACTIVE and steps == ACTIVE and frames > 0
print(
    "ok:" if right else "WRONG:",
    f"{lost} of {len(slices)} slices, {frames} of them Python frames, lie across another one; a viewer",
    f"draws {regions} of {len(REGIONS) * ACTIVE} regions in full length and {steps} of {ACTIVE} steps",
)
sys.exit(0 if right else 1)
