"""Annotations as for NVTX: `from stepscope import nvtx` where a program has `import nvtx` or `from torch.cuda import nvtx`."""

from __future__ import annotations

from stepscope.compat.nvtx import (
    Domain,
    EventAttributes,
    Profile,
    RangeId,
    annotate,
    enabled,
    end_range,
    get_domain,
    mark,
    pop_range,
    push_range,
    range,
    range_end,
    range_pop,
    range_push,
    range_start,
    start_range,
)

__all__ = [
    "Domain",
    "EventAttributes",
    "Profile",
    "RangeId",
    "annotate",
    "enabled",
    "end_range",
    "get_domain",
    "mark",
    "pop_range",
    "push_range",
    "range",
    "range_end",
    "range_pop",
    "range_push",
    "range_start",
    "start_range",
]
