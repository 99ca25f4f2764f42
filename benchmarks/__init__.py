"""Benchmarks: the costs of stepscope, measured next to other tracers in the same run."""

from __future__ import annotations

import os

# A row measures one thing; the row of the signals asks for them itself. Worker processes inherit it.
os.environ["STEPSCOPE_SIGNALS"] = "none"
