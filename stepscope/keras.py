"""Keras 3: `model.fit(..., callbacks=[StepscopeCallback()])`. Needs `keras`; see docs/frameworks.md."""

from stepscope.compat.frameworks.keras import StepscopeCallback

__all__ = ["StepscopeCallback"]
