"""Streaming to a collector: the exporter, its connection, and the protocol that both sides speak."""
