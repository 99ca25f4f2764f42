"""A loop with regions that is recorded with Python stacks, as viewers draw it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.basics import ROOT, require
from tests.support.launch import run_to_end
from tests.support.viewers import perfetto

PROGRAM = ROOT / "tests" / "support" / "programs" / "stacks_and_regions.py"

TRAINING = """
import sys, torch
import stepscope as sc
from torch.utils.data import DataLoader, TensorDataset

out = sys.argv[1]
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
data = DataLoader(TensorDataset(torch.randn(64, 16)), batch_size=8)
with sc.trace(
    schedule=sc.schedule(wait=1, warmup=1, active=2, repeat=2),
    backends=[sc.TorchBackend(mode="kineto", with_stack=True)],
    exporters=[sc.ChromeTraceExporter(f"{out}/t.json"), sc.PerfettoExporter(f"{out}/t.pftrace")],
    output_dir=f"{out}/run",
) as profiler:
    for (batch,) in data:
        with sc.span("forward"):
            loss = model(batch).sum()
        with sc.span("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
"""

ANNOTATIONS = "select name, dur from slice where category = 'user_annotation' order by name, dur"
COUNTS = "select category, count(*) as n from slice where category != 'stepscope' group by category order by category"
OUTSIDE = """
select count(*) as n from slice s join slice p on s.parent_id = p.id where s.ts < p.ts or s.ts + s.dur > p.ts + p.dur"""


def test_regions_and_steps_are_drawn_in_full_length() -> None:
    """With the drop-in profiler: judged as a viewer drops slices."""
    require("torch")
    done = run_to_end([sys.executable, PROGRAM], server="torch")
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_formats_draw_the_same(tmp_path: Path) -> None:
    """Perfetto's reader drops nothing; data loading, optimizer, regions and steps last as long in both files."""
    require("torch")
    done = run_to_end([sys.executable, "-c", TRAINING, tmp_path], server="torch")
    assert done.returncode == 0, done.stderr
    answers = [
        perfetto.query(tmp_path / name, perfetto.PROBLEMS, ANNOTATIONS, COUNTS, OUTSIDE)
        for name in ("t.json", "t.pftrace")
    ]
    assert answers[0] == answers[1]
    problems, annotations, counts, outside = answers[0]
    assert problems == [] and outside == [{"n": 0}]
    names = [row["name"] for row in annotations]
    assert (
        sum(name.startswith("ProfilerStep#") for name in names)
        == names.count("forward")
        == names.count("backward")
        == 4
    )
    assert sum(name.startswith("Optimizer.step") for name in names) == 4
    assert {row["category"] for row in counts} == {"cpu_op", "python_function", "user_annotation"}
