"""The background event loop: it drains the rings and passes batches on to each profiler's pipeline.

Read first: `drain_loop`, then `backpressure`, then `pipeline`.
"""
