"""Streaming through NATS JetStream, for clusters that outgrow one collector.

Read first: `exporter`, then `transport` and `connection`, then `layout` with `names`, then `servers`.
"""
