"""The last part of the demonstration of a cluster: one trace of all ranks, read as viewers do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec

from stepscope.collector.merge.report import MergeReport

TRACE, BOARD = "merged.pftrace", "tensorboard"


def merge(collected: Path, place: Path) -> MergeReport:
    """Merges everything into `merged.pftrace` and `tensorboard`.

    Args:
        collected: the collector's directory.
        place: where to write.

    Raises:
        subprocess.CalledProcessError: if the command fails; it has said why.
    """
    report = place / "merge.json"
    command = [sys.executable, "-m", "stepscope", "merge", str(collected)]
    for more in (
        ["--out", str(place / TRACE), "--report", str(report)],
        ["--out", str(place / BOARD), "--format", "tensorboard"],
    ):
        subprocess.run([*command, *more], check=True, stdout=subprocess.DEVNULL)
    return msgspec.json.decode(report.read_bytes(), type=MergeReport)


def spans(place: Path, name: str) -> Counter[tuple[int, int]]:
    """Spans in what was written for TensorBoard, by (rank, step)."""
    found: Counter[tuple[int, int]] = Counter()
    for path in place.glob(f"{BOARD}/window_*/*.pt.trace.json"):
        rank = int(path.name.split(".")[0].rpartition("_")[2])
        events = json.loads(path.read_bytes())["traceEvents"]
        found.update(
            (rank, int(event["args"]["step"]))
            for event in events
            if event.get("ph") == "X" and event["name"] == name and "had not ended" not in event["args"]
        )
    return found


def told(report: MergeReport, place: Path | None) -> str:
    """The merged trace, and the error bounds of its times.

    Args:
        report: of the merge.
        place: where it is; `None` if it does not stay.
    """
    bounds = [member.bound_ns for member in report.members]
    known = [bound for bound in bounds if bound is not None]
    within = f"within {max(known) / 1e3:,.0f} us" if len(known) == len(bounds) else "without a bound"
    lines = [f"merged: {report.events:,} events of {len(report.members)} processes, their times {within}"]
    if place is not None:
        lines += [
            f"{place / TRACE}: open it in https://ui.perfetto.dev",
            f"{place / BOARD}: tensorboard --logdir {place / BOARD}",
        ]
    return "\n".join(lines)
