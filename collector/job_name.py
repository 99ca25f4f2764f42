"""What tells the jobs of a collector apart."""

from __future__ import annotations

from stepscope.exporters.collector.protocol import MAX_NAME
from stepscope.runtime.journal.records import RunRecord


def job_name(run: RunRecord) -> str:
    """The launcher's name for a run's job, or the run's own name and its number of ranks."""
    if run.job:
        return run.job
    # What an exporter says of itself before its stream has names cut to this.
    name = run.name[:MAX_NAME]
    return name if run.world_size is None else f"{name} x{run.world_size}"
