"""Types that a profiler returns: tables, statistics, reports; and those that `load` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.analysis.findings import Answer, Finding
    from stepscope.analysis.reading.recording import Rank, Recording
    from stepscope.runtime.annotations.instrument import Instrumentation as Instrumentation
    from stepscope.runtime.overhead.budget import OverheadStatistics as OverheadStatistics
    from stepscope.runtime.report.run_report import RunReport as RunReport
    from stepscope.runtime.windows.step_facts import Phase as Phase
    from stepscope.runtime.windows.summary import Summary as Summary
    from stepscope.runtime.windows.window import Window as Window
else:
    from stepscope.runtime.lazy import lazy as _lazy

    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "stepscope.analysis.findings": ("Answer", "Finding"),
            "stepscope.analysis.reading.recording": ("Rank", "Recording"),
            "stepscope.runtime.annotations.instrument": ("Instrumentation",),
            "stepscope.runtime.overhead.budget": ("OverheadStatistics",),
            "stepscope.runtime.windows.step_facts": ("Phase",),
            "stepscope.runtime.windows.summary": ("Summary",),
            "stepscope.runtime.report.run_report": ("RunReport",),
            "stepscope.runtime.windows.window": ("Window",),
        },
    )

__all__ = [
    "Answer",
    "Finding",
    "Instrumentation",
    "OverheadStatistics",
    "Phase",
    "Rank",
    "Recording",
    "RunReport",
    "Summary",
    "Window",
]
