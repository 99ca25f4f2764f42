"""Streaming to a collector: the exporter, its connection, and the protocol that both sides speak.

Read first: `exporter`, then `shipper` with `transport`, then `websocket` and `protocol`.
"""
