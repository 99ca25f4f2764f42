"""The tracing runtime: recorder, windows, fanout. Imports neither backends nor exporters.

Read first: `profiler`, then `recording`, `loop`, `windows`, `export`. docs/architecture.md follows one span through them.
"""

if __name__ != "stepscope.runtime":
    raise ImportError(f"{__name__} is a folder of stepscope's sources: import stepscope.runtime")

try:
    from stepscope.runtime import _core as _core
except ImportError as error:
    raise ImportError(
        f"stepscope's native core cannot be loaded ({error}). In a checkout, build it with `make install` or `pip install -e .`"
    ) from error
