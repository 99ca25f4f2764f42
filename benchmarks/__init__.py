"""Benchmarks: what stepscope costs, measured beside other tracers in the same run."""
