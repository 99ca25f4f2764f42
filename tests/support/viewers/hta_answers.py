"""Asks Holistic Trace Analysis about a directory of traces; run by the interpreter that has it, prints JSON."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from typing import Any


def answers(directory: str) -> dict[str, Any]:
    """HTA's results for the traces in a directory, one per rank."""
    with contextlib.redirect_stdout(sys.stderr):
        analysis: Any = importlib.import_module("hta.trace_analysis").TraceAnalysis(trace_dir=directory)
        kernel_types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
        temporal = analysis.get_temporal_breakdown(visualize=False)
        idle = analysis.get_idle_time_breakdown(ranks=[0, 1], visualize=False)[0]
        overlap = analysis.get_comm_comp_overlap(visualize=False)
        launches = analysis.get_cuda_kernel_launch_stats(ranks=[0, 1], visualize=False)
        _, critical = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)
        frames = {rank: analysis.t.get_trace(rank) for rank in analysis.t.get_ranks()}
    return {
        "ranks": {str(rank): len(frame) for rank, frame in frames.items()},
        "iterations": {
            str(rank): sorted(int(i) for i in frame["iteration"].unique()) for rank, frame in frames.items()
        },
        "streams": {str(rank): sorted(int(s) for s in frame["stream"].unique()) for rank, frame in frames.items()},
        "kernel_types": kernel_types.to_dict("records"),
        "kernels": kernels.to_dict("records"),
        "temporal": temporal.to_dict("records"),
        "idle": idle.to_dict("records"),
        "overlap": overlap.to_dict("records"),
        "launches": {str(rank): frame.to_dict("records") for rank, frame in launches.items()},
        "critical_path": bool(critical),
    }


if __name__ == "__main__":
    print(json.dumps(answers(sys.argv[1]), default=str))
