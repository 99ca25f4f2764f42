"""Composer: `Profiler(schedule=..., trace_handlers=[StepscopeTraceHandler()])`; see docs/frameworks.md."""

from stepscope.compat.frameworks.composer import StepscopeTraceHandler
from stepscope.compat.frameworks.composer_schedule import cyclic_schedule

__all__ = ["StepscopeTraceHandler", "cyclic_schedule"]
