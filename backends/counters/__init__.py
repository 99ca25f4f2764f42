"""Counters that are read at a fixed rate, of the machine, the processor and NVIDIA devices. `sampling.py` and `counting.py` are the base."""
