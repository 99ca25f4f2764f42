"""The arguments of MindSpore's profiler: `options.py` reads them, `enums.py` has MindSpore's names and numbers."""
