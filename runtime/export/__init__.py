"""The way of batches out: the contract of an exporter, its worker with a bounded queue, and the fan-out to all.

Read first: `exporter` (the contract) with `run`, then `fanout` and `exporter_worker`, then `formats`.
"""
