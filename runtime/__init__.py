"""The tracing runtime: recorder, windows, fanout. Imports neither backends nor exporters."""

import importlib

try:
    from stepscope.runtime import _core as _core
except ImportError as error:
    raise ImportError(
        f"stepscope's native core cannot be loaded ({error}). In a checkout, Python finds the sources before what was "
        "installed: leave its directory, or build the core there with `make install` or `pip install -e .`"
    ) from error

# Where the program has not imported numpy itself, the threads that it starts for linear algebra are ours.
_core.without_signals(importlib.import_module, "numpy")
