"""An exception in words."""

from __future__ import annotations

from stepscope.runtime.outside import interrupts


def error_text(error: BaseException) -> str:
    """Its type and what it says; the type alone if it says nothing, or cannot be made to."""
    kind = type(error).__name__
    try:
        said = str(error)
    except BaseException as failure:  # of its own `__str__`: it is the error that counts
        if interrupts(failure):
            raise
        return kind
    return f"{kind}: {said}" if said else kind
