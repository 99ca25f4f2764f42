"""Drop-in replacements for other profilers, and callbacks for training frameworks."""

if __name__ != "stepscope.compat":
    raise ImportError(f"{__name__} is a folder of stepscope's sources: import stepscope.compat")

from stepscope.runtime.lazy import load_numpy as _load_numpy

_load_numpy()
