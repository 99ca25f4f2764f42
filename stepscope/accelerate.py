"""Accelerate: `Accelerator(kwargs_handlers=[StepscopeProfileKwargs()])`, and a tracker for what is logged.

Needs `accelerate`; see docs/frameworks.md.
"""

from stepscope.compat.frameworks.accelerate import StepscopeProfileKwargs, StepscopeTracker
from stepscope.compat.frameworks.accelerate_run import AccelerateRun
from stepscope.compat.torch.results import View as FinishedWindow

__all__ = ["AccelerateRun", "FinishedWindow", "StepscopeProfileKwargs", "StepscopeTracker"]
