"""Windows that are asked for while the program runs, and what recording may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.runtime.control.settings import Control as Control
    from stepscope.runtime.overhead.budget import OverheadBudget as OverheadBudget
    from stepscope.runtime.requests.armed import Armed, ArmedStatus
    from stepscope.runtime.requests.window_detail import WindowDetail as WindowDetail
    from stepscope.runtime.requests.window_request import WindowRequest as WindowRequest
else:
    from stepscope.runtime.lazy import lazy as _lazy

    __getattr__, __dir__ = _lazy(
        __name__,
        {
            "stepscope.runtime.requests.armed": ("Armed", "ArmedStatus"),
            "stepscope.runtime.control.settings": ("Control",),
            "stepscope.runtime.requests.window_detail": ("WindowDetail",),
            "stepscope.runtime.requests.window_request": ("WindowRequest",),
            "stepscope.runtime.overhead.budget": ("OverheadBudget",),
        },
    )

__all__ = [
    "Armed",
    "ArmedStatus",
    "Control",
    "OverheadBudget",
    "WindowDetail",
    "WindowRequest",
]
