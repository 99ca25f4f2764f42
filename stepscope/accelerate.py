"""Accelerate: `Accelerator(kwargs_handlers=[StepscopeProfileKwargs()])`, and a tracker for what is logged.

Needs `accelerate`; see docs/frameworks.md.
"""

from stepscope.compat.frameworks.accelerate import StepscopeProfileKwargs
from stepscope.compat.frameworks.accelerate_run import AccelerateRun, FinishedWindow
from stepscope.compat.frameworks.accelerate_tracker import StepscopeTracker

__all__ = ["AccelerateRun", "FinishedWindow", "StepscopeProfileKwargs", "StepscopeTracker"]
