"""Exporters: their contract, a worker with a bounded queue for each, and the fan-out to all.

Read first: `exporter` (the contract) with `run`, then `fanout` and `exporter_worker`, then `formats`.
"""
