"""Lightning: `Trainer(profiler=StepscopeProfiler())`, or `Trainer(callbacks=[StepscopeCallback()])`.

Needs `lightning` or `pytorch_lightning`; see docs/frameworks.md.
"""

from stepscope.compat.frameworks.lightning import StepscopeCallback, StepscopeProfiler

__all__ = ["StepscopeCallback", "StepscopeProfiler"]
