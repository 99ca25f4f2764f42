"""Transformers: `Trainer(callbacks=[StepscopeCallback()])`. Needs `transformers`; see docs/frameworks.md."""

from stepscope.compat.frameworks.transformers import StepscopeCallback

__all__ = ["StepscopeCallback"]
